"""Invariants: structural rules of one tool. A call that violates an invariant is corrected, pruned or rejected.

Source: tool contract document, "ToolInvariant" and "A real example".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Final, Literal, NamedTuple

import orjson

from pdp.contract.sensitive import place_of
from pdp.documents.arguments import end_coroutine
from pdp.json import JsonValueError, canonical, check_json
from pdp.manifest.expressions.cel import compile_check
from pdp.manifest.expressions.path import ExpressionError, Variables
from pdp.manifest.model import Correction, Invariant
from pdp.proposal import Proposal, Rejection, RejectionCode

Check = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], bool]
"""A function of `(call, state, config)`: copies of the arguments, the state with the plan, and the resolved config."""

Corrector = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Any]
"""A function of `(call, state, config)`: returns `(arguments, True)`, `DROP_STEP` or, on failure, `(_, False)`."""

SchemaFault = Callable[[dict[str, Any]], str | None]
"""Returns why the schema rejects the arguments, or None."""

_log = logging.getLogger("pdp.contract")

# The maximum number of corrections of one call. It stops invariants that undo each other's corrections.
MAX_CORRECTIONS: Final = 16

_LONGEST: Final = 200


class DropStep(Enum):
    """The type of `DROP_STEP`."""

    DROP_STEP = "DROP_STEP"


DROP_STEP: Final[Literal[DropStep.DROP_STEP]] = DropStep.DROP_STEP
"""A corrector returns this, alone or as `(DROP_STEP, True)`, to prune the call from its plan."""


@dataclass(frozen=True, slots=True)
class ToolInvariant:
    """A structural rule for the calls of a tool.

    Attributes:
        id: a stable name, which is logged when the rule is violated.
        rule: the rule in words, for people and the model.
        check: returns whether `(call, state, config)` satisfies the rule. An error counts as a violation.
        correct: returns corrected arguments; without `correct`, a violation rejects the call.
        corrects: the arguments that `correct` may change; None for all arguments of the schema.
    """

    id: str
    rule: str
    check: Check
    correct: Corrector | None = None
    corrects: Sequence[str] | None = None


class Resolution(StrEnum):
    """The way in which a violated invariant was handled."""

    CORRECTED = "corrected"
    PRUNED = "pruned"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Trip:
    """An invariant that a call violated. `changed` has the names of the corrected arguments, sorted."""

    invariant: str
    rule: str
    resolution: Resolution
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        how = f"{self.resolution}: {', '.join(self.changed)}" if self.changed else str(self.resolution)
        return f"{self.invariant}: {self.rule} ({how})"


class InvariantResult(NamedTuple):
    """The result of applying all invariants. If none corrected the call, `arguments` is the proposed object itself."""

    arguments: dict[str, Any]
    trips: tuple[Trip, ...] = ()
    rejection: Rejection | None = None
    pruned: bool = False


@dataclass(frozen=True, slots=True)
class InvariantContext:
    """The inputs of an invariant besides the call. All checks of a call share the size limit of `inputs`.

    `plan` is a function from the call's arguments to the plan up to and including the call, `[{tool, arguments}]`.
    """

    state: Mapping[str, Any]
    config: Mapping[str, Any]
    plan: Callable[[dict[str, Any]], list[Any]] | None = None
    inputs: Variables = field(default_factory=Variables)


def plan_before(
    proposal: Proposal, plan: Sequence[Any], before: Sequence[Any] | None
) -> Callable[[dict[str, Any]], list[Any]]:
    """Return a function from a call's arguments to the plan up to and including the call, without later steps.

    `before` are the earlier steps, if known. Otherwise, the call's position is the first step of `plan` that equals the
    call as proposed or corrected; if no step does, the call comes after the whole plan.
    """

    def up_to(arguments: dict[str, Any]) -> list[Any]:
        call = {"tool": proposal.tool, "arguments": arguments}
        if before is not None:
            return [*before, call]
        steps = [respelt(step) for step in plan]
        end = next((steps.index(step) for step in (proposal.as_json(), call) if step in steps), len(steps))
        return [*steps[:end], call]

    return up_to


def respelt(step: Any) -> Any:
    """Return a step of a plan as `{tool, arguments}`, without its step name. Other values are returned unchanged."""
    if not isinstance(step, dict):
        return step
    if "tool_name" in step and "tool" not in step:
        return {"tool": step["tool_name"], "arguments": step.get("payload", {})}
    return {name: value for name, value in step.items() if name != "step_name"}


class _RuleRejectsError(Exception):
    """An invariant rejects a call. If the check cannot be evaluated, the code is INVALID_PAYLOAD."""

    def __init__(self, rule: _Rule, why: str, *, violated: bool = True) -> None:
        super().__init__(why)
        self.trip = Trip(rule.id, rule.rule, Resolution.REJECTED)
        code = rule.rejection if violated else RejectionCode.INVALID_PAYLOAD
        self.rejection = Rejection(code, f"{rule.id}: {why}")


class _ExpressionRule:
    """An invariant of a manifest. `holds` raises an error if the check cannot be evaluated."""

    def __init__(self, invariant: Invariant) -> None:
        self.id = invariant.id
        self.rule = invariant.rule
        self.rejection = invariant.rejection or RejectionCode.INVALID_PAYLOAD
        self._check = compile_check(invariant.check)
        self._correct = invariant.correct

    def holds(self, arguments: dict[str, Any], context: InvariantContext) -> bool:
        reads_plan = "plan" in self._check.variables
        plan = context.plan(arguments) if reads_plan and context.plan is not None else []
        context.inputs.update(call=arguments, state=context.state, config=context.config, plan=plan)
        try:
            value = self._check.evaluate(context.inputs)
        except KeyError:
            return False  # A check that reads missing data counts as violated.
        except ExpressionError as error:
            # If the check fails with an error, the call is rejected without a correction.
            raise _RuleRejectsError(self, error.message, violated=False) from error
        if value is not True and value is not False:
            why = f"{self._check.text}: returns {type(value).__name__}, not true or false"
            raise _RuleRejectsError(self, why, violated=False)
        return value

    def corrected(self, arguments: dict[str, Any], _: InvariantContext) -> dict[str, Any] | DropStep | None:
        if isinstance(self._correct, Correction):
            return {**arguments, **self._correct.set}
        return DROP_STEP if self._correct == "prune" else None


class _FunctionRule:
    """An invariant of a Python contract. Without `corrects`, the invariant may correct all `arguments`."""

    rejection = RejectionCode.INVALID_PAYLOAD

    def __init__(self, invariant: ToolInvariant, arguments: frozenset[str]) -> None:
        self.id = invariant.id
        self.rule = invariant.rule
        self._invariant = invariant
        self._declared = arguments if invariant.corrects is None else frozenset(invariant.corrects)

    def holds(self, arguments: dict[str, Any], context: InvariantContext) -> bool:
        holds = self._call(self._invariant.check, "check", arguments, context)
        if holds is not True and holds is not False:
            end_coroutine(holds)
            raise _RuleRejectsError(self, f"the invariant's check returned {type(holds).__name__}, not true or false")
        return holds

    def corrected(self, arguments: dict[str, Any], context: InvariantContext) -> dict[str, Any] | DropStep | None:
        if self._invariant.correct is None:
            return None
        match self._call(self._invariant.correct, "corrector", arguments, context):
            case DropStep.DROP_STEP | tuple((DropStep.DROP_STEP, True)):
                return DROP_STEP
            case tuple((corrected, True)):
                return self._within_declaration(corrected, arguments)
            case tuple((_, False)):
                return None
            case result:
                end_coroutine(result)
                raise _RuleRejectsError(
                    self, "the invariant's corrector must return (arguments, true or false) or DROP_STEP"
                )

    def _call(
        self, function: Callable[..., Any], role: str, arguments: dict[str, Any], context: InvariantContext
    ) -> Any:
        state = dict(context.state)
        if context.plan is not None:
            state["plan"] = context.plan(arguments)
        try:
            # The function gets copies, because it may modify its parameters.
            return function(*orjson.loads(orjson.dumps([arguments, state, dict(context.config)])))
        except Exception as error:
            _log.error("the %s of invariant %s raised %s", role, self.id, place_of(error))
            raise _RuleRejectsError(self, f"the invariant's {role} raised {type(error).__name__}") from error

    def _within_declaration(self, result: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        if type(result) is not dict:
            raise _RuleRejectsError(self, f"the invariant's corrector returned {type(result).__name__}, not arguments")
        try:
            check_json(result, depth=1)
        except JsonValueError as error:
            raise _RuleRejectsError(self, f"the corrector's result is not JSON: {error}"[:_LONGEST]) from None
        outside = set(changed_arguments(arguments, result)) - self._declared
        if outside:
            raise _RuleRejectsError(
                self, f"the corrector changes {min(outside)[:_LONGEST]}, which the invariant does not declare"
            )
        return result


_Rule = _ExpressionRule | _FunctionRule


class Invariants:
    """All invariants of a tool with these `arguments`. Raises ExpressionError if a check is not CEL."""

    def __init__(
        self,
        of_manifest: Iterable[Invariant] = (),
        of_contract: Iterable[ToolInvariant] = (),
        arguments: frozenset[str] = frozenset(),
    ) -> None:
        self._rules: tuple[_Rule, ...] = (
            *(_ExpressionRule(invariant) for invariant in of_manifest),
            *(_FunctionRule(invariant, arguments) for invariant in of_contract),
        )

    def applied(
        self, arguments: dict[str, Any], context: InvariantContext, schema_fault: SchemaFault
    ) -> InvariantResult:
        """Correct, prune or reject a call until every invariant holds. The arguments must already match the schema.

        After each of up to `MAX_CORRECTIONS` corrections, all invariants are checked, so the result fulfils all.
        """
        trips: list[Trip] = []
        try:
            while rule := next((rule for rule in self._rules if not rule.holds(arguments, context)), None):
                corrected = _corrected(rule, arguments, context, schema_fault, last=len(trips) == MAX_CORRECTIONS)
                if corrected is DROP_STEP:
                    trips.append(Trip(rule.id, rule.rule, Resolution.PRUNED))
                    return InvariantResult(arguments, tuple(trips), pruned=True)
                trips.append(Trip(rule.id, rule.rule, Resolution.CORRECTED, changed_arguments(arguments, corrected)))
                arguments = corrected
        except _RuleRejectsError as error:
            return InvariantResult(arguments, (*trips, error.trip), error.rejection)
        return InvariantResult(arguments, tuple(trips))

    def violations(self, arguments: dict[str, Any], context: InvariantContext) -> list[str]:
        """Return `ID: reason` for each invariant that the call violates, without correcting the call."""
        violations = []
        for rule in self._rules:
            try:
                if not rule.holds(arguments, context):
                    violations.append(f"{rule.id}: {rule.rule}")
            except _RuleRejectsError as error:
                violations.append(error.rejection.reason)
        return violations


def _corrected(
    rule: _Rule, arguments: dict[str, Any], context: InvariantContext, schema_fault: SchemaFault, *, last: bool
) -> dict[str, Any] | DropStep:
    if last:
        raise _RuleRejectsError(rule, f"the invariant is still violated after {MAX_CORRECTIONS} corrections")
    corrected = rule.corrected(arguments, context)
    if corrected is None:
        raise _RuleRejectsError(rule, rule.rule)
    if corrected is DROP_STEP:
        return DROP_STEP
    if not changed_arguments(arguments, corrected):
        raise _RuleRejectsError(rule, f"{rule.rule} (the invariant's correction changes nothing)")
    fault = schema_fault(corrected)
    if fault is not None:
        raise _RuleRejectsError(rule, f"the corrected arguments do not match the schema: {fault}")
    return corrected


def changed_arguments(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the sorted names of the arguments that differ. Values are compared as JSON, where 1 and true differ."""
    old, new = ({name: canonical(value) for name, value in arguments.items()} for arguments in (before, after))
    return tuple(sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)))
