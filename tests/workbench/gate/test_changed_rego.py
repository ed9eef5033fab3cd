"""The release gate requires unit tests for each changed line of Rego, and scenarios that kill its mutants."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pdp.engine.bundle.file import baseline_bundle_path, pack_bundle, read_bundle
from pdp.opa.modules import baseline_policies_path
from tests.support.command_line import pdp, written
from tests.support.scenario_files import READ, one
from tests.support.scenario_files import project as scenario_project

pytestmark = pytest.mark.opa

PLACE = "custom/concerns/hours/hours.rego"
RULE = Path(__file__).with_name("rule.rego").read_text()
MORE = """
# METADATA
# title: Too long
# description: No note has this name.
# custom:
#   code: hours.long
deny contains reason.new(rego.metadata.rule(), {}) if {
	input.action.name == "read_note"
	input.resource.id == "never"
}
"""
TEST = """\
package custom.concerns.hours_test

import data.custom.concerns.hours

test_eve if count(hours.deny) == 1 with input as {"action": {"name": "read_note"}, "subject": {"id": "eve"}}

test_ann if count(hours.deny) == 0 with input as {"action": {"name": "read_note"}, "subject": {"id": "ann"}}
"""
ANN = one(name="ann reads", golden=True, propose=READ, expect={"verdict": "ALLOW"})
EVE = {
    "name": "eve does not", "session": {"claims": {"sub": "eve"}}, "propose": READ,
    "expect": {"verdict": "DENY", "codes": ["hours.closed"]},
}  # fmt: skip
WIRE = {
    "name": "eve may send", "session": {"claims": {"sub": "eve"}}, "expect": {"verdict": "ALLOW"},
    "propose": {"tool": "send_wire", "arguments": {"amount": 1}},
}  # fmt: skip


def near(name: str) -> tuple[str, ...]:
    """Return variants of a name that a sloppy comparison would accept, for example a longer name."""
    return (f"{name}2", name[:-1], f"x{name}", name[1:], name.upper(), f" {name}")


def asked(subject: str, action: str, **expect: Any) -> dict[str, Any]:
    """Return a scenario with a raw request to read a note. The contract does not check the request."""
    call = {"tool": "read_note", "manifest_version": "$manifest_version", "manifest_digest": "$manifest_digest"}
    request = {
        "subject": {"type": "user", "id": subject, "properties": {"scopes": ["notes.read"]}},
        "action": {"name": action, "properties": call},
        "resource": {"type": "tool", "id": "read_note", "properties": {}},
        "context": {"arguments": {"id": "n-1"}},
    }
    return {"request": request, "expect": expect}


NEAR = {
    "name": "whoever has nearly eve's name reads, and what is nearly the action is none",
    "steps": [
        *(asked(subject, "read_note", verdict="ALLOW") for subject in near("eve")),
        *(asked("eve", action, verdict="DENY", codes=["manifest.unknown_action"]) for action in near("read_note")),
    ],
}


@dataclass(frozen=True)
class Project:
    """A project folder with scenarios, a concern, unit tests of the concern, and the bundle built from the folder."""

    folder: Path

    def write(self, *scenarios: Any, rule: str = RULE, test: str = TEST, **settings: Any) -> None:
        scenario_project(self.folder, *scenarios, **(settings or {"policies": ["policies"]}))
        place = self.folder / "policies" / PLACE
        place.parent.mkdir(parents=True, exist_ok=True)
        written(place, rule)
        written(place.with_name("hours_test.rego"), test)
        options = ("--release", 9, "-m", self.folder / "manifest.json", "--policies", self.folder / "policies")
        assert pdp("bundle", "build", "-o", self.folder / "bundle.tar.gz", *options).code == 0

    def checks(self, *options: object) -> dict[str, tuple[str, list[str]]]:
        """Run the gate. Return status and reasons of the checks `unit-coverage` and `mutation`."""
        arguments = ("--bundle", self.folder / "bundle.tar.gz", "--json", "--skip", "loosening", "--skip", "packs")
        done = pdp("release", "check", self.folder / "scenarios.json", *arguments, *options)
        names = ("unit-coverage", "mutation")
        return {
            check["name"]: (check["status"], check["reasons"])
            for check in done.json["checks"]
            if check["name"] in names
        }


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_release_gate_passes_a_new_concern_with_unit_tests_and_scenarios(project: Project) -> None:
    project.write(ANN, EVE, WIRE, NEAR)

    assert project.checks() == {"unit-coverage": ("pass", []), "mutation": ("pass", [])}


def test_release_gate_fails_for_untested_lines_and_surviving_mutants_of_changed_rego(project: Project) -> None:
    project.write(ANN, EVE, WIRE, NEAR, rule=RULE + MORE)
    file = project.folder / "policies" / PLACE

    checks = project.checks()

    reason = f"{file}: lines 23-25: no unit test evaluates them: write one in hours_test.rego"
    assert checks["unit-coverage"] == ("fail", [reason])
    status, survivors = checks["mutation"]
    assert status == "fail"
    assert survivors
    assert all(line.startswith((f"{file}:23: ", f"{file}:24: ", f"{file}:25: ")) for line in survivors)

    ids = [line.rpartition(" ")[2] for line in survivors]
    written(project.folder / "mutants.yaml", [{"mutant": mutant, "reason": "no note has it"} for mutant in ids])
    assert project.checks()["mutation"] == ("pass", [])


def test_gate_reports_missing_unit_tests_with_a_hint(project: Project) -> None:
    project.write(ANN, EVE, WIRE, NEAR)
    (project.folder / "policies" / PLACE).with_name("hours_test.rego").unlink()

    file = project.folder / "policies" / PLACE
    reason = f"{file}: lines 13-15: no unit test evaluates them: write one in hours_test.rego"
    assert project.checks("--skip", "mutation")["unit-coverage"] == ("fail", [reason])


def test_gate_reports_failing_unit_tests(project: Project) -> None:
    project.write(ANN, EVE, WIRE, test=TEST.replace("== 0", "== 1"))

    reasons = ["fails: data.custom.concerns.hours_test.test_ann"]
    assert project.checks("--skip", "mutation")["unit-coverage"] == ("fail", reasons)


def test_gate_fails_if_policy_sources_differ_from_the_bundle(project: Project) -> None:
    policies = project.folder / "policies"
    project.write(ANN, EVE, WIRE, NEAR, bundle="bundle.tar.gz")
    hint = "pass the folders from which the bundle was built, with their unit tests: --policies DIR"
    refusal = [f"{PLACE}: no policy folder has this module with the text of the bundle ({hint})"]
    whole: dict[str, tuple[str, list[str]]] = {"unit-coverage": ("pass", []), "mutation": ("pass", [])}

    assert project.checks() == {"unit-coverage": ("fail", refusal), "mutation": ("fail", refusal)}
    assert project.checks("--policies", policies) == whole
    both = project.checks("--policies", policies, "--policies", baseline_policies_path(), "--skip", "mutation")
    assert both["unit-coverage"] == whole["unit-coverage"]

    written(policies / PLACE, RULE.replace('"eve"', '"bob"'))
    assert project.checks("--policies", policies) == {"unit-coverage": ("fail", refusal), "mutation": ("fail", refusal)}


def test_release_gate_does_not_check_unchanged_rego_modules(project: Project) -> None:
    project.write(ANN, rule=RULE)
    bundle = read_bundle(project.folder / "bundle.tar.gz")
    packed = pack_bundle(release=8, wasm=bundle.wasm, data=bundle.data, modules=bundle.modules)
    last = written(project.folder / "last.tar.gz", packed)

    assert project.checks("--last", last) == {"unit-coverage": ("pass", []), "mutation": ("pass", [])}


def test_gate_checks_baseline_modules_with_baseline_tests(project: Project) -> None:
    project.write(ANN, EVE, WIRE, NEAR)
    bundle = read_bundle(project.folder / "bundle.tar.gz")
    path = "authz/concerns/idempotency/idempotency.rego"  # the baseline's module with the fewest mutants
    text = bundle.modules[path]
    before = pack_bundle(release=8, wasm=bundle.wasm, data=bundle.data, modules={**bundle.modules, path: f"{text}\n"})
    last = written(project.folder / "last.tar.gz", before)

    assert project.checks("--last", last) == {"unit-coverage": ("pass", []), "mutation": ("pass", [])}

    changed = text.replace('idempotency_key != ""', 'idempotency_key != " "')
    newer, modules = read_bundle(baseline_bundle_path()).release + 1, {**bundle.modules, path: changed}
    packed = pack_bundle(release=newer, wasm=bundle.wasm, data=bundle.data, modules=modules)
    written(project.folder / "bundle.tar.gz", packed)
    statuses = {name: status for name, (status, _) in project.checks("--last", baseline_bundle_path()).items()}
    assert statuses == {"unit-coverage": "fail", "mutation": "fail"}
