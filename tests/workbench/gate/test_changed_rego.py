"""Rego that changed: at the gate its unit tests evaluate all of it, and scenarios notice each of its mutants."""

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
    """Names that are nearly a name: longer, shorter, in capitals, behind a blank."""
    return (f"{name}2", name[:-1], f"x{name}", name[1:], name.upper(), f" {name}")


def asked(subject: str, action: str, **expect: Any) -> dict[str, Any]:
    """A step that asks for a note past the contract."""
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
    """Scenarios, a concern with its unit tests, and the bundle of both."""

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
        """What came of the two checks: status and reasons."""
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


def test_a_concern_with_unit_tests_and_scenarios_that_notice_all(project: Project) -> None:
    project.write(ANN, EVE, WIRE, NEAR)

    assert project.checks() == {"unit-coverage": ("pass", []), "mutation": ("pass", [])}


def test_lines_that_no_unit_test_evaluates_and_mutants_that_no_scenario_notices(project: Project) -> None:
    """As a back door would be that somebody adds: nothing of theirs is about it."""
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


def test_without_unit_tests_it_says_what_to_do(project: Project) -> None:
    project.write(ANN, EVE, WIRE, NEAR)
    (project.folder / "policies" / PLACE).with_name("hours_test.rego").unlink()

    file = project.folder / "policies" / PLACE
    reason = f"{file}: lines 13-15: no unit test evaluates them: write one in hours_test.rego"
    assert project.checks("--skip", "mutation")["unit-coverage"] == ("fail", [reason])


def test_unit_tests_that_fail(project: Project) -> None:
    project.write(ANN, EVE, WIRE, test=TEST.replace("== 0", "== 1"))

    reasons = ["fails: data.custom.concerns.hours_test.test_ann"]
    assert project.checks("--skip", "mutation")["unit-coverage"] == ("fail", reasons)


def test_sources_are_those_of_the_bundle_wherever_they_are_named(project: Project) -> None:
    policies = project.folder / "policies"
    project.write(ANN, EVE, WIRE, NEAR, bundle="bundle.tar.gz")
    hint = "name the folders that the bundle was built from, with their unit tests: --policies DIR"
    refusal = [f"{PLACE}: no folder of policies has the text that the bundle has ({hint})"]
    whole: dict[str, tuple[str, list[str]]] = {"unit-coverage": ("pass", []), "mutation": ("pass", [])}

    assert project.checks() == {"unit-coverage": ("fail", refusal), "mutation": ("fail", refusal)}
    assert project.checks("--policies", policies) == whole
    assert project.checks("--policies", policies, "--policies", baseline_policies_path()) == whole

    written(policies / PLACE, RULE.replace('"eve"', '"bob"'))
    assert project.checks("--policies", policies) == {"unit-coverage": ("fail", refusal), "mutation": ("fail", refusal)}


def test_with_a_last_release_only_what_changed_is_looked_at(project: Project) -> None:
    project.write(ANN, rule=RULE)
    bundle = read_bundle(project.folder / "bundle.tar.gz")
    packed = pack_bundle(release=8, wasm=bundle.wasm, data=bundle.data, modules=bundle.modules)
    last = written(project.folder / "last.tar.gz", packed)

    assert project.checks("--last", last) == {"unit-coverage": ("pass", []), "mutation": ("pass", [])}


def test_of_the_baseline_its_own_unit_tests_and_scenarios_judge(project: Project) -> None:
    """A user who takes a newer baseline has no scenarios for its insides, and need not have them."""
    project.write(ANN, EVE, WIRE, NEAR)
    bundle = read_bundle(project.folder / "bundle.tar.gz")
    risk = "authz/concerns/risk/risk.rego"
    before = pack_bundle(
        release=8, wasm=bundle.wasm, data=bundle.data, modules={**bundle.modules, risk: f"{bundle.modules[risk]}\n"}
    )
    last = written(project.folder / "last.tar.gz", before)

    assert project.checks("--last", last) == {"unit-coverage": ("pass", []), "mutation": ("pass", [])}

    changed = bundle.modules[risk].replace('{"low", ', '{"none", "low", ')
    newer, modules = read_bundle(baseline_bundle_path()).release + 1, {**bundle.modules, risk: changed}
    packed = pack_bundle(release=newer, wasm=bundle.wasm, data=bundle.data, modules=modules)
    written(project.folder / "bundle.tar.gz", packed)
    statuses = {name: status for name, (status, _) in project.checks("--last", baseline_bundle_path()).items()}
    assert statuses == {"unit-coverage": "fail", "mutation": "fail"}
