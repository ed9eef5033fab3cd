"""The released bundles are complete, and a command rebuilds and checks them."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pdp.engine.bundle.file import pack_bundle, read_bundle
from pdp.workbench.gate.gate import release_check
from scripts import release_bundles
from scripts.release_bundles import EXAMPLES, ROOT, main
from tests.support import payments
from tests.support.command_line import pdp

SANCTIONS = "examples/payments/policies/custom/concerns/sanctions/sanctions.rego"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Copy the sources and the released bundles to a temporary folder."""
    root = tmp_path / "repository"
    for folder in ("policies", "examples/payments", "bundles"):
        shutil.copytree(ROOT / folder, root / folder)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (root / "bundles").iterdir()}


def release(root: Path, name: str) -> int:
    return read_bundle(root / f"bundles/{name}.tar.gz").release


def test_each_example_has_a_released_bundle() -> None:
    """`scripts/test` checks in a separate step that the bundles match the sources and pass the release gate."""
    assert contents(ROOT).keys() == {f"{name}.tar.gz" for name in EXAMPLES}


@pytest.mark.opa
def test_bundle_with_changed_content_gets_the_next_release_number(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(repository)
    old = read_bundle(repository / "bundles/payments.tar.gz")
    assert main([], repository) == 0
    assert contents(repository) == before

    rego = repository / SANCTIONS
    rego.write_text(rego.read_text().replace('== "clear"', 'in {"clear"}'))
    capsys.readouterr()
    assert (main(["--check"], repository), contents(repository) == before) == (1, True)
    assert capsys.readouterr().err == (
        "fault: bundles/payments.tar.gz: its sources give another one (run: scripts/release-bundles)\n"
    )

    assert main([], repository) == 0
    new = read_bundle(repository / "bundles/payments.tar.gz")
    assert (new.release, new.revision != old.revision) == (old.release + 1, True)
    assert contents(repository)["baseline.tar.gz"] == before["baseline.tar.gz"]


@pytest.mark.opa
def test_release_check_reports_an_example_that_fails_the_release_gate(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test removes unit tests from a copy of the example, so the gate must report untested Rego.

    The checks that take long are left out, because `scripts/test` runs the whole gate.
    """
    quick = ("loosening", "mutation", "scenarios")
    monkeypatch.setattr(release_bundles, "EXAMPLES", {"payments": EXAMPLES["payments"]})
    monkeypatch.setattr(release_bundles, "release_check", lambda gate: release_check(replace(gate, skip=quick)))
    (repository / SANCTIONS).with_name("sanctions_test.rego").unlink()

    assert main(["--check"], repository) == 1
    faults = capsys.readouterr().err.splitlines()
    assert [fault.partition(str(repository))[0] for fault in faults] == [
        "fault: bundles/payments.tar.gz: unit-coverage: "
    ]
    assert faults[0].endswith(": no unit test evaluates them: write one in sanctions_test.rego")


@pytest.mark.opa
def test_release_check_reports_a_replaced_or_lost_bundle(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the replaced bundle is valid, its revision does not match the sources."""
    monkeypatch.setattr(release_bundles, "EXAMPLES", {"payments": EXAMPLES["payments"]})
    file = repository / "bundles/payments.tar.gz"
    good = read_bundle(file)
    data = {**good.data, "settings": {"evil": True}}
    file.write_bytes(pack_bundle(release=good.release, wasm=good.wasm, data=data, modules=good.modules))
    assert main(["--check"], repository) == 1

    file.unlink()
    capsys.readouterr()
    assert main(["--check"], repository) == 2
    assert capsys.readouterr().err.startswith(f"error: {file}: cannot be read: No such file or directory")
    assert (main([], repository), release(repository, "payments")) == (0, 1)


def test_every_tool_of_a_released_example_needs_a_test_pack(tmp_path: Path) -> None:
    example = tmp_path / "payments"
    shutil.copytree(payments.EXAMPLE, example)
    tools = ("lookup_beneficiary", "validate_payment", "initiate_wire")
    for tool in tools:
        (example / f"packs/pack.tool.{tool}.yaml").unlink()

    skipped = [word for name in ("loosening", "mutation", "scenarios", "unit-coverage") for word in ("--skip", name)]
    done = pdp("release", "check", example, "--bundle", payments.BUNDLE, *skipped, "--json")

    assert {each["name"]: each["reasons"] for each in done.json["checks"] if each["status"] == "fail"} == {
        "packs": [f"{tool} without a version: no pack pack.tool.{tool} in {example / 'packs'}" for tool in tools]
    }
