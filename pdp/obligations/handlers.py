"""The obligations of a decision, and the handlers of the baseline and of an application.

An obligation `{id, on, parameters}` belongs to a verdict. With ALLOW, each obligation needs a handler that accepts its
parameters; without such a handler, the call is denied. With DENY and STEP_UP, obligations only inform, except
`log_level`, which always applies.

The order of the steps is fixed:

- With the decision: the parameters are checked, and `transform` applies.
- After decision, key and approval are stored, before the tool runs: `before` of each handler, by id.
- On the result: `pin_retrieval_snapshot`, `draft_only`, the application's handlers by id, `redact`, `mark_result`. So
  `redact` also covers data that a handler adds to a result.

Sources: tool pattern library, 9.3: a composition's output is always a draft (pattern 5), a search's snapshot id is
recorded (pattern 10), aggregation and search pass on the markings of their inputs (patterns 8 and 10).
"""

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from pdp.contract.sensitive import place_of
from pdp.decision import Decision, Obligation, Verdict
from pdp.errors import PdpError, UsageError
from pdp.json import canonical, check_json, pointer_steps, thawed
from pdp.manifest.schema.compile import compile_schema
from pdp.proposal import Execution, Failure, FailureCode, Proposal

_log = logging.getLogger("pdp.pep")

REDACTED: Final = "[redacted]"

_LEVELS: Final = {
    "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR,
}  # fmt: skip
_INDEX: Final = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)
_SNAPSHOT: Final = ("retrievalSnapshotId", "retrieval_snapshot_id")


class ObligationError(PdpError):
    """An obligation cannot be fulfilled. Before the run, the call is denied; after the run, the result is withheld."""

    code = "obligations.unfulfillable"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result that the caller receives, with its markings and its retrieval snapshot."""

    result: Any
    markings: frozenset[str] = frozenset()
    retrieval_snapshot: str | None = None


class ObligationHandler:
    """Base class of obligation handlers: derive from it to fulfil the obligations with one id.

    Pass handlers to `Pep(..., obligations={"notify": Notify()})`; threads share them. If a method raises any error, the
    obligation counts as not fulfilled. The methods are plain functions, not coroutines.

    Examples:
        >>> from pdp.tools import ObligationError
        >>> class Notify(ObligationHandler):
        ...     def check(self, parameters):
        ...         if set(parameters) != {"channel"}:
        ...             raise ObligationError("notify needs a channel")
        ...     def before(self, parameters, request):
        ...         print(f"{parameters['channel']}: {request['action']['name']}")
        >>> Notify().before({"channel": "payments"}, {"action": {"name": "wire"}})
        payments: wire
    """

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Check the parameters of an obligation. There must be no side effects, because the call may never run.

        Raises:
            ObligationError: the obligation cannot be fulfilled with these parameters.
        """

    def before(self, parameters: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        """Act just before the tool runs, when the decision is recorded and key and approval are reserved.

        Args:
            parameters: the parameters of the obligation.
            request: the request that was decided.

        Raises:
            ObligationError: the tool must not run.
        """

    def on_result(self, parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:  # noqa: ARG002 - for overriding
        """Return what the caller receives: `delivery` or a changed copy. The tool's own result stays unchanged."""
        return delivery


class _Baseline(ObligationHandler):
    """A handler of the baseline, made of a JSON Schema for its parameters and a function that changes a result."""

    def __init__(
        self, schema: dict[str, Any], on_result: Callable[[Mapping[str, Any], Delivery], Delivery] | None = None
    ) -> None:
        self._validator = compile_schema({"properties": {}, **schema, "additionalProperties": False})
        self._on_result = on_result

    def check(self, parameters: Mapping[str, Any]) -> None:
        for line in self._validator.lines(thawed(parameters), "parameters"):
            raise ObligationError(f"the obligation's parameters are not valid: {line}")

    def on_result(self, parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:
        return delivery if self._on_result is None else self._on_result(parameters, delivery)


class _Reserve(_Baseline):
    """Checks that the enforcement point reserves exactly the amount of a cumulative limit that the policy has seen."""

    def before(self, parameters: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        spent = request["context"].get("spent", ())
        wanted = parameters["limit"], parameters["amount"]
        if not any((entry["limit"], entry.get("amount")) == wanted for entry in spent):
            raise ObligationError(
                f"the call does not reserve the amount {parameters['amount']} of the limit {parameters['limit']}"
            )


def _with_snapshot(_: Mapping[str, Any], delivery: Delivery) -> Delivery:
    result = delivery.result
    names = {result[name] for name in _SNAPSHOT if name in result} if isinstance(result, dict) else set()
    snapshot = names.pop() if len(names) == 1 else None
    if not isinstance(snapshot, str) or not snapshot:
        raise ObligationError("the result must name exactly one snapshot")
    return replace(delivery, retrieval_snapshot=snapshot)


def _as_draft(_: Mapping[str, Any], delivery: Delivery) -> Delivery:
    """Return the delivery with the result's state set to `draft`. Another state raises `ObligationError`."""
    result = delivery.result
    if not isinstance(result, dict) or result.get("state", "draft") != "draft":
        raise ObligationError("the result is not a draft")
    return replace(delivery, result={**result, "state": "draft"})


def _redacted(parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:
    """Return the delivery with a copy of the result in which these fields (JSON Pointers, RFC 6901) are redacted."""
    check_json(delivery.result)
    # The result is put into a list, so that the whole result can be replaced in the same way as any part of it.
    holder = [orjson.loads(canonical(delivery.result))]
    for pointer in parameters["fields"]:
        _redact(holder, ["0", *pointer_steps(pointer)])
    return replace(delivery, result=holder[0])


def _marked(parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:
    return replace(delivery, markings=delivery.markings | set(parameters["markings"]))


_TEXTS: Final = {"type": "array", "minItems": 1, "items": {"type": "string"}}
_POINTERS: Final = {**_TEXTS, "items": {"type": "string", "pattern": "^(/([^~/]|~[01])*)*$"}}
_RESERVED: Final = {
    "limit": {"type": "string"}, "amount": {"type": "number", "minimum": 0}, "cap": {"type": ["number", "null"]},
    "window": {},
}  # fmt: skip
_PROPOSAL: Final = {"set": {"type": "object"}, "tool": {"type": "string"}}

BEFORE_OWN: Final[dict[str, ObligationHandler]] = {
    # This obligation replaces the proposal.
    "transform": _Baseline({"properties": _PROPOSAL, "minProperties": 1}),
    # The obligation lists findings that did not change the decision, for readers of the decision.
    "note": _Baseline({"properties": {"codes": _TEXTS}, "required": ["codes"]}),
    # The obligation sets the level at which the decision is logged. If there are several, the highest level counts.
    "log_level": _Baseline({"properties": {"level": {"enum": sorted(_LEVELS)}}, "required": ["level"]}),
    # The obligation reserves the amount from the limit's budget. The total may then not exceed `cap`; null means no
    # cap.
    "reserve": _Reserve({"properties": _RESERVED, "required": sorted(_RESERVED)}),
    "pin_retrieval_snapshot": _Baseline({}, _with_snapshot),
    "draft_only": _Baseline({}, _as_draft),
}
"""The handlers that run on a result before the application's own, in their order."""

AFTER_OWN: Final[dict[str, ObligationHandler]] = {
    "redact": _Baseline({"properties": {"fields": _POINTERS}, "required": ["fields"]}, _redacted),
    # The result carries the markings of all obligations of this type.
    "mark_result": _Baseline({"properties": {"markings": _TEXTS}, "required": ["markings"]}, _marked),
}
"""The handlers that run on a result after the application's own."""

_SHOWING: Final = frozenset((*BEFORE_OWN, *AFTER_OWN)) - {"redact"}


@dataclass(frozen=True, slots=True)
class Duties:
    """The obligations of a decision with their handlers, in the order in which they run on the result."""

    duties: tuple[tuple[Obligation, ObligationHandler], ...] = ()
    log_level: int | None = None
    transform: Mapping[str, Any] | None = None

    def before(self, body: bytes) -> None:
        """Call `before` of each handler, or raise `ObligationError`. `body` is the decided request as JSON."""
        for obligation, handler in sorted(self.duties, key=lambda duty: duty[0].id):
            _attempt(obligation.id, handler.before, obligation.parameters, orjson.loads(body))

    def delivered(self, execution: Execution) -> tuple[Execution, Delivery]:
        """Run the obligations on the result. Return the execution, or a failure, and what the caller receives."""
        delivery = Delivery(execution.result)
        if execution.failure is not None:
            return self._failed(execution), delivery
        for obligation, handler in self.duties:
            try:
                delivery = handler.on_result(obligation.parameters, delivery)
                if not isinstance(delivery, Delivery):
                    raise TypeError(f"on_result returned {type(delivery).__name__}")  # noqa: TRY301 - caught below
            except Exception as error:  # noqa: BLE001 - any error withholds the result
                # Only the type of the error is logged, because its text could quote the result.
                _log.error("the obligation %s failed on a result: %s", obligation.id, type(error).__name__)
                message = f"the obligation {obligation.id} could not be fulfilled; the result is withheld"
                withheld = Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"obligation": obligation.id})
                return Execution(failure=withheld), Delivery(None)
        return execution._replace(result=delivery.result), delivery

    def _failed(self, execution: Execution) -> Execution:
        """Return a failure. Its text, which could quote results, is dropped if an obligation hides parts of results."""
        hiding = next((duty.id for duty, _ in self.duties if duty.id not in _SHOWING), None)
        failure = execution.failure
        if hiding is None or failure is None:
            return execution
        details = {name: item for name, item in failure.details.items() if name in ("effect", "exception")}
        message = f"the tool failed; its message is withheld by the obligation {hiding}"
        return execution._replace(failure=replace(failure, message=message, details=details), error=None)


class Obligations:
    """The handlers of the baseline and of the application, by id. Raises `UsageError` for an unusable handler."""

    def __init__(self, own: Mapping[str, ObligationHandler] | None = None) -> None:
        own_handlers = dict(sorted((own or {}).items()))
        for name, handler in own_handlers.items():
            _check_handler(name, handler, BEFORE_OWN.keys() | AFTER_OWN.keys())
        self._handlers: dict[str, ObligationHandler] = {**BEFORE_OWN, **own_handlers, **AFTER_OWN}

    def duties(self, decision: Decision, *, transformed: bool) -> Duties:
        """Return the decision's obligations with their handlers. `transformed`: the proposal is already a replacement.

        Raises `ObligationError` on ALLOW if no handler accepts an obligation, or for a second transformation.
        """
        if decision.verdict is not Verdict.ALLOW:
            return Duties(log_level=log_level(decision.obligations))
        unknown = sorted({obligation.id for obligation in decision.obligations} - self._handlers.keys())
        if unknown:
            raise ObligationError(f"no handler for: {', '.join(unknown)}")
        for obligation in decision.obligations:
            _attempt(obligation.id, self._handlers[obligation.id].check, obligation.parameters)
        order = list(self._handlers)
        duties = sorted(decision.obligations, key=lambda duty: order.index(duty.id))
        return Duties(
            tuple((duty, self._handlers[duty.id]) for duty in duties),
            log_level(decision.obligations),
            _transform(decision.obligations, transformed=transformed),
        )


BASELINE: Final = Obligations()


def _transform(obligations: Iterable[Obligation], *, transformed: bool) -> Mapping[str, Any] | None:
    transforms = [obligation.parameters for obligation in obligations if obligation.id == "transform"]
    if len(transforms) > (0 if transformed else 1):
        raise ObligationError("transform: a proposal can be transformed only once")
    return transforms[0] if transforms else None


def _attempt(name: str, step: Any, *arguments: Any) -> None:
    try:
        step(*arguments)
    except ObligationError as error:
        raise ObligationError(f"{name}: {error.message}") from error
    except Exception as error:
        _log.error("the handler of the obligation %s failed: %s", name, place_of(error))
        raise ObligationError(f"{name}: the obligation's handler failed; see the log") from error


def _check_handler(name: str, handler: object, taken: Iterable[str]) -> None:
    if name in taken:
        raise UsageError(f"obligation {name} belongs to the baseline", hint="choose another id for your handler")
    if not isinstance(handler, ObligationHandler):
        raise UsageError(
            f"the handler of obligation {name} is not an ObligationHandler",
            hint="derive the handler's class from ObligationHandler",
        )
    for step in ("check", "before", "on_result"):
        # Async checks are rejected: calling a coroutine function runs nothing, so the check would always pass.
        if inspect.iscoroutinefunction(getattr(handler, step)):
            raise UsageError(f"the handler of obligation {name} has an async {step}", hint="make it a plain function")


def log_level(obligations: Iterable[Obligation]) -> int | None:
    """Return the highest level in the obligations `log_level`, as a `logging` constant; None without any."""
    levels = [obligation.parameters.get("level") for obligation in obligations if obligation.id == "log_level"]
    return max((_LEVELS[level] for level in levels if type(level) is str and level in _LEVELS), default=None)


def transformed(proposal: Proposal, parameters: Mapping[str, Any]) -> Proposal:
    """Return the new proposal that an obligation `transform` makes of `proposal`. The new proposal is unchecked."""
    arguments = {**orjson.loads(proposal.text), **parameters.get("set", {})}
    return replace(proposal, tool=parameters.get("tool", proposal.tool), arguments=arguments)


def _redact(node: Any, steps: list[str]) -> None:
    """Redact the value at a path. A missing value is ignored; an unexpected type raises `ObligationError`."""
    *path, last = steps
    for step in path:
        key = _key(node, step)
        if key is None:
            return
        node = node[key]
    key = _key(node, last)
    if key is not None:
        node[key] = REDACTED


def _key(node: Any, step: str) -> Any:
    if type(node) is dict:
        return step if step in node else None
    if type(node) is list and _INDEX.fullmatch(step):
        return int(step) if int(step) < len(node) else None
    if node is None or node == REDACTED:
        return None
    # If the structure is not the expected one, such as a list instead of an object, the value to redact may be
    # elsewhere, so this is an error.
    raise ObligationError(f"the result has no such structure: pointer step {step!r:.60}")
