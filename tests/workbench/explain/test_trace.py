"""The trace of a request shows which rules fired, where each other rule stopped, and which values the rules read."""

from pathlib import Path
from typing import Any

import pytest

from pdp.json import canonical
from pdp.opa.modules import Module
from pdp.workbench.explain.trace import Condition, RuleRun, Seen, trace

pytestmark = pytest.mark.opa

DECISION, CONCERN = (Path(__file__).with_name(f"{name}.rego").read_text() for name in ("decision", "concern"))

MODULES = {
    "authz/decision.rego": Module(Path("p/decision.rego"), DECISION, custom=False),
    "authz/concerns/c/c.rego": Module(Path("p/c.rego"), CONCERN, custom=False),
}


def runs(opa: Path, body: Any) -> dict[str, RuleRun]:
    found, _ = trace(opa, MODULES, {"settings": {"least": 2}}, canonical(body))
    return {str(run.site.code): run for run in found}


def test_trace_shows_the_condition_at_which_each_rule_stopped(opa: Path) -> None:
    found = runs(opa, {"numbers": [1, 7, 2], "subject": {"name": "y"}})
    assert {code: (run.asked, run.fired) for code, run in found.items()} == {
        "c.iterates": (True, False),
        "c.asks": (True, False),
        "c.every": (True, False),
        "decision.invalid": (False, False),
    }
    # The rule tries several values. The trace shows the attempt that got furthest, with the value 7.
    assert found["c.iterates"].stopped == Condition("number < 5", "p/c.rego", 8, (Seen("number", 7, defined=True),))
    assert found["c.asks"].stopped == Condition(
        "_helped",
        "p/c.rego",
        13,
        (Seen("_helped", None, defined=False),),
        (
            Condition('input.subject.name == "x"', "p/c.rego", 15, (Seen("input.subject.name", "y", defined=True),)),
            Condition("not _small(input.numbers)", "p/c.rego", 19, (Seen("input.numbers", [1, 7, 2], defined=True),)),
        ),
    )
    assert found["c.every"].stopped == Condition(
        "every number in input.numbers",
        "p/c.rego",
        27,
        (Seen("input.numbers", [1, 7, 2], defined=True),),
        (Condition("number > 2", "p/c.rego", 28, (Seen("number", 1, defined=True),)),),
    )


def test_trace_shows_no_failed_condition_for_a_fired_rule(opa: Path) -> None:
    found = runs(opa, {"numbers": [3], "subject": {"name": "x"}})
    assert {code: (run.fired, run.stopped is None) for code, run in found.items()} == {
        "c.iterates": (True, True),
        "c.asks": (True, True),
        "c.every": (True, True),
        "decision.invalid": (False, True),
    }


def test_rule_of_a_concern_that_is_not_evaluated_has_no_failed_condition(opa: Path) -> None:
    found = runs(opa, {"broken": True})
    assert {code: (run.asked, run.fired, run.stopped) for code, run in found.items()} == {
        "c.iterates": (False, False, None),
        "c.asks": (False, False, None),
        "c.every": (False, False, None),
        "decision.invalid": (True, True, None),
    }


def test_trace_reports_that_the_evaluation_of_the_policy_failed(opa: Path) -> None:
    text = DECISION.replace("if true", "if true\n\ndecision := 2")
    broken = {"authz/decision.rego": Module(Path("p"), text, custom=False)}

    found, unknown = trace(opa, broken, {}, b"{}")

    assert found == ()
    assert str(unknown).startswith(": OPA cannot evaluate the query: eval_conflict_error: rule data.authz.decision ")
