"""Refactorings are proved equal, and no change of a decision is."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from pdp.workbench.proof.answers import HeadAnswer
from pdp.workbench.proof.compare import compare
from pdp.workbench.proof.rules import heads, policy_rules
from pdp.workbench.proof.translate import TranslatedPolicy
from tests.workbench.proof.changes import Edits, all_modules, changed, refactorings

pytestmark = pytest.mark.opa

EFFECTS = "authz/concerns/effects/effects.rego"
SCOPES = "authz/concerns/scopes/scopes.rego"
SANCTIONS = "custom/concerns/sanctions/sanctions.rego"
GATE = '_gate("commit-high") := ["scope", "policy"]'
QUICK = (
    "a value extracted into a helper",
    "a helper inlined",
    "the negation of a disjunction split",
    "a count compared differently",
    "`else` written as two rules",
    "`in` written as three rules",
    "a count written as `some`",
    "a path named",
)
NARROWER = (
    '_clear if {\n\tinput.context.sanctions_status == "clear"\n\tis_string(input.context.looked_up_beneficiary)\n}'
)
CHANGES: Mapping[str, tuple[Edits, set[str]]] = {
    "an exemption": ({SANCTIONS: [['== "clear"', 'in {"clear", "pending"}']]}, {"not proved time"}),
    "a condition more": (
        {SANCTIONS: [['_clear if input.context.sanctions_status == "clear"', NARROWER]]},
        {"narrower "},
    ),
    "a rule removed": ({SANCTIONS: [["\tnot _clear\n", "\tnot _clear\n\tfalse\n"]]}, {"not proved time"}),
    "a detail that the decision reads": ({EFFECTS: [['"clauses": _clauses}', '"clauses": []}']]}, {"not proved time"}),
    "another code": ({SCOPES: [["code: scopes.missing", "code: scopes.lacking"]]}, {"narrower "}),
    "another text": ({SCOPES: [["# description: ", "# description: Also, "]]}, {"equal "}),
    "definitions that conflict": (
        {EFFECTS: [[GATE, f'{GATE}\n\n_gate("commit-high") := []']]},
        {"not proved definitions that may conflict"},
    ),
    "`with`": (
        {SANCTIONS: [["\tnot _clear\n", "\tnot _clear with input.context.sanctions_status as 1\n"]]},
        {"not proved `with`"},
    ),
}


def short(answer: HeadAnswer) -> str:
    return f"{answer.word} {answer.term.partition(':')[0]}"


def test_all_heads_of_baseline_and_examples_are_translated(opa: Path) -> None:
    rules = policy_rules(opa, all_modules(), all_modules())
    # A concern of the tests calculates with rules that have paths in their heads.
    names = [name for name in sorted(heads(rules)) if "calculates" not in name]
    one, other = TranslatedPolicy(rules), TranslatedPolicy(rules)

    assert len(names) == 39
    assert [one.rule(name) for name in names] == [other.rule(name) for name in names]


@pytest.mark.parametrize("name", QUICK)
def test_refactoring_is_proved_equal(name: str, opa: Path) -> None:
    answers = compare(all_modules(), changed(refactorings()[name]), opa=opa)

    assert answers
    assert {short(answer) for answer in answers} == {"equal "}
    assert all(answer.items and not answer.codes for answer in answers)


@pytest.mark.parametrize("name", CHANGES)
def test_change_of_a_decision_is_not_proved_equal(name: str, opa: Path) -> None:
    edits, expected = CHANGES[name]

    answers = compare(all_modules(), changed(edits), opa=opa, known=None)

    assert {short(answer) for answer in answers} == expected


def test_reordered_rules_are_equal_without_a_question(opa: Path) -> None:
    assert not compare(all_modules(), changed(refactorings()["a table reordered"]), opa=opa)
