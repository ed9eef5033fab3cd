"""Which rules fired for one request, and at which condition the others stopped: read from OPA's full trace.

The trace is a list of events: a rule is entered (Enter), its conditions are evaluated (Eval), one of them is not met
(Fail), or the rule holds (Exit). Indexing and early exits are switched off, or OPA would pass over rules in silence.
What a trace leaves out stays unsaid: a rule that was never entered has no condition at which it stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.explain.trace_events import Condition, Events, Seen
from pdp.workbench.opa.evaluation import DECISION, Evaluator
from pdp.workbench.opa.rules import rule_sites

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pdp.workbench.opa.modules import Module
    from pdp.workbench.opa.rules import RuleSite

__all__ = ["Condition", "RuleRun", "Seen", "trace"]

# A bundle of an older release may lack the findings.
_QUERY: Final = f"decision := {DECISION}; findings := [all | all := data.authz.findings]"
_OPTIONS: Final = ("--explain=full", "--disable-indexing", "--disable-early-exit")


@dataclass(frozen=True, slots=True)
class RuleRun:
    """One rule for one request.

    Attributes:
        site: the rule.
        asked: whether it was evaluated at all; a concern is not asked about a request of a wrong shape.
        fired: whether it found something.
        stopped: the first condition that was not met, if it did not fire and the trace tells.
    """

    site: RuleSite
    asked: bool
    fired: bool
    stopped: Condition | None


def trace(opa: Path, modules: Mapping[str, Module], data: Mapping[str, Any], body: bytes) -> tuple[RuleRun, ...]:
    """Evaluate the decision for one request, and tell of every rule that `rule_sites` finds whether it fired.

    Args:
        opa: the program.
        modules: by their path in the bundle.
        data: the whole data: `config`, `manifests`, `directory`, `settings`.
        body: the request as canonical JSON.

    Returns:
        the runs in the order of `rule_sites`.

    Raises:
        FileFaultsError, EngineTimeoutError, UsageError: as of `Evaluator.query`; among them an evaluation that fails.
    """
    with Evaluator(opa, {path: module.text for path, module in modules.items()}, data) as evaluator:
        answer = evaluator.query(_QUERY, body, *_OPTIONS)
        codes = _denials(answer)
        events = Events(answer.get("explanation") or [], modules)
        stops = [events.outcome(site, codes) for site in rule_sites(modules)]
        names = {reference.text for _, _, _, stop in stops if stop for reference in stop.references()}
        values = _values(evaluator, body, sorted(names))
    return tuple(RuleRun(site, asked, fired, stop.read(values) if stop else None) for site, asked, fired, stop in stops)


def _denials(answer: Mapping[str, Any]) -> set[str]:
    """The codes of what denied: of all that did, or of what the decision names."""
    try:
        bindings = answer["result"][0]["bindings"]
        decision, findings = bindings["decision"], bindings["findings"]
        reasons = findings[0]["deny"] if findings else decision["reasons"] if decision["verdict"] == "DENY" else ()
        return {str(reason["code"]) for reason in reasons}
    except (KeyError, IndexError, TypeError):
        return set()


def _values(evaluator: Evaluator, body: bytes, names: Sequence[str]) -> dict[str, list[Any]]:
    """The value of each reference, in a list; the list is empty where it is undefined."""
    if not names:
        return {}
    query = ", ".join(f"[x | x := {name}]" for name in names)
    answer = evaluator.query(f"[{query}]", body)
    found: list[list[Any]] = answer["result"][0]["expressions"][0]["value"]
    return dict(zip(names, found, strict=True))
