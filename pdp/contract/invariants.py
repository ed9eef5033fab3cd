"""Invariants: structural rules of one tool, and the three outcomes when one trips: correct, prune, reject.

A rule is an expression of a manifest or a function of a contract in Python. What is corrected has to pass the schema
and every invariant again, and a correction changes nothing but what its declaration names.

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
"""`(call, state, config)`, as copies: the arguments, the state with the plan in it, the resolved config."""

Corrector = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Any]
"""Likewise; returns `(arguments, True)`, `(anything, False)` when it cannot help, or `DROP_STEP`."""

SchemaFault = Callable[[dict[str, Any]], str | None]
"""Gives why the schema refuses arguments, or None."""

_log = logging.getLogger("pdp.contract")

MAX_CORRECTIONS: Final = 16  # most corrections of one call, which bounds rules that undo each other

_LONGEST: Final = 200


class DropStep(Enum):
    """The type of `DROP_STEP`."""

    DROP_STEP = "DROP_STEP"


DROP_STEP: Final[Literal[DropStep.DROP_STEP]] = DropStep.DROP_STEP
"""What a corrector returns, by itself or as `(DROP_STEP, True)`, to prune the call from its plan."""


@dataclass(frozen=True, slots=True)
class ToolInvariant:
    """A structural rule of one tool.

    Attributes:
        id: stable, and logged when the rule trips.
        rule: what has to hold, for people and for the model.
        check: a check that raises, or gives no boolean, does not hold.
        correct: without it, a violation rejects.
        corrects: the arguments that `correct` may change, and no others; None: any that the schema names.
    """

    id: str
    rule: str
    check: Check
    correct: Corrector | None = None
    corrects: Sequence[str] | None = None


class Resolution(StrEnum):
    """What became of a call whose invariant tripped."""

    CORRECTED = "corrected"
    PRUNED = "pruned"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Trip:
    """An invariant that tripped. `changed` names the arguments that were corrected, sorted."""

    invariant: str
    rule: str
    resolution: Resolution
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        how = f"{self.resolution}: {', '.join(self.changed)}" if self.changed else str(self.resolution)
        return f"{self.invariant}: {self.rule} ({how})"


class InvariantResult(NamedTuple):
    """What the invariants made of a call; `arguments` are the very object that was proposed if none was corrected."""

    arguments: dict[str, Any]
    trips: tuple[Trip, ...] = ()
    rejection: Rejection | None = None
    pruned: bool = False


@dataclass(frozen=True, slots=True)
class InvariantContext:
    """What an invariant sees beside the call: the state, plain JSON, and the tool's resolved config.

    Attributes:
        plan: gives, for the call's arguments, the plan up to and including the call, `[{tool, arguments}]`; None: the
            state has it, or there is none.
        inputs: what the checks of a manifest read; how much that may be is counted over all of them.
    """

    state: Mapping[str, Any]
    config: Mapping[str, Any]
    plan: Callable[[dict[str, Any]], list[Any]] | None = None
    inputs: Variables = field(default_factory=Variables)


def plan_before(
    proposal: Proposal, plan: Sequence[Any], before: Sequence[Any] | None
) -> Callable[[dict[str, Any]], list[Any]]:
    """Return what gives, for a call's arguments, the plan up to and including the call.

    What comes later in a plan never changes what becomes of an earlier step. So of duplicates the first survives, and
    going through a plan once is enough. `before` are the steps before the call, when they are known. Otherwise the call
    is the first step of the session's `plan` that is equal to it, or to what it is corrected to; one that the plan does
    not hold comes after all of it.
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
    """Return a step of a plan as `{tool, arguments}`, without its name; what is not a proposal stays as it is."""
    if not isinstance(step, dict):
        return step
    if "tool_name" in step and "tool" not in step:
        return {"tool": step["tool_name"], "arguments": step.get("payload", {})}
    return {name: value for name, value in step.items() if name != "step_name"}


class _RuleRejectsError(Exception):
    """A rule rejects a call. The code is the rule's own only where the call is known to violate it."""

    def __init__(self, rule: _Rule, why: str, *, violated: bool = True) -> None:
        super().__init__(why)
        self.trip = Trip(rule.id, rule.rule, Resolution.REJECTED)
        code = rule.rejection if violated else RejectionCode.INVALID_PAYLOAD
        self.rejection = Rejection(code, f"{rule.id}: {why}")


class _ExpressionRule:
    """An invariant of a manifest. `holds` rejects the call where that is not known."""

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
            return False  # nothing holds over what is missing
        except ExpressionError as error:
            # Not knowing is no reason to correct.
            raise _RuleRejectsError(self, error.message, violated=False) from error
        if value is not True and value is not False:
            why = f"{self._check.text}: gives {type(value).__name__}, not true or false"
            raise _RuleRejectsError(self, why, violated=False)
        return value

    def corrected(self, arguments: dict[str, Any], _: InvariantContext) -> dict[str, Any] | DropStep | None:
        if isinstance(self._correct, Correction):
            return {**arguments, **self._correct.set}
        return DROP_STEP if self._correct == "prune" else None


class _FunctionRule:
    """An invariant of a contract in Python. It may correct `arguments`, if it declares nothing narrower."""

    rejection = RejectionCode.INVALID_PAYLOAD

    def __init__(self, invariant: ToolInvariant, arguments: frozenset[str]) -> None:
        self.id = invariant.id
        self.rule = invariant.rule
        self._invariant = invariant
        self._declared = arguments if invariant.corrects is None else frozenset(invariant.corrects)

    def holds(self, arguments: dict[str, Any], context: InvariantContext) -> bool:
        holds = self._called(self._invariant.check, "check", arguments, context)
        if holds is not True and holds is not False:
            end_coroutine(holds)
            raise _RuleRejectsError(self, f"its check gives {type(holds).__name__}, not true or false")
        return holds

    def corrected(self, arguments: dict[str, Any], context: InvariantContext) -> dict[str, Any] | DropStep | None:
        if self._invariant.correct is None:
            return None
        match self._called(self._invariant.correct, "corrector", arguments, context):
            case DropStep.DROP_STEP | tuple((DropStep.DROP_STEP, True)):
                return DROP_STEP
            case tuple((corrected, True)):
                return self._within_declaration(corrected, arguments)
            case tuple((_, False)):
                return None
            case result:
                end_coroutine(result)
                raise _RuleRejectsError(self, "its corrector has to return (arguments, true or false) or DROP_STEP")

    def _called(
        self, function: Callable[..., Any], role: str, arguments: dict[str, Any], context: InvariantContext
    ) -> Any:
        state = dict(context.state)
        if context.plan is not None:
            state["plan"] = context.plan(arguments)
        try:
            # Copies, as the function may write to what it gets.
            return function(*orjson.loads(orjson.dumps([arguments, state, dict(context.config)])))
        except Exception as error:
            _log.error("the %s of invariant %s raised %s", role, self.id, place_of(error))
            raise _RuleRejectsError(self, f"its {role} raised {type(error).__name__}") from error

    def _within_declaration(self, result: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        if type(result) is not dict:
            raise _RuleRejectsError(self, f"its corrector gives {type(result).__name__}, not arguments")
        try:
            check_json(result, depth=1)
        except JsonValueError as error:
            raise _RuleRejectsError(self, f"the corrector's result is not JSON: {error}"[:_LONGEST]) from None
        outside = set(changed_arguments(arguments, result)) - self._declared
        if outside:
            raise _RuleRejectsError(self, f"its corrector changes {min(outside)[:_LONGEST]}, which it does not declare")
        return result


_Rule = _ExpressionRule | _FunctionRule


class Invariants:
    """The invariants of one tool: of its entry, and of its contract in Python. `arguments` are those of its schema.

    Immutable and safe to share between threads. ExpressionError where a check of the manifest is not CEL.
    """

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
        """Correct, prune or reject a call, whose arguments the schema admits, until every invariant holds.

        The first that trips is corrected and all are checked anew, at most `MAX_CORRECTIONS` times. So what comes out
        violates none of them: applying them again changes nothing.
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
        """Return `ID: why` for each invariant that the call violates, correcting nothing."""
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
    """Return what a tripped rule makes of the arguments; it rejects when it corrects nothing, or nothing more."""
    if last:
        raise _RuleRejectsError(rule, f"still violated after {MAX_CORRECTIONS} corrections")
    corrected = rule.corrected(arguments, context)
    if corrected is None:
        raise _RuleRejectsError(rule, rule.rule)
    if corrected is DROP_STEP:
        return DROP_STEP
    if not changed_arguments(arguments, corrected):
        raise _RuleRejectsError(rule, f"{rule.rule} (its correction does not help)")
    fault = schema_fault(corrected)
    if fault is not None:
        raise _RuleRejectsError(rule, f"its correction does not pass the schema: {fault}")
    return corrected


def changed_arguments(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the arguments that differ, sorted; 1 and true differ."""
    old, new = ({name: canonical(value) for name, value in arguments.items()} for arguments in (before, after))
    return tuple(sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)))
