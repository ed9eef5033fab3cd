"""A watched project reloads its files. Valid changes take effect together, and a faulty file changes nothing."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdp import Pep
from pdp.project import watch as watching
from pdp.project.file import engine_of_project
from tests.support import until
from tests.support.command_line import written

MANIFEST = """\
manifest_version: 2026.01.{version}
tools:
  - name: read_note
    version: 1.0.0
    description: Read a note.
    effect_class: read-internal
    risk_tier: low
    schema: {{type: object, required: [id], properties: {{id: {{type: string}}}}}}
"""
ANN = {"claims": {"sub": "ann", "emts": {"notes.read": True}}}
READ = {"tool": "read_note", "arguments": {"id": "n-1"}}


def governance(scope: str) -> str:
    return f"actions: {{read_note: {{scopes: [{scope}]}}}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written(tmp_path / "pdp.yaml", "manifest: m.yaml\ngovernance: g.yaml\n")
    written(tmp_path / "m.yaml", MANIFEST.format(version=1))
    written(tmp_path / "g.yaml", governance("notes.read"))
    return tmp_path


@pytest.fixture
def pep(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pep]:
    """Open an enforcement point that checks its files for changes only when the test calls `refresh`."""
    monkeypatch.setattr(watching, "EVERY", 3600)
    with Pep.from_project(folder / "pdp.yaml", watch=True) as pep:
        yield pep


def refreshed(pep: Pep) -> str | None:
    """Reload changed files, and return the error of the reload, or None."""
    assert pep.watch is not None
    error = pep.watch.refresh()
    assert error is pep.watch.error
    return None if error is None else str(error)


def codes(pep: Pep) -> set[str]:
    return set(pep.decide(READ, ANN).codes)


ALLOWED = {"effects.gate_satisfied", "risk.acceptable"}


def test_changed_manifest_file_applies_after_a_reload(pep: Pep, folder: Path) -> None:
    before = codes(pep)
    written(folder / "g.yaml", governance("notes.admin"))

    assert (before, refreshed(pep), codes(pep)) == (ALLOWED, None, {"scopes.missing"})


def test_manifest_and_governance_file_that_change_together_apply_at_once(pep: Pep, folder: Path) -> None:
    written(folder / "m.yaml", MANIFEST.format(version=2))
    written(folder / "g.yaml", governance("notes.admin"))

    assert refreshed(pep) is None
    assert (pep.manifest.version, codes(pep)) == ("2026.01.2", {"scopes.missing"})


def test_file_newly_named_in_the_project_file_is_loaded_at_reload(pep: Pep, folder: Path) -> None:
    written(folder / "other.yaml", governance("notes.admin"))
    written(folder / "pdp.yaml", "manifest: m.yaml\ngovernance: other.yaml\n")

    assert (refreshed(pep), codes(pep)) == (None, {"scopes.missing"})


def test_project_reload_does_not_change_the_type_of_the_engine(pep: Pep, folder: Path) -> None:
    written(folder / "pdp.yaml", "manifest: m.yaml\ngovernance: g.yaml\nengine: sidecar\nopa_url: http://127.0.0.1:1\n")

    assert (refreshed(pep), type(pep.engine).__name__, codes(pep)) == (None, "EmbeddedEngine", ALLOWED)


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("g.yaml", "actions: {raed_note: {scopes: [x]}}", "1:11"),
        ("m.yaml", "manifest_version: 2026.01.2\ntools: [", "3:1: not YAML"),
        ("pdp.yaml", "manifst: m.yaml", "1:1: unknown key `manifst`"),
        ("g.yaml", None, "no such file"),
    ],
)
def test_reload_reports_faulty_files_and_does_not_use_them(
    pep: Pep, folder: Path, caplog: pytest.LogCaptureFixture, file: str, text: str | None, fault: str
) -> None:
    sound = (folder / file).read_text()
    engine = pep.engine
    (folder / file).unlink() if text is None else written(folder / file, text)

    errors = [refreshed(pep), refreshed(pep)]

    assert errors[0] == errors[1]
    assert fault in str(errors[0])
    assert (pep.manifest.version, pep.engine, codes(pep)) == ("2026.01.1", engine, ALLOWED)
    assert len(caplog.messages) == 1
    assert "the changed files are not used" in caplog.text

    written(folder / file, sound)
    assert refreshed(pep) is None


def test_reload_rejects_a_manifest_without_a_tool_that_has_a_function(pep: Pep, folder: Path) -> None:
    pep.tool(read_note)
    written(folder / "m.yaml", MANIFEST.format(version=2).replace("read_note", "read_page"))
    written(folder / "g.yaml", governance("notes.read").replace("read_note", "read_page"))

    assert refreshed(pep) == ("tools: `read_note` is not a tool of manifest 2026.01.2 (did you mean `read_page`?)")


def read_note(id: str) -> str:  # noqa: A002 - the schema's name
    return id


def test_guarded_function_uses_the_reloaded_manifest(pep: Pep, folder: Path) -> None:
    before = pep.tool(read_note)
    written(folder / "m.yaml", MANIFEST.format(version=2))

    assert refreshed(pep) is None
    with pep.using(ANN):
        assert before("n-1") == "n-1"


def test_file_that_changes_during_a_project_check_is_read_at_the_next_check(
    pep: Pep, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written(folder / "m.yaml", MANIFEST.format(version=2))
    reading = engine_of_project

    def overtaken(*arguments: Any) -> Any:
        opened = reading(*arguments)
        written(folder / "g.yaml", governance("notes.admin"))
        return opened

    monkeypatch.setattr("pdp.project.watch.engine_of_project", overtaken)
    overtaken_look = refreshed(pep), pep.manifest.version
    monkeypatch.setattr("pdp.project.watch.engine_of_project", reading)

    assert (overtaken_look, refreshed(pep)) == ((None, "2026.01.1"), None)
    assert (pep.manifest.version, codes(pep), caplog.messages) == ("2026.01.2", {"scopes.missing"}, [])


def test_running_call_keeps_the_manifest_from_its_start(pep: Pep, folder: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def read(id: str) -> str:  # noqa: A002 - the schema's name
        begun.set()
        go_on.wait()
        return id

    with_tool = pep.with_changes(tools={"read_note": read})
    results: list[Any] = []
    pep._parts = with_tool._parts
    thread = threading.Thread(target=lambda: results.append(pep.call(READ, ANN)))
    thread.start()
    begun.wait()
    written(folder / "m.yaml", MANIFEST.format(version=2))

    error = refreshed(pep)
    go_on.set()
    thread.join()

    assert (error, pep.manifest.version) == (None, "2026.01.2")
    assert (results[0].result, results[0].trace.manifest_version) == ("n-1", "2026.01.1")


def test_project_files_are_checked_periodically_until_close(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "EVERY", 0.01)
    with Pep.from_project(folder / "pdp.yaml", watch=True) as pep:
        written(folder / "m.yaml", MANIFEST.format(version=2))
        assert until(lambda: pep.manifest.version == "2026.01.2")

    assert until(lambda: not [thread for thread in threading.enumerate() if thread.name == "pdp-project"])
    assert codes(pep) == {"engine.unavailable"}
    written(folder / "m.yaml", MANIFEST.format(version=3))
    assert (refreshed(pep), pep.manifest.version) == (None, "2026.01.2")


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_changed_policies_are_compiled_at_reload(pep: Pep, folder: Path) -> None:
    rego = Path(__file__).parents[2] / "examples/payments/policies"
    written(folder / "pdp.yaml", f"manifest: m.yaml\ngovernance: g.yaml\npolicies: [{rego}]\n")
    compiled = refreshed(pep), codes(pep)

    (folder / "own").mkdir()
    written(folder / "own" / "a.rego", "package custom.concerns.a\n\ndeny contain")
    written(folder / "pdp.yaml", "manifest: m.yaml\ngovernance: g.yaml\npolicies: [own]\n")

    assert compiled == (None, ALLOWED)
    assert "a.rego:3" in str(refreshed(pep))
    assert codes(pep) == ALLOWED
