"""`pdp doctor` reports each problem of a project with its location and a hint."""

from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.command_line import pdp
from tests.support.hostile_opa import ALLOW, HostileOpa, answering, result

MANIFEST = """\
manifest_version: 2026.07.1
tools:
  - name: read_note
    description: Read.
    risk_tier: low
    scopes: [notes.read]
    schema: {type: object, properties: {n: {type: integer, minimum: 1, maximum: 9, description: N.}}}
  - name: send_wire
    description: Send.
    risk_tier: medium
    scopes: [wires.send]
    schema: {type: object, required: [amount], properties: {amount: {type: integer, description: Amount.}}}
"""
GOVERNANCE = """\
actions:
  send_wire:
    limits: [{limit: wires.most, argument: amount}]
    approval: {approvers: [wires.lead]}
"""
SCENARIOS = """\
manifest: manifest.yaml
governance: governance.yaml
session:
  claims: {sub: ann, emts: {notes.read: true, wires.send: true}, limits: {wires.most: 9}}
  time: "2026-01-01T10:00:00Z"
scenarios:
  - name: a note is read
    propose: {tool: read_note, arguments: {n: 1}}
    expect: {verdict: ALLOW}
  - name: a large wire is approved
    steps:
      - propose: {tool: send_wire, arguments: {amount: 10}}
        expect: {verdict: STEP_UP}
      - approve: {claims: {sub: bob, roles: [wires.lead]}}
        expect: {approval: granted}
      - propose: {tool: send_wire, arguments: {amount: 10}}
        expect: {verdict: ALLOW}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pdp.yaml").write_text("manifest: manifest.yaml\ngovernance: governance.yaml\nscenarios: [s.yaml]\n")
    for name, text in (("manifest.yaml", MANIFEST), ("governance.yaml", GOVERNANCE), ("s.yaml", SCENARIOS)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_doctor_reports_no_problem_in_a_valid_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for argument in ((project,), (project / "pdp.yaml",)):
        assert (pdp("doctor", *argument).code, pdp("doctor", *argument).out) == (0, "no problems\n")
    monkeypatch.chdir(project)
    assert pdp("doctor", "--json").json == {"problems": []}


@pytest.mark.parametrize(
    ("file", "old", "new", "problems"),
    [
        ("manifest.yaml", "[notes.read]", "[notes.raed]", [
            ("manifest.yaml", 3, "no scenario allows read_note", "add a scenario whose session may call the tool"),
            ("manifest.yaml", 6, "no session holds the scope notes.raed, which read_note requires",
             "did you mean `notes.read`?"),
            ("s.yaml", 7, "the scenario `a note is read` fails", "run: pdp test"),
        ]),
        ("governance.yaml", "limit: wires.most", "limit: accounts.sum", [
            ("governance.yaml", 3, "no session holds the limit accounts.sum, which send_wire requires",
             "add the {kind} to a session, or correct its name"),
        ]),
        ("s.yaml", "roles: [wires.lead]}}\n        expect: {approval: granted}",
         "roles: [wires.lad]}}\n        expect: {refused: not_an_approver}", [
            ("governance.yaml", 4, "no approver in the scenarios has a role that may approve send_wire: wires.lead",
             "add an `approve` step with such a role, or correct the role's name"),
            ("manifest.yaml", 8, "no scenario allows send_wire", "add a scenario whose session may call the tool"),
            ("s.yaml", 10, "the scenario `a large wire is approved` fails", "run: pdp test"),
        ]),
        ("governance.yaml", "approvers: [wires.lead]", "approvers: []", [
            ("governance.yaml", 4, "no approvers left: the list is empty, or both files name no common role",
             "name a role; if both files state approvers, name it in both"),
            ("manifest.yaml", 8, "no scenario allows send_wire", "add a scenario whose session may call the tool"),
            ("s.yaml", 10, "the scenario `a large wire is approved` fails", "run: pdp test"),
        ]),
        ("governance.yaml", "    approval: {approvers: [wires.lead]}\n", "", [
            ("manifest.yaml", 8, "no scenario allows send_wire", "add a scenario whose session may call the tool"),
            ("manifest.yaml", 8, "send_wire may need an approval but names no approvers",
             "add `approval: {approvers: [ROLE]}`"),
            ("s.yaml", 10, "the scenario `a large wire is approved` fails", "run: pdp test"),
        ]),
        ("manifest.yaml", "minimum: 1, maximum: 9", "minimum: 9, maximum: 1", [
            ("manifest.yaml", 3, "no scenario allows read_note", "add a scenario whose session may call the tool"),
            ("manifest.yaml", 7, "no value matches this schema: `minimum` 9 and `maximum` 1 are reversed",
             "correct the schema: every call or result with this part is rejected"),
            ("s.yaml", 7, "the scenario `a note is read` fails", "run: pdp test"),
        ]),
    ],
)  # fmt: skip
def test_doctor_shows_location_and_hint_of_each_problem(
    project: Path, file: str, old: str, new: str, problems: list[tuple[str, int, str, str]]
) -> None:
    text = (project / file).read_text()
    assert old in text
    (project / file).write_text(text.replace(old, new))

    done = pdp("doctor", project, "--json")
    found = [
        (Path(problem["file"]).name, problem["line"], problem["message"], problem["hint"])
        for problem in done.json["problems"]
    ]
    assert (done.code, found) == (1, problems)
    lines = pdp("doctor", project).out.splitlines()
    assert [line.partition(f"{project}/")[2] or line for line in lines] == [
        *(f"{name}:{line}: {message}; {hint}" for name, line, message, hint in problems),
        f"{len(problems)} problem{'' if len(problems) == 1 else 's'}",
    ]


def test_doctor_reports_scenarios_that_lack_the_policies_of_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the project file names the custom policies, so the scenarios run without them."""
    monkeypatch.chdir(project)
    with Path("pdp.yaml").open("a") as file:
        file.write("policies: [rules]\n")
    hint = "add the folder to `policies` in this file; paths are relative to the file"
    done = pdp("doctor")
    assert (done.code, done.out) == (
        1,
        f"s.yaml:1: these scenarios do not load rules; {hint}\n1 problem\n",
    )

    Path("s.yaml").write_text(SCENARIOS.replace("manifest.yaml", "other.yaml"))
    Path("other.yaml").write_text(MANIFEST)
    assert "decide without" not in pdp("doctor").out


def test_doctor_reports_missing_manifest_or_scenarios(project: Path) -> None:
    (project / "pdp.yaml").write_text("manifest: manifest.yaml\n")

    assert pdp("doctor", project).code == 2
    assert pdp("doctor", project / "missing.yaml").code == 2


RULE = """\
# METADATA
# title: Hours
# description: The desk is open.
package custom.concerns.hours

import data.authz.lib.reason

# METADATA
# title: Closed
# description: The desk is closed.
# custom:
#   code: hours.closed
deny contains reason.new(rego.metadata.rule(), {}) if input.context.desk == "closed"
"""


@pytest.mark.opa
def test_doctor_reports_a_rule_that_no_scenario_reaches(project: Path) -> None:
    rule = project / "policies/custom/concerns/hours/hours.rego"
    rule.parent.mkdir(parents=True)
    rule.write_text(RULE)
    (project / "s.yaml").write_text("policies: [policies]\n" + SCENARIOS)
    hint = "add a scenario that expects the rule's code, or remove the rule"

    assert pdp("doctor", project, "--json").json["problems"] == [
        {
            "file": str(rule), "line": 13, "column": 1, "kind": "fault",
            "message": "no scenario reaches the rule of hours.closed", "hint": hint,
        }
    ]  # fmt: skip


@pytest.mark.opa
def test_doctor_reports_no_problem_in_the_payments_example() -> None:
    assert pdp("doctor", ROOT / "examples/payments").out == "no problems\n"


def test_doctor_reports_an_unhealthy_or_unsupported_opa(project: Path) -> None:
    answer = result(ALLOW, b'"provenance":{"version":"1.22.0"}')
    with HostileOpa(answering(answer)) as opa:
        text = (project / "pdp.yaml").read_text()
        (project / "pdp.yaml").write_text(f"{text}engine: sidecar\nopa_url: {opa.url}\n")
        done = pdp("doctor", project, "--json")
    [problem] = done.json["problems"]
    assert (done.code, Path(problem["file"]).name, problem["line"], problem["hint"]) == (
        1, "pdp.yaml", 5, "see: pdp opa status",
    )  # fmt: skip
    assert problem["message"].startswith(f"OPA at {opa.url} is version 1.22.0, which loses rules")

    done = pdp("doctor", project, "--json")  # OPA has been stopped before this command runs.
    assert (done.code, [problem["message"].partition(": ")[0] for problem in done.json["problems"]]) == (
        1, [f"OPA at {opa.url} cannot be reached"],
    )  # fmt: skip
