"""`Pep.from_project` and `Pep.from_files` open the configured resources, use them for decisions, and close them."""

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
    """Return the reason codes of two wires. A custom concern denies the second wire, whose payee was not screened."""
    evaluations = [pep.decide(wire(amount=20000), SESSION), pep.decide(wire(amount=20000), NOT_SCREENED)]
    return [",".join(sorted(evaluation.codes)) for evaluation in evaluations]


BASELINE = ["effects.gate_satisfied,risk.acceptable"] * 2
OWN = [BASELINE[0], "sanctions.not_clear"]


@pytest.mark.parametrize(("text", "decided"), [("", BASELINE), (f"bundle: {BUNDLE}\n", OWN)])
def test_project_decides_with_baseline_or_configured_bundle(folder: Path, text: str, decided: list[str]) -> None:
    with Pep.from_project(project(folder, text)) as pep:
        assert verdicts(pep) == decided


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_policies_are_compiled_unless_a_bundle_is_configured(folder: Path) -> None:
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
def test_project_starts_and_stops_opa_if_no_url_is_configured(folder: Path) -> None:
    with Pep.from_project(project(folder, f"engine: sidecar\nbundle: {BUNDLE}\n")) as pep:
        assert (pep.engine.name, verdicts(pep)) == ("sidecar", OWN)

    assert pep.decide(wire(), SESSION).codes == ("engine.unavailable",)


def test_project_with_an_opa_url_sends_requests_to_the_opa_at_that_url(folder: Path) -> None:
    """No process listens at the configured URL, so the error shows that the engine sent its request to the URL."""
    text = "engine: sidecar\nopa_url: http://127.0.0.1:9\nbundle: none.tar.gz\npolicies: [none]\ndata: [none.yaml]\n"
    with Pep.from_project(project(folder, text)) as pep:
        assert pep.decide(wire(), SESSION).codes == ("engine.unavailable",)


def test_engine_passed_by_the_caller_is_used_and_not_closed(folder: Path) -> None:
    manifest = Pep.from_project(project(folder)).manifest
    with EmbeddedEngine(read_bundle(BUNDLE), manifests={manifest.digest: manifest.document}) as engine:
        Pep.from_project(project(folder, "policies: [policies]\n"), engine=engine).close()

        with Pep.from_files(folder / "manifest.json", governance=folder / "governance.yaml", engine=engine) as pep:
            assert verdicts(pep) == OWN


def test_enforcement_points_of_projects_with_one_store_share_approvals(folder: Path) -> None:
    file = project(folder, "store: sqlite:///agent.db\npublic_url: https://pdp.example\n")
    with Pep.from_project(file, tools={"initiate_wire": sent}) as pep:
        held = pep.call(wire(), SESSION)
        waiting = held.approval
        assert waiting is not None
        assert waiting.url == f"https://pdp.example/console/approvals/{waiting.id}"
        assert held.answer.text.endswith(f" (approval {waiting.id} is pending; its page: {waiting.url})")

    with Pep.from_files(
        folder / "manifest.json", governance=folder / "governance.yaml", store=f"sqlite:///{folder}/agent.db",
        tools={"initiate_wire": sent},
    ) as other:  # fmt: skip
        assert other.approvals is not None
        assert other.approvals.grant(waiting.id, SUPERVISOR).url is None  # The store does not keep the address.
        assert (other.call(wire(), SESSION).result, other.call(wire(), SESSION).executed) == ("sent", False)


def test_arguments_of_from_project_override_the_configured_store(folder: Path) -> None:
    audit, approvals = MemoryAudit(), Approvals()

    with Pep.from_project(project(folder, "store: sqlite:///agent.db\n"), audit=audit, approvals=approvals) as pep:
        assert (pep.audit, pep.approvals) == (audit, approvals)


def test_enforcement_point_closes_only_resources_that_it_opened(folder: Path) -> None:
    pep = Pep.from_project(project(folder))

    pep.with_changes(audit=MemoryAudit()).close()
    open_still = pep.decide(wire(), SESSION).codes
    pep.close()

    assert (open_still, pep.decide(wire(), SESSION).codes) == (("limits.exceeded",), ("engine.unavailable",))


OTHERS = (
    "a running engine decides with its own bundle and data "
    "(remove bundle, policies and data, or remove the engine or its URL)"
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "wasm"}, "unknown engine 'wasm' (use embedded or sidecar, or pass an Engine)"),
        (
            {"opa_url": "http://127.0.0.1:9"},
            "the embedded engine does not use the URL of an OPA (set the engine to sidecar, or remove the URL)",
        ),
        ({"engine": "sidecar", "opa_url": "http://127.0.0.1:9", "data": {"settings": {}}}, OTHERS),
        (
            {"policies": ["policies"], "bundle": "b.tar.gz"},
            (
                "bundle and policies cannot be used together: a bundle contains its policies "
                "(build them into the bundle: pdp bundle build --policies DIR -o FILE)"
            ),
        ),
        ({"data": ["gone.yaml"]}, "gone.yaml: no such file (check the path)"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_rejected(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Pep.from_files(folder / "manifest.json", **options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "open_it", "message"),
    [
        ("governance: g.yaml\n", Pep.from_project, "{file}: names no manifest (add `manifest: FILE`)"),
        (
            FILES,
            lambda file: Pep.from_project(file, engine="sidecar", watch=True),
            "`watch` works only with the embedded engine and without a registry (leave `watch` out)",
        ),
    ],
)
def test_from_project_rejects_invalid_project_files(
    folder: Path, text: str, open_it: Callable[[Path], Pep], message: str
) -> None:
    file = written(folder / "pdp.yaml", text)

    with pytest.raises(UsageError) as caught:
        open_it(file)

    assert str(caught.value) == message.format(file=file)


def test_command_line_opens_the_engine_of_the_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    project(folder, f"bundle: {BUNDLE}\n")
    session = written(folder / "not-screened.json", NOT_SCREENED)

    done = pdp("decide", written(folder / "wire.json", wire(amount=20000)), "-s", session, "--json")

    assert [reason["code"] for reason in done.json["reasons"]] == ["sanctions.not_clear"]


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+pysqlite"])
def test_missing_database_file_is_created(folder: Path, scheme: str) -> None:
    with Pep.from_project(project(folder, f"store: {scheme}:///new.db\n")):
        assert (folder / "new.db").exists()
