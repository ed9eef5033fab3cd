"""For one request: which rules fired, and where each of the others stopped, with the values that it saw."""

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


def test_where_rules_stopped(opa: Path) -> None:
    found = runs(opa, {"numbers": [1, 7, 2], "subject": {"name": "y"}})
    assert {code: (run.asked, run.fired) for code, run in found.items()} == {
        "c.iterates": (True, False),
        "c.asks": (True, False),
        "c.every": (True, False),
        "decision.invalid": (False, False),
    }
    # The 7 came furthest.
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


def test_what_fired_has_not_stopped(opa: Path) -> None:
    found = runs(opa, {"numbers": [3], "subject": {"name": "x"}})
    assert {code: (run.fired, run.stopped is None) for code, run in found.items()} == {
        "c.iterates": (True, True),
        "c.asks": (True, True),
        "c.every": (True, True),
        "decision.invalid": (False, True),
    }


def test_a_concern_that_is_not_asked_has_no_condition(opa: Path) -> None:
    found = runs(opa, {"broken": True})
    assert {code: (run.asked, run.fired, run.stopped) for code, run in found.items()} == {
        "c.iterates": (False, False, None),
        "c.asks": (False, False, None),
        "c.every": (False, False, None),
        "decision.invalid": (True, True, None),
    }


def test_an_evaluation_that_fails_says_so(opa: Path) -> None:
    text = DECISION.replace("if true", "if true\n\ndecision := 2")
    broken = {"authz/decision.rego": Module(Path("p"), text, custom=False)}

    found, unknown = trace(opa, broken, {}, b"{}")

    assert found == ()
    assert str(unknown).startswith(": OPA cannot evaluate this: eval_conflict_error: rule data.authz.decision ")
