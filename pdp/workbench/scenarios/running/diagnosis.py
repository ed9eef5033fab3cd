"""Why a scenario failed: what fired, what should have and did not, or what stopped the call before the policy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pdp.documents import nearest
from pdp.engine.data import merged_data
from pdp.errors import BundleError, EngineError, UsageError
from pdp.workbench.explain.explain import NO_DECISION
from pdp.workbench.explain.trace import trace
from pdp.workbench.opa.program import WITHOUT_OPA, find_opa
from pdp.workbench.opa.rules import rule_sites, sites_by_code
from pdp.workbench.reports.shown_file import shown_file
from pdp.workbench.scenarios.files.suite import policy_modules
from pdp.workbench.scenarios.results import Diagnosis, Fired, Missed
from pdp.workbench.scenarios.running.engines import bundle_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pdp.decision import Decision
    from pdp.engine.protocol import Engine
    from pdp.workbench.explain.trace import Condition, RuleRun
    from pdp.workbench.opa.modules import Module
    from pdp.workbench.opa.rules import RuleSite
    from pdp.workbench.scenarios.files.suite import Suite
    from pdp.workbench.scenarios.results import ScenarioResult, StepResult

# Where a policy failed, as both engines tell it.
_MODULE_LINE: Final = re.compile(r"(?P<module>[\w./-]+\.rego):(?P<line>\d+)")


class Diagnoses:
    """Tells why scenarios of a suite failed. Nothing is read or run before the first one has.

    Args:
        suite: the scenarios' suite.
        engine: who decided them; it is still open.
        traced: at most so many are traced with OPA, which takes a moment each.
    """

    def __init__(self, suite: Suite, engine: Engine, *, traced: int = 10) -> None:
        self._suite = suite
        self._engine = engine
        self._left = traced
        self._read = False
        self._modules: dict[str, Module] = {}
        self._sites: dict[str, tuple[RuleSite, ...]] = {}
        self._opa: Path | None = None
        self._data: dict[str, Any] = {}

    def of(self, result: ScenarioResult) -> Diagnosis:
        """Return what is known of the step at which a scenario failed."""
        failed = next((step for step in result.steps if step.mismatches), None)
        if failed is None:
            return Diagnosis()
        self._prepare()
        stopped = next(
            (
                evaluation.outcome.rejection.reason
                for evaluation in failed.evaluations
                if evaluation.decision is None and evaluation.outcome.rejection is not None
            ),
            None,
        )
        given = tuple(self._given(failed))
        if not failed.answers:
            return Diagnosis(stopped, given=given)
        answer = failed.answers[-1]
        if NO_DECISION.issuperset(answer.decision.codes):
            # Asked again, the policy would fail again, or not end again; and OPA takes longer to give up.
            return Diagnosis(stopped, tuple(self._decided(answer.decision)), given=given)
        body = answer.body
        fired = tuple(self._fired(body, failed))
        wanted = _wanted(failed)
        # What fired and is not among the decision's codes belongs to a verdict that did not win.
        silent = [code for code in wanted if code in self._sites and code not in {each.code for each in fired}]
        runs, unknown = self._traced(body) if silent else ({}, None)
        return Diagnosis(stopped, fired, tuple(self._missed(wanted, silent, runs)), given, unknown)

    def _prepare(self) -> None:
        if self._read:
            return
        self._read = True
        try:
            self._modules = policy_modules(self._suite)
            self._sites = sites_by_code(rule_sites(self._modules))
            self._data = merged_data(
                bundle_of(self._suite).data,
                manifests={self._suite.manifest.digest: self._suite.manifest.document},
                data=self._suite.data,
            )
            self._opa = find_opa()
        except (UsageError, BundleError):
            pass  # the scenarios ran, and what cannot be told of them is left out

    def _fired(self, body: bytes, failed: StepResult) -> Iterator[Fired]:
        try:
            findings = self._engine.findings(body)
        except (EngineError, BundleError):
            # This engine or its bundle cannot tell; the decision's own reasons are better than nothing.
            yield from self._decided(failed.answers[-1].decision)
            return
        for part in ("deny", "step_up", "allow"):
            for reason in getattr(findings, part):
                yield Fired(part, reason.code, reason.message, reason.details, self._where(reason.code, part))
        for obligation in findings.obligations:
            where = next(
                (_at(site) for sites in self._sites.values() for site in sites if site.obligation == obligation.id),
                None,
            )
            yield Fired("obligations", obligation.id, f"on {obligation.on}", obligation.parameters, where)

    def _decided(self, decision: Decision) -> Iterator[Fired]:
        """The decision's own reasons; of a policy that failed, with the place that the reason tells of."""
        part = {"DENY": "deny", "STEP_UP": "step_up", "ALLOW": "allow"}[decision.verdict]
        for reason in decision.reasons:
            where = self._where(reason.code, part) or self._place_in(reason.message)
            yield Fired(part, reason.code, reason.message, reason.details, where)

    def _place_in(self, message: str) -> str | None:
        """The author's place for the one that a message tells of; OPA's has a folder of its own before the module."""
        for match in _MODULE_LINE.finditer(message):
            for path, module in self._modules.items():
                if f"/{match['module']}".endswith(f"/{path}"):
                    return f"{shown_file(module.file)}:{match['line']}"
        return None

    def _where(self, code: str, part: str) -> str | None:
        """The places of the rules that give a code; there may be several."""
        sites = self._sites.get(code, ())
        found = [_at(site) for site in sites if site.part == part] or [_at(site) for site in sites]
        return ", ".join(found) or None

    def _given(self, failed: StepResult) -> Iterator[Fired]:
        """The reasons of the enforcement point's own: they are in no answer of the engine."""
        answered = {reason for answer in (*failed.answers, *failed.plans) for reason in answer.decision.codes}
        for evaluation in failed.evaluations:
            for reason in evaluation.reasons:
                if reason.code not in answered:
                    yield Fired("deny", reason.code, reason.message, reason.details, None)

    def _missed(
        self, wanted: Iterable[str], silent: Iterable[str], runs: Mapping[tuple[str, int], RuleRun]
    ) -> Iterator[Missed]:
        for code in wanted:
            if self._sites and code not in self._sites:
                near = nearest(code, self._sites)
                yield Missed(code, "no rule gives this code" + (f": {near}" if near else ""))
        for code in silent:
            for site in self._sites[code]:
                run = runs.get((site.file, site.line))
                if run is not None and run.stopped is not None:
                    condition, seen = _innermost(run.stopped)
                    yield Missed(code, _at(site), condition, seen)
                elif run is None or not run.fired:
                    yield Missed(code, _at(site))

    def _traced(self, body: bytes) -> tuple[Mapping[tuple[str, int], RuleRun], str | None]:
        """How each rule ran, by its place; or why that is not known."""
        if self._opa is None:
            return {}, WITHOUT_OPA
        if self._left <= 0:
            return {}, ": enough others are traced already; select this one with -k"
        self._left -= 1
        try:
            runs = trace(self._opa, self._modules, self._data, body)
        except (UsageError, EngineError, BundleError) as error:
            return {}, f": {error}"
        return {(run.site.file, run.site.line): run for run in runs}, None


def _wanted(failed: StepResult) -> list[str]:
    """The codes that were expected and did not come."""
    return list(
        dict.fromkeys(
            code
            for mismatch in failed.mismatches
            if mismatch.key.endswith("codes") and isinstance(mismatch.expected, list)
            for code in mismatch.expected
            if code not in (mismatch.actual or ())
        )
    )


def _at(site: RuleSite) -> str:
    return f"{shown_file(site.file)}:{site.line}"


def _innermost(condition: Condition) -> tuple[str, dict[str, Any]]:
    """What a rule stopped at; where that asks another rule, what that one stopped at as well."""
    text = f"{condition.text} ({shown_file(condition.file)}:{condition.line})"
    seen: dict[str, Any] = {each.name: each.value if each.defined else "(undefined)" for each in condition.seen}
    for inner in condition.because[:1]:
        deeper, values = _innermost(inner)
        text, seen = f"{text}; because {deeper}", {**seen, **values}
    return text, seen
