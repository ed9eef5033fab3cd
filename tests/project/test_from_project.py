"""An enforcement point from a project file, or from files: what it opens, decides by and closes."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdp import Approvals, EmbeddedEngine, MemoryAudit, Pep
from pdp.engine.bundle.file import baseline_bundle_path, read_bundle
from pdp.errors import UsageError
from tests.support.command_line import SESSION, pdp, written
from tests.support.payments import BUNDLE, EXAMPLE, wire

FILES = """\
manifest: manifest.json
governance: governance.yaml
session: no-session.json
"""
NOT_SCREENED = {**SESSION, "facts": {**SESSION["facts"], "sanctions_status": "not_screened"}}
SUPERVISOR = {"sub": "supervisor-9", "roles": ["payments.approver"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLE, tmp_path / "payments")
    return tmp_path / "payments"


def project(folder: Path, text: str = "") -> Path:
    return written(folder / "pdp.yaml", FILES + text)


def sent(**arguments: Any) -> str:
    return "sent"


def verdicts(pep: Pep) -> list[str]:
    """What two wires come to: one of a payee who is not screened, which the example's own concern denies."""
    evaluations = [pep.decide(wire(amount=20000), SESSION), pep.decide(wire(amount=20000), NOT_SCREENED)]
    return [",".join(sorted(evaluation.codes)) for evaluation in evaluations]


BASELINE = ["effects.gate_satisfied,risk.acceptable"] * 2
OWN = [BASELINE[0], "sanctions.not_clear"]


@pytest.mark.parametrize(("text", "decided"), [("", BASELINE), (f"bundle: {BUNDLE}\n", OWN)])
def test_it_decides_by_the_baseline_or_by_the_bundle(folder: Path, text: str, decided: list[str]) -> None:
    with Pep.from_project(project(folder, text)) as pep:
        assert verdicts(pep) == decided


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_its_policies_are_compiled_where_it_has_no_bundle(folder: Path) -> None:
    with Pep.from_project(project(folder, "policies: [policies]\n")) as pep:
        assert verdicts(pep) == OWN
    with Pep.from_project(project(folder, f"policies: [no-folder]\nbundle: {baseline_bundle_path()}\n")) as pep:
        assert verdicts(pep) == BASELINE
    with Pep.from_files(
        folder / "manifest.json", governance=folder / "governance.yaml", policies=[folder / "policies"]
    ) as pep:
        assert verdicts(pep) == OWN


@pytest.mark.opa
@pytest.mark.process
@pytest.mark.usefixtures("opa")
def test_a_sidecar_without_a_url_is_started_and_ended_with_it(folder: Path) -> None:
    with Pep.from_project(project(folder, f"engine: sidecar\nbundle: {BUNDLE}\n")) as pep:
        assert (pep.engine.name, verdicts(pep)) == ("sidecar", OWN)

    assert pep.decide(wire(), SESSION).codes == ("engine.unavailable",)


def test_a_sidecar_that_runs_decides_by_what_it_has(folder: Path) -> None:
    """Nothing listens there: it was asked."""
    text = "engine: sidecar\nopa_url: http://127.0.0.1:9\nbundle: none.tar.gz\npolicies: [none]\ndata: [none.yaml]\n"
    with Pep.from_project(project(folder, text)) as pep:
        assert pep.decide(wire(), SESSION).codes == ("engine.unavailable",)


def test_an_engine_that_is_given_decides_and_stays_open(folder: Path) -> None:
    manifest = Pep.from_project(project(folder)).manifest
    with EmbeddedEngine(read_bundle(BUNDLE), manifests={manifest.digest: manifest.document}) as engine:
        Pep.from_project(project(folder, "policies: [policies]\n"), engine=engine).close()

        with Pep.from_files(folder / "manifest.json", governance=folder / "governance.yaml", engine=engine) as pep:
            assert verdicts(pep) == OWN


def test_approvals_are_in_its_store_where_another_process_finds_them(folder: Path) -> None:
    file = project(folder, "store: sqlite:///agent.db\n")
    with Pep.from_project(file, tools={"initiate_wire": sent}) as pep:
        waiting = pep.call(wire(), SESSION).approval
        assert waiting is not None

    with Pep.from_files(
        folder / "manifest.json", governance=folder / "governance.yaml", store=f"sqlite:///{folder}/agent.db",
        tools={"initiate_wire": sent},
    ) as other:  # fmt: skip
        assert other.approvals is not None
        other.approvals.grant(waiting.id, SUPERVISOR)
        assert (other.call(wire(), SESSION).result, other.call(wire(), SESSION).executed) == ("sent", False)


def test_what_is_given_is_not_taken_from_the_store(folder: Path) -> None:
    audit, approvals = MemoryAudit(), Approvals()

    with Pep.from_project(project(folder, "store: sqlite:///agent.db\n"), audit=audit, approvals=approvals) as pep:
        assert (pep.audit, pep.approvals) == (audit, approvals)


def test_what_it_opened_is_closed_with_it_and_not_with_what_came_of_it(folder: Path) -> None:
    pep = Pep.from_project(project(folder))

    pep.with_changes(audit=MemoryAudit()).close()
    open_still = pep.decide(wire(), SESSION).codes
    pep.close()

    assert (open_still, pep.decide(wire(), SESSION).codes) == (("limits.exceeded",), ("engine.unavailable",))


OTHERS = (
    "an engine that runs already decides by its own bundle and data "
    "(leave bundle, policies and data out, or let an engine be opened for them)"
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "wasm"}, "no engine is called 'wasm' (name embedded or sidecar, or give an open one)"),
        (
            {"opa_url": "http://127.0.0.1:9"},
            "the URL of an OPA is not for the embedded engine (choose the engine sidecar, or leave the URL out)",
        ),
        ({"engine": "sidecar", "opa_url": "http://127.0.0.1:9", "data": {"settings": {}}}, OTHERS),
        (
            {"policies": ["policies"], "bundle": "b.tar.gz"},
            (
                "bundle and policies exclude each other: a bundle holds its policies "
                "(build them into the bundle: pdp bundle build --policies DIR -o FILE)"
            ),
        ),
        ({"data": ["gone.yaml"]}, "gone.yaml: no such file (check the path)"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_used(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Pep.from_files(folder / "manifest.json", **options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "open_it", "message"),
    [
        ("governance: g.yaml\n", Pep.from_project, "{file}: states no manifest (add `manifest: FILE`)"),
        (
            FILES,
            lambda file: Pep.from_project(file, engine="sidecar", watch=True),
            "what is watched has the embedded engine, and no registry (leave watch out)",
        ),
    ],
)
def test_projects_that_cannot_be_used(folder: Path, text: str, open_it: Callable[[Path], Pep], message: str) -> None:
    file = written(folder / "pdp.yaml", text)

    with pytest.raises(UsageError) as caught:
        open_it(file)

    assert str(caught.value) == message.format(file=file)


def test_the_command_line_opens_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    project(folder, f"bundle: {BUNDLE}\n")
    session = written(folder / "not-screened.json", NOT_SCREENED)

    done = pdp("decide", written(folder / "wire.json", wire(amount=20000)), "-s", session, "--json")

    assert [reason["code"] for reason in done.json["reasons"]] == ["sanctions.not_clear"]


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+pysqlite"])
def test_a_database_file_of_a_project_is_made(folder: Path, scheme: str) -> None:
    with Pep.from_project(project(folder, f"store: {scheme}:///new.db\n")):
        assert (folder / "new.db").exists()
