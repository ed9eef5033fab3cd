"""Why a proposal was decided as it was: the checks before the policy, then every rule."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdp.contract.checks import CHECKS
from pdp.errors import AnswerInvalidError, EngineError, EngineTimeoutError, UsageError
from pdp.json import canonical
from pdp.workbench.explain.trace import RuleRun, trace
from pdp.workbench.opa.program import WITHOUT_OPA
from pdp.workbench.opa.rules import rule_sites, sites_by_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.decision import Reason
    from pdp.evaluation import Evaluation
    from pdp.workbench.opa.modules import Module
    from pdp.workbench.opa.rules import RuleSite

NO_DECISION: Final = frozenset(error.code for error in (EngineError, EngineTimeoutError, AnswerInvalidError))
"""The codes of a DENY that stands for a decision which the policy did not make."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a proposal was decided as it was.

    Attributes:
        line: one line for a person.
        evaluation: what came of the proposal.
        checks: those before the policy in their order, each `passed`, `failed` or `not reached`.
        rules: every rule by its place; empty when the policy was not asked, and when they are unknown.
        unknown: why the rules are, to go on from "not known"; None where they are not.
    """

    line: str
    evaluation: Evaluation
    checks: Mapping[str, str]
    rules: tuple[RuleRun, ...] = ()
    unknown: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return `{line, evaluation, checks, rules, complete}`; the form is stable."""
        return {
            "line": self.line,
            "evaluation": self.evaluation.as_json(),
            "checks": [{"name": name, "result": result} for name, result in self.checks.items()],
            "rules": [
                {
                    "code": run.site.code, "concern": run.site.concern, "part": run.site.part, "title": run.site.title,
                    "file": run.site.file, "line": run.site.line, "asked": run.asked, "fired": run.fired,
                    "stopped": run.stopped and asdict(run.stopped),
                }
                for run in self.rules
            ],
            "complete": self.unknown is None,
        }  # fmt: skip


def explain(
    evaluation: Evaluation, modules: Mapping[str, Module], data: Mapping[str, Any], opa: Path | None
) -> Explanation:
    """Explain an evaluation.

    Args:
        evaluation: what came of the proposal.
        modules: the Rego that decided.
        data: all the data that it saw.
        opa: the OPA program; None: rules stay unknown.
    """
    rules: tuple[RuleRun, ...] = ()
    unknown = None
    if evaluation.request is not None:
        if NO_DECISION.issuperset(evaluation.codes):
            # What failed in the engine fails in OPA as well, and what does not end there does not end here.
            unknown = ": the policy came to no decision"
        elif opa is None:
            unknown = WITHOUT_OPA
        else:
            try:
                rules = trace(opa, modules, data, canonical(evaluation.request))
            except (UsageError, EngineTimeoutError) as error:
                unknown = f": {error}"
    return Explanation(_line(evaluation, modules), evaluation, _checks(evaluation), rules, unknown)


def _checks(evaluation: Evaluation) -> dict[str, str]:
    if evaluation.request is not None:
        return dict.fromkeys(CHECKS, "passed")
    # Claims that name nobody fail no check, and make no request.
    failed = CHECKS.index(evaluation.failed_check or CHECKS[-1])
    return {
        name: "passed" if position < failed else "failed" if position == failed else "not reached"
        for position, name in enumerate(CHECKS)
    }


def _line(evaluation: Evaluation, modules: Mapping[str, Module]) -> str:
    if evaluation.decision is None:
        rejection = evaluation.outcome.rejection
        why = rejection.reason if rejection else "an invariant drops the call from its plan"
        return f"REJECTED because {why}; the policy was not asked"
    sites = sites_by_code(rule_sites(modules))
    clauses = dict.fromkeys(_clause(reason, sites.get(reason.code, ())) for reason in evaluation.reasons)
    return f"{evaluation.verdict} because {'; and '.join(clauses)}"


def _clause(reason: Reason, sites: tuple[RuleSite, ...]) -> str:
    where = f" ({Path(sites[0].file).name}:{sites[0].line})" if sites else ""
    details = {name: value for name, value in reason.details.items() if not isinstance(value, dict)}
    shown = f" {canonical(details).decode()}" if details else ""
    return f"{reason.code}{where}: {reason.message}{shown}"
