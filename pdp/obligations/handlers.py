"""The obligations of a decision, and their handlers: those of the baseline and those of an application.

An obligation `{id, on, parameters}` belongs to the verdict that it stands with. With ALLOW each needs a handler that
takes its parameters; one that nobody can fulfil is a DENY. With DENY and STEP_UP obligations inform, but for
`log_level`, which is fulfilled whatever the verdict.

The order of the steps is fixed. With the decision: parameters checked, `transform`. After its event, when key and
approval are reserved and the tool is about to run: `before` of each, by id. On the result: `pin_retrieval_snapshot`,
`draft_only`, the application's own by id, `redact`, `mark_result`: so nothing that a handler puts into a result escapes
being redacted.

Sources: tool pattern library, 9.3: a composition's output is always a draft (pattern 5), a search's snapshot id is
recorded (pattern 10), aggregation and search hand on the markings of what they read (patterns 8 and 10).
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
    """An obligation that cannot be fulfilled. Before a call it is a DENY; on a result, the result is withheld."""

    code = "obligations.unfulfillable"


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the caller gets of a call that ran: its result, markings and retrieval snapshot."""

    result: Any
    markings: frozenset[str] = frozenset()
    retrieval_snapshot: str | None = None


class ObligationHandler:
    """Fulfils the obligations of one id. Derive from it and override what is needed; shared between threads.

        class Notify(ObligationHandler):
            def check(self, parameters):
                if set(parameters) != {"channel"}:
                    raise ObligationError("notify needs a channel")

            def before(self, parameters, request):
                send(parameters["channel"], request["action"]["name"])

        pep = Pep(manifest, engine, obligations={"notify": Notify()})

    Whatever it raises counts as not fulfilled. Its methods are plain functions, not coroutines.
    """

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Raise `ObligationError` when it cannot be fulfilled with these parameters; nothing has run yet.

        Also asked when a call is only decided, so it changes nothing.
        """

    def before(self, parameters: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        """Act before the tool runs, or refuse by raising `ObligationError`. `request` is what was decided.

        The decision stands in the audit by then, and key and approval are reserved; a refusal is one event more.
        """

    def on_result(self, parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:  # noqa: ARG002 - of others
        """Return what is delivered in place of `delivery`; what the tool returned is never changed itself."""
        return delivery


class _Baseline(ObligationHandler):
    """A handler of the baseline: the JSON Schema of its parameters, and what it makes of a result."""

    def __init__(
        self, schema: dict[str, Any], on_result: Callable[[Mapping[str, Any], Delivery], Delivery] | None = None
    ) -> None:
        self._validator = compile_schema({"properties": {}, **schema, "additionalProperties": False})
        self._on_result = on_result

    def check(self, parameters: Mapping[str, Any]) -> None:
        for line in self._validator.lines(thawed(parameters), "parameters"):
            raise ObligationError(f"its parameters cannot be used: {line}")

    def on_result(self, parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:
        return delivery if self._on_result is None else self._on_result(parameters, delivery)


class _Reserve(_Baseline):
    """The enforcement point reserves what the policy was shown of a cumulative limit; anything else nobody can."""

    def before(self, parameters: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        shown = request["context"].get("spent", ())
        stated = parameters["limit"], parameters["amount"]
        if not any((entry["limit"], entry.get("amount")) == stated for entry in shown):
            raise ObligationError(f"the call takes no {parameters['amount']} of a limit {parameters['limit']}")


def _with_snapshot(_: Mapping[str, Any], delivery: Delivery) -> Delivery:
    """Let the result name the snapshot that it was retrieved from."""
    result = delivery.result
    named = {result[name] for name in _SNAPSHOT if name in result} if isinstance(result, dict) else set()
    snapshot = named.pop() if len(named) == 1 else None
    if not isinstance(snapshot, str) or not snapshot:
        raise ObligationError("the result names no snapshot, or more than one")
    return replace(delivery, retrieval_snapshot=snapshot)


def _as_draft(_: Mapping[str, Any], delivery: Delivery) -> Delivery:
    """Call an object without a state a draft; nothing but a draft gets through."""
    result = delivery.result
    if not isinstance(result, dict) or result.get("state", "draft") != "draft":
        raise ObligationError("the result is no draft")
    return replace(delivery, result={**result, "state": "draft"})


def _redacted(parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:
    """Replace what is there at JSON pointers (RFC 6901; the empty one is the whole result), in a copy."""
    check_json(delivery.result)
    # In a list, so that the whole result can be replaced like any part of it.
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
    # Another proposal takes the place of this one.
    "transform": _Baseline({"properties": _PROPOSAL, "minProperties": 1}),
    # Findings that decide nothing: the decision has them, for whoever reads it.
    "note": _Baseline({"properties": {"codes": _TEXTS}, "required": ["codes"]}),
    # The decision is logged at the level; of several, at the highest.
    "log_level": _Baseline({"properties": {"level": {"enum": sorted(_LEVELS)}}, "required": ["level"]}),
    # The amount is reserved of the limit's budget, whose sum with it may not pass the cap; null: it may.
    "reserve": _Reserve({"properties": _RESERVED, "required": sorted(_RESERVED)}),
    "pin_retrieval_snapshot": _Baseline({}, _with_snapshot),
    "draft_only": _Baseline({}, _as_draft),
}
"""The handlers that come before the application's own on a result, in their order."""

AFTER_OWN: Final[dict[str, ObligationHandler]] = {
    "redact": _Baseline({"properties": {"fields": _POINTERS}, "required": ["fields"]}, _redacted),
    # The markings that the result carries; of several obligations, all.
    "mark_result": _Baseline({"properties": {"markings": _TEXTS}, "required": ["markings"]}, _marked),
}
"""Those that come after them."""

_SHOWING: Final = frozenset((*BEFORE_OWN, *AFTER_OWN)) - {"redact"}


@dataclass(frozen=True, slots=True)
class Duties:
    """The obligations of one decision with their handlers, in their order on a result."""

    duties: tuple[tuple[Obligation, ObligationHandler], ...] = ()
    log_level: int | None = None
    transform: Mapping[str, Any] | None = None

    def before(self, body: bytes) -> None:
        """Do what comes before the tool runs, or raise ObligationError; `body` is the decided request as JSON."""
        for obligation, handler in sorted(self.duties, key=lambda duty: duty[0].id):
            _attempt(obligation.id, handler.before, obligation.parameters, orjson.loads(body))

    def delivered(self, execution: Execution) -> tuple[Execution, Delivery]:
        """Return what the caller gets of an execution: the result as the obligations leave it, or a failure."""
        delivery = Delivery(execution.result)
        if execution.failure is not None:
            return self._failed(execution), delivery
        for obligation, handler in self.duties:
            try:
                delivery = handler.on_result(obligation.parameters, delivery)
                if not isinstance(delivery, Delivery):
                    raise TypeError(f"on_result returned {type(delivery).__name__}")  # noqa: TRY301 - as if it raised
            except Exception as error:  # noqa: BLE001 - whatever it was, the result does not go out
                # Its text could quote the result, which is what may not be seen.
                _log.error("the obligation %s failed on a result: %s", obligation.id, type(error).__name__)
                message = f"the obligation {obligation.id} could not be fulfilled; the result is withheld"
                withheld = Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"obligation": obligation.id})
                return Execution(failure=withheld), Delivery(None)
        return execution._replace(result=delivery.result), delivery

    def _failed(self, execution: Execution) -> Execution:
        """Return a failure without its text, where an obligation hides parts of results: the text could quote them."""
        hiding = next((duty.id for duty, _ in self.duties if duty.id not in _SHOWING), None)
        failure = execution.failure
        if hiding is None or failure is None:
            return execution
        details = {name: item for name, item in failure.details.items() if name in ("effect", "exception")}
        message = f"the tool failed; its message is withheld by the obligation {hiding}"
        return execution._replace(failure=replace(failure, message=message, details=details), error=None)


class Obligations:
    """The handlers by the id of what they fulfil: the baseline's and, beside them, the application's own.

    UsageError: not a handler, an id of the baseline, or a handler with coroutines.
    """

    def __init__(self, own: Mapping[str, ObligationHandler] | None = None) -> None:
        mine = dict(sorted((own or {}).items()))
        for name, handler in mine.items():
            _check_handler(name, handler, BEFORE_OWN.keys() | AFTER_OWN.keys())
        self._handlers: dict[str, ObligationHandler] = {**BEFORE_OWN, **mine, **AFTER_OWN}

    def duties(self, decision: Decision, *, transformed: bool) -> Duties:
        """Return the duties of a decision; `transformed`: on a proposal that was transformed already.

        Raises:
            ObligationError: the verdict is ALLOW, and an obligation has no handler or parameters that it cannot take,
                or a second one transforms the same proposal.
        """
        if decision.verdict is not Verdict.ALLOW:
            return Duties(log_level=log_level(decision.obligations))
        unknown = sorted({obligation.id for obligation in decision.obligations} - self._handlers.keys())
        if unknown:
            raise ObligationError(f"nobody here can fulfil: {', '.join(unknown)}")
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
        raise ObligationError("transform: a proposal is transformed once, and this would be the second time")
    return transforms[0] if transforms else None


def _attempt(name: str, step: Any, *given: Any) -> None:
    try:
        step(*given)
    except ObligationError as error:
        raise ObligationError(f"{name}: {error.message}") from error
    except Exception as error:
        _log.error("the handler of the obligation %s failed: %s", name, place_of(error))
        raise ObligationError(f"{name}: its handler failed; the log says how") from error


def _check_handler(name: str, handler: object, taken: Iterable[str]) -> None:
    if name in taken:
        raise UsageError(f"obligation {name} is fulfilled by the baseline", hint="choose another id for your own")
    if not isinstance(handler, ObligationHandler):
        raise UsageError(f"the handler of obligation {name} cannot be used", hint="derive it from ObligationHandler")
    for step in ("check", "before", "on_result"):
        # Calling a coroutine function does nothing, and a check that does nothing would be passed.
        if inspect.iscoroutinefunction(getattr(handler, step)):
            raise UsageError(f"the handler of obligation {name} has an async {step}", hint="make it a plain function")


def log_level(obligations: Iterable[Obligation]) -> int | None:
    """Return the highest level, as of `logging`, that a `log_level` names."""
    stated = [obligation.parameters.get("level") for obligation in obligations if obligation.id == "log_level"]
    return max((_LEVELS[level] for level in stated if type(level) is str and level in _LEVELS), default=None)


def transformed(proposal: Proposal, parameters: Mapping[str, Any]) -> Proposal:
    """Return what takes the place of `proposal` by a `transform`, still to be read."""
    arguments = {**orjson.loads(proposal.text), **parameters.get("set", {})}
    return replace(proposal, tool=parameters.get("tool", proposal.tool), arguments=arguments)


def _redact(node: Any, steps: list[str]) -> None:
    """Replace what `steps` lead to. What is not there need not be hidden; another shape than expected is an error."""
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
    # A list where an object was expected, say: what should be hidden may stand somewhere else in it.
    raise ObligationError(f"the result has another shape than the pointer's step {step!r:.60}")
