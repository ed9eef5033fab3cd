"""A small project for tests of scenarios. One tool reads notes, and a wire tool needs approval."""

import json
from pathlib import Path
from typing import Any

from pdp.engine.protocol import EngineName
from pdp.workbench.scenarios.files.suite import Suite, load_suite
from pdp.workbench.scenarios.results import ScenarioResult
from pdp.workbench.scenarios.running.engines import open_suite_engine
from pdp.workbench.scenarios.running.runner import Runner

NOTE = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
WIRE = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}

MANIFEST: dict[str, Any] = {
    "manifest_version": "7",
    "tools": [
        {
            "name": "read_note", "version": "1.0.0", "description": "Read a note", "schema": NOTE,
            "effect_class": "read-internal", "risk_tier": "low", "scopes": ["notes.read"],
        },
        {
            "name": "send_wire", "version": "1.0.0", "description": "Send a wire", "schema": WIRE,
            "risk_tier": "high", "scopes": ["wires.send"],
            "limits": [{"limit": "wires", "argument": "amount"}],
            "idempotency": {"required": True, "key": "derive(args)"},
            "approval": {"approvers": ["wires.approver"], "quorum": 1, "expires": "PT1H"},
        },
    ],
}  # fmt: skip

SESSION: dict[str, Any] = {
    "claims": {"sub": "ann", "emts": {"notes.read": True, "wires.send": True}, "limits": {"wires": 100}},
    "purpose": "notes",
}
READ = {"tool": "read_note", "arguments": {"id": "n-1"}}
BIG = {"tool": "send_wire", "arguments": {"amount": 500}}
BOB = {"claims": {"sub": "bob", "roles": ["wires.approver"]}}


def project(folder: Path, *scenarios: Any, name: str = "scenarios.json", **settings: Any) -> Path:
    """Write a manifest and a scenario file with these scenarios, and return the scenario file."""
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    whole = {"manifest": "manifest.json", "session": SESSION, **settings, "scenarios": list(scenarios)}
    file = folder / name
    file.write_text(json.dumps(whole))
    return file


def one(**fields: Any) -> dict[str, Any]:
    """Return a scenario with these `steps`, or with one step that has these fields."""
    return {"name": "it", **fields}


def ran(file: Path, engine: EngineName = "embedded") -> list[ScenarioResult]:
    suite = load_suite(file)
    with open_suite_engine(suite, engine) as opened:
        return Runner(suite, opened).run_all()


def ran_one(folder: Path, scenario: Any, **settings: Any) -> ScenarioResult:
    """Run one scenario in a new project and return the result."""
    return ran(project(folder, scenario, **settings))[0]


def loaded(folder: Path, *scenarios: Any, **settings: Any) -> Suite:
    """Load the scenario suite of a new project with these scenarios."""
    return load_suite(project(folder, *scenarios, **settings))


def differing(result: ScenarioResult) -> list[tuple[str, Any, Any]]:
    """Return the key, the expected value and the actual value of each mismatch in the result of a scenario."""
    return [(each.key, each.expected, each.actual) for step in result.steps for each in step.mismatches]
