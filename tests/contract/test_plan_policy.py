"""Planning policy: its file, its types, and what the policy says of whole plans."""

from __future__ import annotations

import pytest

from pdp.contract.planning import PlanningPolicy, PlanningRule, load_planning
from pdp.errors import FileFaultsError, UsageError
from tests.support import ROOT

FILE = ROOT / "examples/clinical/planning.yaml"


def test_the_examples_file() -> None:
    policy = load_planning(FILE)

    assert policy == PlanningPolicy(
        rules={
            "MEDICAL_ANSWERS_CITE": PlanningRule(
                rule="For medical questions, a plan includes both a retrieval and the links to its sources",
                purposes=("clinical.answer",),
                requires=("retrieve_evidence", "link_sources"),
            ),
            "LINKS_COME_AFTER": PlanningRule(
                rule="Sources are linked after they were retrieved",
                tool="link_sources",
                only_after=("retrieve_evidence",),
            ),
        }
    )
    policy.check_tools({"retrieve_evidence", "link_sources"})


def test_as_data() -> None:
    policy = PlanningPolicy(rules={"ONE": PlanningRule(tool="c", at_most=1), "BOTH": PlanningRule(requires=("a", "b"))})

    assert policy.as_data() == {
        "directory": {"planning": {"ONE": {"tool": "c", "at_most": 1}, "BOTH": {"requires": ["a", "b"]}}}
    }


def test_a_rule_about_a_tool_that_is_not_there() -> None:
    policy = PlanningPolicy(rules={"ONE": PlanningRule(tool="serch_web", at_most=1)})

    with pytest.raises(UsageError) as caught:
        policy.check_tools({"search_web"})

    assert str(caught.value) == (
        "planning rule `ONE`: `serch_web` is not a tool of the manifest (did you mean `search_web`?)"
    )


FORM = "write one of `requires: [...]`, `tool` with `at_most`, `tool` with `only_after: [...]`"
R = "`directory.planning.R"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        *(
            (rule, f"8: {R}` is not a planning rule ({FORM})")
            for rule in (
                "{requires: [a], tool: b, at_most: 1}", "{}", "{at_most: 1}", "{tool: a}", "{only_after: [a]}",
                "{tool: a, at_most: 1, only_after: [b]}", "{tool: a, requires: [b]}",
            )
        ),
        ("{requires: []}", f"19: {R}.requires` must not be empty"),
        ("{tool: a, at_most: -1}", f"27: {R}.at_most` must be at least 0, not `-1`"),
        ("{tool: a, at_most: true}", f"27: {R}.at_most` must be a whole number, not true"),
        ("{requires: [a], purposes: []}", f"34: {R}.purposes` must not be empty"),
    ],
)  # fmt: skip
def test_a_faulty_rule(rule: str, message: str) -> None:
    text = f"directory:\n  planning:\n    R: {rule}\n  corpora: {{}}\n".encode()
    with pytest.raises(FileFaultsError) as caught:
        load_planning("planning.yaml", text=text)

    (fault,) = caught.value.faults
    shown = f"{fault.place}: {fault.message}" + (f" ({fault.hint})" if fault.hint else "")
    assert shown == f"planning.yaml:3:{message}"


def test_every_fault_at_once() -> None:
    text = b"directory:\n  planning:\n    R: {require: [a]}\n    Q: 1\n"
    with pytest.raises(FileFaultsError) as caught:
        load_planning("planning.yaml", text=text)

    assert {fault.place.line for fault in caught.value.faults} == {3, 4}
