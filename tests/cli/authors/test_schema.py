"""`pdp schema` prints JSON Schemas that accept every file of the repository, and no misspelled key."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from pdp.cli import run_command
from pdp.cli.schemas import KINDS, field_texts, schema_of
from pdp.documents import read_document

_ROOT = Path(__file__).parents[3]
_FILES = {
    "manifest": (
        "examples/*/manifest.*", "examples/agentdojo/*[!e].json", "pdp/*/[ps]*/manifest.yaml",
        "tests/scenarios/manifest.yaml", "tests/scenarios/spending.yaml",
    ),
    "governance": ("examples/*/*governance.yaml", "pdp/*/[ps]*/governance.yaml", "tests/scenarios/*governance.yaml"),
    "project": ("examples/*/pdp.yaml", "pdp/*/[ps]*/pdp.yaml"),
    "session": (
        "examples/*/session.json", "examples/*/approver.yaml", "pdp/*/[ps]*/session.yaml",
        "pdp/*/[ps]*/approver.yaml",
    ),
    "scenarios": ("examples/*/*scenarios.yaml", "pdp/*/[ps]*/*scenarios.yaml", "tests/scenarios/*.scenarios.yaml"),
    "service": ("deploy/service.yaml",),
}  # fmt: skip


def _misspelled(value: Any) -> Iterator[Any]:
    """Yield copies of a file with a misspelled field at the top, and in its first tool, scenario or action."""
    first = next(iter(value))
    yield {f"{name}x" if name == first else name: part for name, part in value.items()}
    for listed in ("tools", "scenarios"):
        if value.get(listed) and isinstance(value[listed][0], dict):
            yield {**value, listed: [{**value[listed][0], "nmae": 1}, *value[listed][1:]]}
    for action, rules in value.get("actions", {}).items():
        yield {**value, "actions": {action: {**rules, "scope": []}}}


@pytest.mark.parametrize("kind", KINDS)
def test_schema_accepts_every_file_and_rejects_misspelled_keys(kind: str) -> None:
    schema = jsonschema_rs.Draft202012Validator(schema_of(kind))
    files = [file for pattern in _FILES[kind] for file in sorted(_ROOT.glob(pattern))]
    assert len(files) >= len(_FILES[kind])
    for file in files:
        value = read_document(file).value
        assert [error.message for error in schema.iter_errors(value)] == [], file
        for wrong in _misspelled(value):
            assert not schema.is_valid(wrong), file


def test_schema_accepts_the_spellings_of_the_tool_registry() -> None:
    schema = jsonschema_rs.Draft202012Validator(schema_of("manifest"))
    signature = {"request": {"type": "object"}, "response": "#/$defs/Answer"}
    record = {
        "id": "tools.lookup", "version": "1.0.0", "signature": signature, "markings": [{"allowed": "pii"}, "phi"],
        "idempotency_required": True, "effectClass": "read-internal",
    }  # fmt: skip
    assert schema.is_valid(record | {"$defs": {"Answer": {"type": "object"}}})
    assert schema.is_valid({"manifestVersion": "1", "ontology": "ontology.json", "tools": [record | {"name": "look"}]})
    assert not schema.is_valid(record | {"signature": {"request": {}, "answer": {}}})
    assert not schema.is_valid({"tools": [record]})


def test_command_prints_the_schema_with_texts_of_fields(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "Project": {"says": "The files of a project."},
        "Project.manifest": {"says": "The manifest.", "example": "manifest.yaml"},
    }
    monkeypatch.setattr("pdp.cli.schemas.field_texts", lambda: texts)
    assert run_command(["schema", "project"]) == 0
    project = json.loads(capsys.readouterr().out)["$defs"]["Project"]
    assert project["description"] == "The files of a project."
    assert project["properties"]["manifest"]["description"] == "The manifest."
    assert project["properties"]["manifest"]["examples"] == ["manifest.yaml"]
    assert "description" not in project["properties"]["governance"]
    assert run_command(["schema", "manfest"]) == 2
    assert isinstance(field_texts(), dict)
