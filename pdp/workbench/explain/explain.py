"""Explain the decision on a proposal: first the checks before the policy, then every rule of the policy."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from pdp.contract.request import CHECKS
from pdp.contract.sensitive import Mask
from pdp.decision import Reason
from pdp.errors import AnswerInvalidError, EngineError, EngineTimeoutError
from pdp.flow.evaluation import Evaluation
from pdp.json import canonical
from pdp.opa.evaluation import TIMEOUT
from pdp.opa.modules import Module
from pdp.opa.rules import RuleSite, rule_sites, sites_by_code
from pdp.workbench.explain.trace import Condition, RuleRun, trace

NO_DECISION: Final = frozenset(error.code for error in (EngineError, EngineTimeoutError, AnswerInvalidError))
"""The codes of a DENY that means that the policy failed to make a decision."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of the decision on a proposal.

    `line` explains the verdict. Each of `checks` is `passed`, `failed` or `not reached`. `unknown` says why `rules` is
    empty. In `line` and `rules`, sensitive values are masked; use `mask` for other fields.
    """

    line: str
    evaluation: Evaluation
    checks: Mapping[str, str]
    mask: Mask
    rules: tuple[RuleRun, ...] = ()
    unknown: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return `{line, evaluation, checks, rules, complete, flow}`, which is a stable interface."""
        return {
            "line": self.line,
            "evaluation": self.mask.value(self.evaluation.as_json()),
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
            "flow": self.evaluation.flow,
        }  # fmt: skip


def explain(
    evaluation: Evaluation,
    modules: Mapping[str, Module],
    data: Mapping[str, Any],
    opa: Path | None,
    *,
    sensitive: Collection[str] = (),
    timeout: float = TIMEOUT,
) -> Explanation:
    """Explain an evaluation. Values of `sensitive` arguments are masked. Without OPA, rules cannot be explained.

    `timeout` limits each run of OPA in seconds.
    """
    rules: tuple[RuleRun, ...] = ()
    unknown: str | None = None
    request = evaluation.request
    if request is not None:
        if NO_DECISION.issuperset(evaluation.codes):
            # If the engine failed, OPA would also fail or time out on this request.
            unknown = ": the policy made no decision"
        else:
            rules, unknown = trace(opa, modules, traced_data(data, request), canonical(request), timeout)
    mask = Mask(sensitive, request["context"]["arguments"] if request is not None else {})
    rules = tuple(replace(run, stopped=run.stopped and _masked(run.stopped, mask)) for run in rules)
    return Explanation(mask.text(_line(evaluation, modules)), evaluation, _checks(evaluation), mask, rules, unknown)


def _masked(condition: Condition, mask: Mask) -> Condition:
    seen = tuple(replace(value, value=mask.value(value.value)) for value in condition.seen)
    return replace(condition, seen=seen, because=tuple(_masked(inner, mask) for inner in condition.because))


def traced_data(data: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data with the called tool's manifest entry only, because OPA's trace repeats the data at each step."""
    named = request["action"]["properties"]
    digest, tool = named["manifest_digest"], named["tool"]
    document = data["manifests"][digest]
    return {**data, "manifests": {digest: {**document, "tools": {tool: document["tools"][tool]}}}}


def _checks(evaluation: Evaluation) -> dict[str, str]:
    # Claims without a subject pass every check of the session but produce no request.
    failed = len(CHECKS) if evaluation.request is not None else CHECKS.index(evaluation.failed_check or CHECKS[-1])
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
    return f"{evaluation.verdict} because {'; and '.join(clause.removesuffix('.') for clause in clauses)}."


def _clause(reason: Reason, sites: tuple[RuleSite, ...]) -> str:
    """Return a reason as sentences: its message, its explanation or its details, and its remedy."""
    where = f" ({Path(sites[0].file).name}:{sites[0].line})" if sites else ""
    facts = ", ".join(f"{name} is {canonical(value).decode()}" for name, value in sorted(reason.details.items()))
    facts = reason.explanation or (f"Here, {facts}." if facts else "")
    return " ".join(filter(None, (f"{reason.code}{where}: {reason.message}", facts, reason.remedy)))
