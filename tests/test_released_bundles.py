"""The signatures of the released bundles, and the command that rebuilds, signs and checks them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pdp.bundle.signing import unsigned_bundle
from pdp.engine.bundle_file import baseline_bundle_path, pack_bundle, read_bundle
from pdp.engine.embedded import EmbeddedEngine
from pdp.engine.keys import load_public_keys
from pdp.engine.trust import BundleTrust
from scripts.release_bundles import ROOT, main
from tests import payments
from tests.bundle_releases import key, key_file
from tests.command_line import pdp, written

NAMES = ("baseline", "payments")
KEYS = sorted((payments.ROOT / "bundles/keys").glob("*.pub"))
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


def changed(root: Path) -> None:
    """Change the payments example's policy, and nothing of the baseline."""
    file = root / SANCTIONS
    file.write_text(file.read_text().replace('== "clear"', 'in {"clear", "cleared_by_officer"}'))


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
