"""Applies the rules of a tool's pattern to one call: before the tool runs, and to the outcome.

Call `before`, which may stage an action, after the decision is recorded. Call `after` once the result matches its
schema. Both methods return errors as failures and never raise.
"""

import logging
from typing import Any, Final

import orjson

from pdp.contract.sensitive import Mask, place_of
from pdp.execution.failures import ToolError, ToolResultError, failure_of
from pdp.json import canonical
from pdp.manifest.fields import EffectClass, Pattern
from pdp.manifest.schema.shapes import shape_validator
from pdp.patterns.derivations import Classification, Composition, Conversion, Validation
from pdp.patterns.effects import ActionStaging, ApprovalRequest, check_staged
from pdp.patterns.exceptions import PatternFault
from pdp.patterns.reads import Aggregation, Extraction, Lookup, Search
from pdp.patterns.rule import PatternCall, PatternResult, PatternRule, check_snapshots
from pdp.proposal import Execution

_log = logging.getLogger("pdp.patterns")

RULES: Final[dict[Pattern, PatternRule]] = {
    Pattern.EXTRACTION: Extraction(),
    Pattern.LOOKUP: Lookup(),
    Pattern.VALIDATION: Validation(),
    Pattern.CLASSIFICATION: Classification(),
    Pattern.COMPOSITION: Composition(),
    Pattern.ACTION_STAGING: ActionStaging(),
    Pattern.APPROVAL_REQUEST: ApprovalRequest(),
    Pattern.AGGREGATION: Aggregation(),
    Pattern.CONVERSION: Conversion(),
    Pattern.SEARCH: Search(),
}
"""The rules of each pattern."""


class EnforcedCall(PatternCall):
    """An allowed call to which the rules of its tool's pattern are applied."""

    @property
    def blocking(self) -> bool:
        """Whether the method `before` waits for a disk or a network."""
        if self.entry.pattern is Pattern.ACTION_STAGING:
            return self.actions.blocking
        return self.entry.pattern is Pattern.APPROVAL_REQUEST and self.approvals is not None and self.approvals.blocking

    def before(self) -> Execution | None:
        """Return the outcome if the tool must not run: a cached record, staged action or failure. Otherwise None."""
        entry = self.entry
        try:
            if entry.effect_class is EffectClass.COMMIT_HIGH and entry.approval.unless_within_limits:
                check_staged(self)
            if entry.pattern is not None:
                _check_shape(entry.pattern, self.arguments, "request")
                check_snapshots(self.arguments, self.run)
            # The markings are stored last, so that a call that was rejected above takes no room in the run.
            if self.facts.markings:
                self.run.mark(*self.facts.resource, self.facts.markings)
            return None if entry.pattern is None else RULES[entry.pattern].before(self)
        except Exception as error:  # noqa: BLE001 - after any error the tool must not run
            return _failed(self, error, Execution(started=False))

    def completed(self, execution: Execution) -> Execution:
        """Return the outcome to store for replays. The result of an approval request gets the task's members."""
        result, refused, pattern = execution.result, execution.error, self.entry.pattern
        if self.task and isinstance(result, dict):
            carried = {name: value for name, value in self.task.items() if name == "approval" or not result.get(name)}
            return execution._replace(result={**result, **carried})
        if pattern is None or not isinstance(refused, ToolResultError) or refused.result is None:
            return execution
        try:
            RULES[pattern].check(self, refused.result)
        except Exception as error:  # noqa: BLE001 - the call has failed already
            return _failed(self, error, execution)
        return execution

    def after(self, execution: Execution) -> PatternResult:
        """Return the outcome after the checks of the pattern. The tool's own result object is not changed."""
        entry = self.entry
        checked = PatternResult(execution, markings=self.facts.markings)
        if execution.failure is not None:
            return checked
        if self.facts.markings:
            try:
                self.run.mark(*self.facts.resource, self.facts.markings)
            except PatternFault as error:
                # The markings cannot be remembered, because the run was closed meanwhile, or because the result is a
                # replay of another run's result and this run is full. So the result is withheld.
                error.details["effect"] = "done"
                return PatternResult(execution._replace(result=None, failure=failure_of(error), error=error))
        if entry.pattern is None:
            return checked
        try:
            rule = RULES[entry.pattern]
            result = orjson.loads(canonical(execution.result))
            _check_shape(entry.pattern, result, "response")
            rule.check(self, result)
            if not rule.names_snapshots:
                check_snapshots(result, self.run)
            return rule.after(self, checked._replace(execution=execution._replace(result=result)))
        except Exception as error:  # noqa: BLE001 - any error withholds the result
            return PatternResult(_failed(self, error, execution))


def _check_shape(pattern: Pattern, value: Any, part: str) -> None:
    if not shape_validator(pattern, part).is_valid(value):
        subject = "the arguments do" if part == "request" else "the result does"
        raise PatternFault(f"{pattern.replace('-', '_')}.{part}_shape", f"{subject} not match the tool's pattern")


def _failed(call: PatternCall, error: Exception, execution: Execution) -> Execution:
    entry = call.entry
    if not isinstance(error, ToolError):
        _log.error("the rules of pattern %s failed on %s: %s", entry.pattern, entry.name, place_of(error))
        error = PatternFault("patterns.internal_error", "the rules of the tool's pattern failed; see the log")
    if not execution.started:
        error.details["effect"] = "none"
    elif entry.has_effects:
        error.details["effect"] = "unknown"
    failure = failure_of(error, Mask(entry.sensitive, call.arguments))
    return execution._replace(result=None, failure=failure, error=error)
