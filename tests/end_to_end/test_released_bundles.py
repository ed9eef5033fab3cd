"""The signatures of the released bundles, and the command that rebuilds, signs and checks them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pdp.engine.bundle.file import baseline_bundle_path, pack_bundle, read_bundle
from pdp.engine.bundle.keys import load_public_keys
from pdp.engine.bundle.trust import BundleTrust
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.workbench.bundles.sign import unsigned_bundle
from scripts.release_bundles import ROOT, main
from tests.support import payments
from tests.support.bundle_releases import key, key_file
from tests.support.command_line import pdp, written

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("baseline", "payments")
KEYS = sorted((ROOT / "bundles/keys").glob("*.pub"))
SANCTIONS = "examples/payments/policies/custom/concerns/sanctions/sanctions.rego"


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of its own: the sources, and the released bundles signed with the key `one` alone."""
    root = tmp_path_factory.mktemp("signed") / "repository"
    for folder in ("policies", "examples/payments", "bundles"):
        shutil.copytree(ROOT / folder, root / folder)
    for file in (*(root / "bundles/keys").iterdir(), *(root / "bundles").glob("*.signatures.json")):
        file.unlink()
    written(root / f"bundles/keys/{key().public.id}.pub", key().public.pem)
    assert main(["--key", str(key_file(root.parent))], root) == 0
    return root


@pytest.fixture
def repository(signed: Path, tmp_path: Path) -> Path:
    """A copy of it to change, with the key beside it as the file `one`."""
    key_file(tmp_path)
    return Path(shutil.copytree(signed, tmp_path / "repository"))


def changed(root: Path, by: str = "officer") -> None:
    """Change the payments example's policy, and nothing of the baseline."""
    file = root / SANCTIONS
    text = file.read_text().replace('== "clear"', 'in {"clear", "cleared_by_officer"}')
    file.write_text(text.replace("cleared_by_officer", f"cleared_by_{by}"))


def record(root: Path) -> dict[str, dict[str, object]]:
    """What stands in the record of the bundles as they are."""
    held = {name: read_bundle(root / f"bundles/{name}.tar.gz") for name in NAMES}
    return {
        name: {"release": one.release, "revision": one.revision, "digest": one.digest} for name, one in held.items()
    }


def contents(root: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (root / "bundles").iterdir() if file.is_file()}


@pytest.mark.opa
def test_the_released_bundles_are_what_their_sources_give_and_signed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"bundles/{name}.tar.gz: release {read_bundle(ROOT / f'bundles/{name}.tar.gz').release}" for name in NAMES
    ]


def test_the_baseline_requires_every_concern_that_it_has() -> None:
    bundle = read_bundle(baseline_bundle_path())
    folders = sorted(path.name for path in (ROOT / "policies/authz/concerns").iterdir())

    assert bundle.data["config"]["required_concerns"] == folders
    assert len(folders) == 12


@pytest.mark.opa
@pytest.mark.parametrize("name", NAMES)
def test_with_its_signature_inside_engine_command_and_opa_take_it(name: str, tmp_path: Path, opa: Path) -> None:
    assert main(["--signed", str(tmp_path)]) == 0

    file = tmp_path / f"{name}.tar.gz"
    assert unsigned_bundle(file.read_bytes()) == (ROOT / f"bundles/{name}.tar.gz").read_bytes()
    EmbeddedEngine.trusted(file, BundleTrust(load_public_keys(KEYS))).close()
    keys = [option for each in KEYS for option in ("--key", each)]
    assert pdp("bundle", "verify", file, *keys).out.startswith(f"{file}: release ")
    signer = pdp("bundle", "inspect", file, "--json").json["signature"]["key_id"]
    verified = ["--verification-key", str(ROOT / f"bundles/keys/{signer}.pub"), "--signing-alg", "ES256"]
    unverified: list[str] = []
    for options, code in ((verified, 0), (unverified, 1)):
        done = subprocess.run(
            [opa, "build", "-b", file, *options, "-o", tmp_path / "o"], check=False, capture_output=True
        )
        assert done.returncode == code, done.stderr


@pytest.mark.opa
def test_what_is_up_to_date_stays_as_it_is_and_needs_no_key(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(repository)
    capsys.readouterr()

    assert main([], repository) == 0
    assert capsys.readouterr().out == "bundles/baseline.tar.gz: unchanged\nbundles/payments.tar.gz: unchanged\n"
    assert contents(repository) == before


@pytest.mark.opa
def test_a_change_takes_a_key_and_the_next_release_number(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PDP_SIGNING_KEY", raising=False)
    before, old = contents(repository), read_bundle(repository / "bundles/payments.tar.gz")
    changed(repository)
    capsys.readouterr()

    checked = main(["--check"], repository)
    assert (checked, capsys.readouterr().err) == (
        1, "fault: bundles/payments.tar.gz: its sources give another one (run: scripts/release-bundles --key FILE)\n",
    )  # fmt: skip

    assert (main([], repository), contents(repository) == before) == (2, True)
    assert capsys.readouterr().err == (
        "error: there is no private key, and to be signed are: "
        f"bundles/payments.tar.gz (another content than {old.revision})"
        " (name it with --key, or give it in PDP_SIGNING_KEY; without one, --unsigned builds, and --check fails until"
        " somebody who has the key runs this again)\n"
    )

    # Without a key by the explicit word; then whoever has it signs just that.
    assert main(["--unsigned"], repository) == 0
    assert contents(repository).keys() == before.keys() - {"payments.signatures.json"}
    assert contents(repository)["releases.json"] == before["releases.json"]
    new = read_bundle(repository / "bundles/payments.tar.gz")
    assert (new.release, new.revision != old.revision) == (old.release + 1, True)
    capsys.readouterr()
    checked = main(["--check"], repository)
    assert (checked, capsys.readouterr().err) == (
        1, "fault: bundles/payments.tar.gz: not signed (run: scripts/release-bundles --key FILE)\n",
    )  # fmt: skip

    assert main(["--key", str(tmp_path / "one")], repository) == 0
    assert read_bundle(repository / "bundles/payments.tar.gz") == new
    assert main(["--check"], repository) == 0
    assert contents(repository)["baseline.signatures.json"] == before["baseline.signatures.json"]
    assert json.loads((repository / "bundles/releases.json").read_bytes()) == record(repository)


STOPPED = """
import os, shutil, signal, sys
from pathlib import Path
from scripts.release_bundles import main

root, key, copies = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
folder = os.fsdecode(root / "bundles") + "/"


def seen(event, arguments):
    # What is on the disk just before a file there is replaced or removed is what a kill at that moment leaves.
    if event in ("os.rename", "os.remove") and any(str(each).startswith(folder) for each in arguments[:2]):
        shutil.copytree(root, copies / str(len(list(copies.iterdir()))))


sys.addaudithook(seen)
sys.exit(main(["--key", key], root))
"""


@pytest.mark.opa
def test_who_is_killed_in_between_gives_no_number_away(repository: Path, tmp_path: Path) -> None:
    """At each moment: another content than both gets a number that neither has, and no file is missing meanwhile."""
    copies, one = tmp_path / "copies", str(tmp_path / "one")
    copies.mkdir()
    old, first = record(repository)["payments"], read_bundle(repository / "bundles/payments.tar.gz").release
    changed(repository)
    subprocess.run([sys.executable, "-c", STOPPED, repository, one, copies], check=True, cwd=ROOT)
    new = record(repository)["payments"]
    assert (old["release"], new["release"]) == (first, first + 1)

    left = sorted(copies.iterdir())
    assert len(left) == 3
    for root, bundle in zip(left, (old, old, new), strict=True):
        assert contents(root).keys() == contents(repository).keys()
        assert record(root)["payments"] == bundle
        assert main(["--check"], root) == 1

    # Once more with the same sources it is the same release.
    assert main(["--key", one], left[1]) == 0
    assert (record(left[1])["payments"], main(["--check"], left[1])) == (new, 0)
    # With others: nothing of the first was under the next number, not even the record.
    for root, number in ((left[0], first + 1), (left[2], first + 2)):
        changed(root, "nobody")
        assert main(["--key", one], root) == 0
        assert (record(root)["payments"]["release"], main(["--check"], root)) == (number, 0)


@pytest.mark.opa
def test_a_number_is_taken_even_when_signature_and_bundle_are_gone(repository: Path, tmp_path: Path) -> None:
    first = read_bundle(repository / "bundles/payments.tar.gz").release
    changed(repository)
    for name in ("payments.tar.gz", "payments.signatures.json"):
        (repository / "bundles" / name).unlink()

    assert main(["--key", str(tmp_path / "one")], repository) == 0
    assert record(repository)["payments"]["release"] == first + 1


@pytest.mark.opa
@pytest.mark.parametrize(
    ("edit", "told"),
    [
        pytest.param(None, "cannot be read: No such file or directory", id="missing"),
        pytest.param(
            lambda text: text[:1],
            "value: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
            id="cut off",
        ),
        pytest.param(
            lambda text: re.sub('"release": [0-9]+', '"release": 0', text),
            "baseline: release: Input should be greater than or equal to 1", id="no number",
        ),
    ],
)  # fmt: skip
def test_without_a_whole_record_nothing_is_released(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], edit: Callable[[str], str] | None, told: str
) -> None:
    file = repository / "bundles/releases.json"
    if edit is None:
        file.unlink()
    else:
        file.write_text(edit(file.read_text()))
    before = contents(repository)
    capsys.readouterr()

    for options in (["--check"], ["--key", str(tmp_path / "one")]):
        assert main(options, repository) == 2
        assert capsys.readouterr().err == (
            f"error: bundles/releases.json: {told}"
            " (restore it from version control: it says which release numbers are taken)\n"
        )
    assert contents(repository) == before


@pytest.mark.opa
@pytest.mark.parametrize("known", [True, False])
def test_a_record_that_lacks_what_was_signed_is_told(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, known: bool
) -> None:
    """As when two changes were merged and the record of the wrong one was kept."""
    changes = {"payments": {**record(repository)["payments"], "digest": f"sha256:{'0' * 64}"}} if known else {}
    stale = {"baseline": record(repository)["baseline"], **changes}
    written(repository / "bundles/releases.json", stale)
    before = contents(repository)
    capsys.readouterr()

    checked = main(["--check"], repository)
    assert checked == 1
    assert capsys.readouterr().err == (
        "fault: bundles/payments.tar.gz: signed, and not the release in bundles/releases.json"
        " (run: scripts/release-bundles --key FILE)\n"
    )
    assert main(["--key", str(tmp_path / "one")], repository) == 2
    assert capsys.readouterr().err == (
        "error: bundles/payments.tar.gz: signed, and bundles/releases.json does not have that release"
        " (restore it from version control: it says which release numbers are taken)\n"
    )
    assert contents(repository) == before


@pytest.mark.opa
def test_a_key_of_which_nobody_has_the_public_half_signs_nothing(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, other = contents(repository), key("other").public.id

    assert main(["--key", str(key_file(tmp_path, "other"))], repository) == 2
    assert capsys.readouterr().err == (
        f"error: the private key is {other}, which is none of bundles/keys"
        f" (sign with one of those; or put its public half there first, as {other}.pub)\n"
    )
    assert contents(repository) == before


@pytest.mark.opa
def test_a_key_is_replaced_in_two_steps(repository: Path, tmp_path: Path) -> None:
    """Both keys are good for a while; when the first one goes, the same release is signed with the second one."""
    keys, before = repository / "bundles/keys", contents(repository)
    written(keys / f"{key('other').public.id}.pub", key("other").public.pem)
    assert main(["--check"], repository) == 0

    (keys / f"{key().public.id}.pub").unlink()
    assert main(["--key", str(key_file(tmp_path, "other"))], repository) == 0
    assert main(["--check"], repository) == 0
    after = contents(repository)
    assert {name for name in before if before[name] != after[name]} == {f"{name}.signatures.json" for name in NAMES}


@pytest.mark.opa
def test_what_was_tampered_with_is_told(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another content that is whole in itself, a signature of something else, and a key under another's name."""
    bundles = repository / "bundles"
    payments_bundle, original = read_bundle(bundles / "payments.tar.gz"), contents(repository)
    forged = pack_bundle(
        release=payments_bundle.release,
        wasm=payments_bundle.wasm,
        data={**payments_bundle.data, "settings": {"evil": True}},
        modules=payments_bundle.modules,
    )
    hint = "(run: scripts/release-bundles --key FILE)\n"
    (bundles / "payments.tar.gz").write_bytes(forged)
    (bundles / "baseline.signatures.json").write_bytes(original["payments.signatures.json"])
    capsys.readouterr()

    checked = main(["--check"], repository)
    told = (
        f"fault: bundles/baseline.tar.gz: the files are not those that .signatures.json lists {hint}"
        f"fault: bundles/payments.tar.gz: its sources give another one {hint}"
        f"fault: bundles/payments.tar.gz: the files are not those that .signatures.json lists {hint}"
    )
    assert (checked, capsys.readouterr().err) == (1, told)
    assert main(["--signed", str(repository)], repository) == 2
    assert not (repository / "payments.tar.gz").exists()

    own = key().public.id
    (bundles / f"keys/{own}.pub").rename(bundles / "keys/mallory.pub")
    capsys.readouterr()
    checked = main(["--check"], repository)
    assert (checked, capsys.readouterr().err) == (
        2, f"error: bundles/keys/mallory.pub: not the key of that id (its name is {own}.pub)\n",
    )  # fmt: skip


def test_the_payments_example_may_be_released() -> None:
    """With the contract test pack of each of its tools, as none of them was released before."""
    done = pdp("release", "check", payments.EXAMPLE, "--bundle", payments.BUNDLE, "--json")

    status = {one["name"]: one["status"] for one in done.json["checks"]}
    assert (done.code, {name for name, one in status.items() if one == "skip"}) == (
        0, {"coverage", "mutation", "loosening"},
    )  # fmt: skip
    assert status["packs"] == "pass"


@pytest.mark.parametrize("tool", ["initiate_wire", "lookup_beneficiary", "validate_payment"])
def test_no_tool_of_it_without_its_pack(tool: str, tmp_path: Path) -> None:
    example = tmp_path / "payments"
    shutil.copytree(payments.EXAMPLE, example)
    pack = example / f"packs/pack.tool.{tool}.yaml"
    pack.unlink()

    done = pdp("release", "check", example, "--bundle", payments.BUNDLE, "--json")

    assert {one["name"]: one["reasons"] for one in done.json["checks"] if one["status"] == "fail"} == {
        "packs": [f"{tool} without a version: the pack pack.tool.{tool} is not there; looked in {example / 'packs'}"]
    }
