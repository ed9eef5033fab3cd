"""Why a proposal was decided as it was: the checks before the policy, then every rule, in the order of the flow."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdp.errors import AnswerInvalidError, EngineError, EngineTimeoutError, UsageError
from pdp.execution.masking import Mask
from pdp.json import canonical
from pdp.proposal import Proposal, ProposalRejectedError, RejectionCode
from pdp.workbench.explain.trace import RuleRun, trace
from pdp.workbench.explain.wording import in_words
from pdp.workbench.opa.program import WITHOUT_OPA
from pdp.workbench.opa.rules import DECISION_ITSELF, rule_sites, sites_by_code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pdp.decision import Findings
    from pdp.evaluation import Evaluation
    from pdp.manifest.model import Tool
    from pdp.workbench.explain.trace import Condition
    from pdp.workbench.opa.modules import Module
    from pdp.workbench.opa.rules import RuleSite

PASSED, FAILED, NOT_REACHED = "passed", "failed", "not reached"

NO_DECISION: Final = frozenset(error.code for error in (EngineError, EngineTimeoutError, AnswerInvalidError))
"""The codes of a DENY that stands for a decision which the policy did not make."""

# The order in which a person would ask; concerns of the user's own follow, and the decision itself is last.
_ORDER: Final = (
    "manifest", "delegation", "scopes", "purposes", "markings", "documents", "effects", "risk", "limits", "approvals",
    "idempotency", "provenance",
)  # fmt: skip
_MOST_REASONS: Final = 3


@dataclass(frozen=True, slots=True)
class CheckDone:
    """One check before the policy: `passed`, `failed` or `not reached`, and what there is to say about it."""

    name: str
    result: str
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a proposal was decided as it was. Sensitive arguments are hidden in all of it.

    Attributes:
        line: one line for a person.
        evaluation: as `pdp decide --json` prints it.
        checks: those before the policy, in their order.
        rules: every rule in the order of the flow; without OPA only those that fired. Empty when the policy was not
            asked.
        complete: whether `rules` tells of those that did not fire as well.
        unknown: why it does not, to go on from "not known"; None where it does, and where the policy was not asked.
    """

    line: str
    evaluation: dict[str, Any]
    checks: tuple[CheckDone, ...]
    rules: tuple[RuleRun, ...]
    complete: bool
    unknown: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return `{line, evaluation, checks, rules, complete}`; the form is stable."""
        return {
            "line": self.line,
            "evaluation": self.evaluation,
            "checks": [{"name": one.name, "result": one.result, "text": one.text} for one in self.checks],
            "rules": [
                {
                    "code": run.site.code, "concern": run.site.concern, "part": run.site.part, "title": run.site.title,
                    "file": run.site.file, "line": run.site.line, "asked": run.asked, "fired": run.fired,
                    "stopped": run.stopped and asdict(run.stopped),
                }
                for run in self.rules
            ],
            "complete": self.complete,
        }  # fmt: skip


def explain(
    evaluation: Evaluation,
    proposed: bytes,
    *,
    tool: Tool | None,
    modules: Mapping[str, Module],
    data: Mapping[str, Any],
    opa: Path | None,
    findings: Findings | None = None,
) -> Explanation:
    """Explain an evaluation.

    Args:
        evaluation: what came of the proposal.
        proposed: the proposal as it came in.
        tool: the tool's effective entry; None when the manifest has none.
        modules: the Rego that decided.
        data: all the data that it saw.
        opa: the OPA program; None: rules that did not fire cannot be told of.
        findings: what fired, used where OPA cannot tell.
    """
    mask = Mask(tool.sensitive if tool else (), _arguments(proposed))
    request = evaluation.request
    sites = rule_sites(modules)
    runs: Sequence[RuleRun] = ()
    unknown = None
    if request is not None and evaluation.decision is not None:
        runs, unknown = _runs(
            evaluation, findings, sites, opa, lambda program: trace(program, modules, data, canonical(request))
        )
    return Explanation(
        line=mask.text(_line(evaluation, request or {}, sites, mask)),
        evaluation=mask.value(evaluation.as_json()),
        checks=tuple(CheckDone(one.name, one.result, mask.text(one.text)) for one in _checks(evaluation, tool)),
        rules=tuple(_masked(run, mask) for run in sorted(runs, key=_place)),
        complete=opa is not None and unknown is None,
        unknown=unknown,
    )


def _runs(
    evaluation: Evaluation,
    findings: Findings | None,
    sites: tuple[RuleSite, ...],
    opa: Path | None,
    traced: Callable[[Path], Sequence[RuleRun]],
) -> tuple[Sequence[RuleRun], str | None]:
    """The rules that ran, and why those that did not fire cannot be told of."""
    if NO_DECISION.issuperset(evaluation.codes):
        # What failed in the engine fails in OPA as well, and what does not end there does not end here.
        return (), ": the policy came to no decision"
    unknown = WITHOUT_OPA
    if opa is not None:
        try:
            return traced(opa), None
        except (UsageError, EngineTimeoutError) as error:
            unknown = f": {error}"
    fired = _fired(sites, evaluation, findings)
    return [RuleRun(site, asked=True, fired=True, stopped=None) for site in fired], unknown


def _arguments(proposed: bytes) -> dict[str, Any]:
    try:
        return Proposal.read(proposed).arguments
    except ProposalRejectedError:
        return {}


def _place(run: RuleRun) -> tuple[int, str, str, int]:
    site = run.site
    if site.concern == DECISION_ITSELF:
        position = len(_ORDER) + 1
    else:
        position = _ORDER.index(site.concern) if site.concern in _ORDER else len(_ORDER)
    return position, site.concern, site.module, site.line


def _masked(run: RuleRun, mask: Mask) -> RuleRun:
    return run if run.stopped is None else replace(run, stopped=_masked_condition(run.stopped, mask))


def _masked_condition(condition: Condition, mask: Mask) -> Condition:
    return replace(
        condition,
        seen=tuple(
            replace(one, name=mask.text(one.name), value=mask.named(one.name, one.value)) for one in condition.seen
        ),
        because=tuple(_masked_condition(one, mask) for one in condition.because),
    )


def _fired(sites: tuple[RuleSite, ...], evaluation: Evaluation, findings: Findings | None) -> list[RuleSite]:
    reasons = evaluation.reasons if findings is None else (*findings.deny, *findings.step_up, *findings.allow)
    codes = {reason.code for reason in reasons}
    obligations = {one.id for one in (evaluation.obligations if findings is None else findings.obligations)}
    return [site for site in sites if site.code in codes or (site.obligation in obligations and site.obligation)]


def _line(evaluation: Evaluation, request: Mapping[str, Any], sites: tuple[RuleSite, ...], mask: Mask) -> str:
    if evaluation.decision is None:
        rejection = evaluation.outcome.rejection
        return f"REJECTED because {rejection.reason if rejection else 'a check failed'}; the policy was not asked"
    places = sites_by_code(sites)
    clauses: dict[str, None] = {}
    hidden = mask.value(request)
    for reason in evaluation.reasons:
        site = places.get(reason.code, (None,))[0]
        where = f" ({Path(site.file).name}:{site.line})" if site else ""
        clauses[f"{in_words(replace(reason, details=mask.value(reason.details)), hidden)}{where}"] = None
    shown = list(clauses)
    more = len(shown) - _MOST_REASONS
    said = "; and ".join(shown[:_MOST_REASONS]) + (f"; and {more} more" if more > 0 else "")
    return f"{evaluation.verdict} because {said}"


_CHECKS: Final = ("proposal", "manifest", "schema", "invariants", "idempotency", "provenance", "writes", "request")


def _checks(evaluation: Evaluation, tool: Tool | None) -> list[CheckDone]:
    failed = _failed(evaluation)
    rejection = evaluation.outcome.rejection
    said = _said(evaluation, tool)
    done = []
    for position, name in enumerate(_CHECKS):
        if position == failed:
            done.append(CheckDone(name, FAILED, rejection.reason if rejection else ""))
        elif position < failed:
            done.append(CheckDone(name, PASSED, said[name]))
        else:
            done.append(CheckDone(name, NOT_REACHED, ""))
    return done


def _failed(evaluation: Evaluation) -> int:
    """The position of the check that failed, or the number of checks: the trace tells how far it came."""
    trace_, rejection = evaluation.trace, evaluation.outcome.rejection
    if evaluation.request is not None:
        return len(_CHECKS)
    by_code = {
        RejectionCode.MISSING_PROVENANCE: "provenance",
        RejectionCode.DIRECT_CANONICAL_WRITE_FORBIDDEN: "writes",
    }
    if trace_.in_manifest is None:
        name = "proposal"
    elif not trace_.in_manifest:
        name = "manifest"
    elif not trace_.schema_valid:
        name = "schema"
    elif trace_.idempotency_missing is None:
        name = "invariants"
    elif trace_.idempotency_missing:
        name = "idempotency"
    else:
        name = by_code.get(rejection.code, "request") if rejection else "request"
    return _CHECKS.index(name)


def _said(evaluation: Evaluation, tool: Tool | None) -> dict[str, str]:
    trace_ = evaluation.trace
    invariants = ", ".join(one.id for one in tool.invariants) if tool else ""
    sources = ", ".join(tool.provenance.required) if tool else ""
    needed = tool is not None and tool.idempotency.required
    return {
        "proposal": "it can be read",
        "manifest": f"{trace_.tool_name} is a tool of manifest {trace_.manifest_version}",
        "schema": "the arguments match",
        "invariants": f"they hold: {invariants}" if invariants else "the tool has none",
        "idempotency": f"the key is {trace_.idempotency_key}" if needed else "no key is needed",
        "provenance": f"there: {sources}" if sources else "no argument has to name sources",
        "writes": "nothing canonical",
        "request": f"made for the action {trace_.pdp_action}",
    }
