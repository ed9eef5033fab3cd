"""Explain why a scenario failed: rules that fired, expected rules that did not, or the check that stopped the call."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from pdp.decision import parse_findings
from pdp.documents import nearest
from pdp.engine.protocol import FINDINGS, Engine
from pdp.errors import BundleError, EngineError, UsageError
from pdp.opa.modules import Module
from pdp.opa.program import find_opa
from pdp.opa.rules import RuleSite, rule_sites, sites_by_code
from pdp.workbench.explain.explain import NO_DECISION
from pdp.workbench.explain.trace import Condition, RuleRun, trace
from pdp.workbench.scenarios.files.suite import Suite, policy_modules
from pdp.workbench.scenarios.results import Diagnosis, EngineAnswer, Fired, Missed, ScenarioResult, StepResult
from pdp.workbench.scenarios.running.engines import whole_data
from pdp.workbench.shown_file import shown_file

_TRACED: Final = 10
"""The maximum number of failures of a suite that are traced with OPA, because a trace takes time."""


class Diagnoses:
    """Explains failed scenarios of a suite while its engine is open. The policies are read only if a scenario fails."""

    def __init__(self, suite: Suite, engine: Engine) -> None:
        self._suite = suite
        self._engine = engine
        self._left = _TRACED

    def explained(self, result: ScenarioResult) -> ScenarioResult:
        """Return the result with a diagnosis of its failed step. If no step failed, return it unchanged."""
        failed = next((step for step in result.steps if step.mismatches), None)
        return result if failed is None else replace(result, diagnosis=self._diagnosis(failed))

    def _diagnosis(self, failed: StepResult) -> Diagnosis:
        stopped = "; ".join(dict.fromkeys(_stops(failed))) or None
        if not failed.answers:
            return Diagnosis(stopped)
        answer = failed.answers[-1]
        # If the policy made no decision, it is not asked again, because it would fail or time out again.
        if NO_DECISION.issuperset(answer.decision.codes):
            return Diagnosis(stopped)
        fired = tuple(self._fired(answer))
        differing = [mismatch for mismatch in failed.mismatches if mismatch.key.endswith("codes") and mismatch.expected]
        absent = dict.fromkeys(code for codes in differing for code in codes.expected if code not in codes.actual)
        # A rule may have fired although the decision has another verdict.
        missed = [code for code in absent if code not in {rule.code for rule in fired}]
        known = not self._sites.keys().isdisjoint(missed)
        runs, unknown = self._traced(answer.body) if known else ((), None)
        return Diagnosis(stopped, fired, tuple(self._missed(missed, runs)), unknown)

    @cached_property
    def _modules(self) -> Mapping[str, Module]:
        return policy_modules(self._suite)

    @cached_property
    def _data(self) -> dict[str, Any]:
        return whole_data(self._suite)

    @cached_property
    def _sites(self) -> dict[str, tuple[RuleSite, ...]]:
        return sites_by_code(rule_sites(self._modules))

    def _fired(self, answer: EngineAnswer) -> Iterator[Fired]:
        try:
            reasons_by_part, obligations = parse_findings(self._engine.evaluate(answer.body, FINDINGS))
        except (EngineError, BundleError):
            return  # The bundle has no entrypoint for findings.
        for part, reasons in reasons_by_part.items():
            for reason in reasons:
                sites = self._sites.get(reason.code, ())
                places = [_at(site) for site in sites if site.part == part] or [_at(site) for site in sites]
                yield Fired(part, reason.code, reason.message, reason.details, ", ".join(places) or None, reason.remedy)
        for obligation in obligations:
            every = (site for sites in self._sites.values() for site in sites)
            where = next((_at(site) for site in every if site.obligation == obligation.id), None)
            yield Fired("obligations", obligation.id, f"on {obligation.on}", obligation.parameters, where)

    def _missed(self, codes: Sequence[str], runs: Sequence[RuleRun]) -> Iterator[Missed]:
        by_place = {(run.site.file, run.site.line): run for run in runs}
        for code in codes:
            if self._sites and code not in self._sites:
                near = nearest(code, self._sites)
                yield Missed(code, "no rule has this code" + (f": {near}" if near else ""))
            for site in self._sites.get(code, ()):
                run = by_place.get((site.file, site.line))
                if run is not None and run.stopped is not None:
                    yield Missed(code, _at(site), *_innermost(run.stopped))
                elif run is None or not run.fired:
                    yield Missed(code, _at(site))

    def _traced(self, body: bytes) -> tuple[Sequence[RuleRun], str | None]:
        opa = find_opa()
        if opa is not None and self._left <= 0:
            return (), f": only {_TRACED} failures are traced; select this scenario with -k"
        self._left -= 1
        try:
            return trace(opa, self._modules, {} if opa is None else self._data, body)
        except (UsageError, EngineError, BundleError) as error:
            return (), f": {error}"


def _stops(failed: StepResult) -> Iterator[str]:
    """Yield why the enforcement point rejected a call before the policy, or denied it after the policy."""
    answered = {code for answer in (*failed.answers, *failed.plans) for code in answer.decision.codes}
    for evaluation in failed.evaluations:
        if evaluation.decision is None and evaluation.outcome.rejection is not None:
            yield evaluation.outcome.rejection.reason
        yield from (reason.text for reason in evaluation.reasons if reason.code not in answered)


def _at(site: RuleSite) -> str:
    return f"{shown_file(site.file)}:{site.line}"


def _innermost(condition: Condition) -> tuple[str, dict[str, Any]]:
    """Return a failed condition and those of the rules that it uses as one text, and the values that were read."""
    text = f"{condition.text} ({shown_file(condition.file)}:{condition.line})"
    seen: dict[str, Any] = {value.name: value.value if value.defined else "(undefined)" for value in condition.seen}
    for inner in condition.because[:1]:
        deeper, values = _innermost(inner)
        text, seen = f"{text}; because {deeper}", {**seen, **values}
    return text, seen
