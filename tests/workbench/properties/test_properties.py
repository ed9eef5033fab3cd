"""Properties are read with places, and proved or violated by a call. The solver and the engine are the real ones."""

import sys
from pathlib import Path
from typing import Any

import pytest

from pdp.errors import FileFaultsError
from pdp.opa.names import KnownNames
from pdp.workbench.properties.file import read_properties
from pdp.workbench.scenarios.files.suite import policy_modules, project_suite
from tests.support.command_line import pdp

pytestmark = pytest.mark.opa

REFUND = 'input.action.properties.tool == "refund_order"'
RECIPIENT = "input.context.arguments.recipient"
AMOUNT = "input.context.arguments.amount"


def stated(*properties: tuple[str, str, str]) -> str:
    """Return a file with properties: id, conditions, and what they exclude."""
    lines = ["properties:"]
    for name, when, excludes in properties:
        lines += [f"  - id: {name}", f"    title: the property {name}", "    when: |"]
        lines += [*(f"      {line}" for line in when.splitlines()), f"    {excludes}"]
    return "\n".join(lines) + "\n"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    assert pdp("init", tmp_path).code == 0
    monkeypatch.chdir(tmp_path)
    return tmp_path


ONE = "  - {id: a, title: t, never: ALLOW, "


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("properties: []\n", "properties.yaml:1:13: `properties` must not be empty"),
        (f"properties:\n{ONE}when: 'true', only: [DENY]}}\n", "2:5: needs one of `never: ALLOW` and `only: [DENY]`"),
        (f"properties:\n{ONE}wen: 'true'}}\n", "2:5: `properties[0].when` is missing"),
        (f"properties:\n{ONE}when: 'true'}}\n{ONE}when: 'true'}}\n", "3:10: `a` is the id of two properties"),
        (f'properties:\n{ONE}when: "a\\n\\nb"}}\n', "2:43: must be a block"),
        (stated(("a", "input.action.nam == 1", "never: ALLOW")), "5:7: `input.action.nam` does not exist"),
        (stated(("a", "\nnot data.authz.lib.approvals.valid", "never: ALLOW")),
         "6:11: `data.authz.lib.approvals.valid` does not exist"),
        (stated(("a", 'input.action.properties.tool == "refund_ordr"', "never: ALLOW")),
         "5:39: `input.action.properties.tool` is never `refund_ordr`"),
        (stated(("a", "# later", "never: ALLOW")), "4:11: has no condition"),
        (stated(("a", "not aproval.valid", "never: ALLOW")), "5:7: var aproval is unsafe"),
        (stated(("a", f"{REFUND}\n{AMOUNT} <", "never: ALLOW")), "7:1: unexpected } token"),
        (stated(("a", "http.send({})", "never: ALLOW")), "5:7: the builtin http.send is not allowed in policies"),
    ],
)  # fmt: skip
def test_faulty_property_is_reported_with_its_place(desk: Path, opa: Path, text: str, fault: str) -> None:
    file = desk / "properties.yaml"
    file.write_text(text)
    suite = project_suite(desk / "pdp.yaml")
    names = KnownNames([*suite.manifest.tools.values()], suite.data)

    with pytest.raises(FileFaultsError) as raised:
        read_properties(file, policy_modules(suite), names, opa)

    assert fault in "\n".join(f"{found.place}: {found.message}" for found in raised.value.faults)


def test_properties_are_proved_or_violated_by_a_call(desk: Path) -> None:
    (desk / "own.yaml").write_text(
        stated(
            ("scope", f'{REFUND}\nnot "desk.refund" in input.subject.properties.scopes', "only: [DENY]"),
            ("no-tool", "not manifest.entry", "only: [DENY]"),
            ("above-40", f"{REFUND}\n{AMOUNT} > 40\nnot approval.valid", "never: ALLOW"),
            ("large", f"{REFUND}\nnot number.at_most({AMOUNT}, 1000000)", "only: [DENY]"),
            ("with", f"{REFUND}\napproval.valid with input.context.call_digest as 1", "never: ALLOW"),
        )
    )
    done = pdp("prove", "own.yaml", "--json")
    answers: dict[str, Any] = {answer["id"]: answer for answer in done.json["properties"]}

    assert done.code == 1
    assert {name: answer["word"] for name, answer in answers.items()} == {
        "scope": "proved", "no-tool": "proved", "above-40": "violated", "large": "violated", "with": "not proved",
    }  # fmt: skip
    assert answers["no-tool"]["by"] == "authz.concerns.manifest.deny"
    assert answers["above-40"]["request"]["context"]["arguments"]["amount"] == 50
    assert answers["above-40"]["verdict"] == "ALLOW"
    assert answers["large"]["verdict"] in {"ALLOW", "STEP_UP"}
    assert answers["with"]["term"].startswith("`with`: approval.valid with ")


def test_property_of_a_weakened_rule_is_violated(desk: Path) -> None:
    rule = desk / "policies/custom/concerns/replies/replies.rego"
    (desk / "properties.yaml").write_text(
        stated(
            (
                "domain",
                f'recipient := {RECIPIENT}\nnot split(recipient, "@")[1] in data.settings.replies.domains',
                "only: [DENY]",
            )
        )
    )
    first = pdp("prove", "--markdown")
    rule.write_text(
        rule.read_text().replace(
            "\tnot _allowed(recipient)", '\trecipient != "eve@stranger.example"\n\tnot _allowed(recipient)'
        )
    )
    then = pdp("prove")

    assert (first.code, first.out) == (0, "## Properties: 1 proved\n\n- proved: the property domain\n")
    assert then.code == 1
    assert then.out.startswith("violated: the property domain: {")
    assert '"recipient":"eve@stranger.example"' in then.out


def test_property_that_no_request_meets_is_a_fault(desk: Path) -> None:
    (desk / "own.yaml").write_text(stated(("never", f"{REFUND}\n{AMOUNT} > 7\n{AMOUNT} < 5", "never: ALLOW")))

    done = pdp("prove", "own.yaml")

    assert (done.code, done.out) == (2, "")
    assert "own.yaml:4:11: can never hold\n" in done.err


def test_prove_without_the_solver_names_the_extra(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pdp.workbench.proof.solver", raising=False)
    monkeypatch.setitem(sys.modules, "z3", None)

    done = pdp("prove")

    assert done.code == 2
    assert "tool-pdp[proof]" in done.err
