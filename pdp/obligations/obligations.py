"""The obligations of a decision, and their handlers in a fixed order.

An obligation `{id, on, parameters}` belongs to the verdict that it stands with. With ALLOW each needs a handler that
takes its parameters; one that nobody can fulfil is a DENY. With DENY and STEP_UP obligations inform, but for
`log_level`, which is fulfilled whatever the verdict.

The order of the steps is fixed. Before the audit: parameters checked, `transform`, `before` of each, by id. On the
result: `pin_retrieval_snapshot`, `draft_only`, the application's own by id, `redact`, `mark_result`: so nothing that a
handler puts into a result escapes being redacted. The baseline's handlers are in pdp/obligations/handlers.py.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.decision import Verdict
from pdp.errors import UsageError
from pdp.obligations.handlers import AFTER_OWN, BEFORE_OWN, Delivery, ObligationError, ObligationHandler, log_level
from pdp.proposal import Execution, Failure, FailureCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdp.decision import Decision, Obligation

_log = logging.getLogger("pdp.pep")

_SHOWING: Final = frozenset((*BEFORE_OWN, *AFTER_OWN)) - {"redact"}


@dataclass(frozen=True, slots=True)
class Duties:
    """The obligations of one decision with their handlers, in their order on a result."""

    duties: tuple[tuple[Obligation, ObligationHandler], ...] = ()
    log_level: int | None = None
    transform: Mapping[str, Any] | None = None

    def before(self, body: bytes) -> None:
        """Do what comes before the tool runs; `body` is the decided request as canonical JSON.

        Raises:
            ObligationError: one is not fulfilled.
        """
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
                return _withheld(obligation.id), Delivery(None)
        return execution._replace(result=delivery.result), delivery

    def _failed(self, execution: Execution) -> Execution:
        """Return a failure without its text, where an obligation hides parts of results: the text could quote them."""
        hiding = next((duty.id for duty, _ in self.duties if duty.id not in _SHOWING), None)
        failure = execution.failure
        if hiding is None or failure is None:
            return execution
        details: dict[str, Any] = {
            name: item for name, item in failure.details.items() if name in ("effect", "exception")
        }
        message = f"the tool failed; its message is withheld by the obligation {hiding}"
        return execution._replace(failure=replace(failure, message=message, details=details), error=None)


NO_DUTIES: Final = Duties()


class Obligations:
    """The handlers by the id of what they fulfil: the baseline's, and the application's own.

    Args:
        own: the application's. None of them replaces one of the baseline.

    Raises:
        UsageError: not a handler, an id of the baseline, or a handler with coroutines.
    """

    def __init__(self, own: Mapping[str, ObligationHandler] | None = None) -> None:
        mine = dict(sorted((own or {}).items()))
        for name, handler in mine.items():
            _check_handler(name, handler, BEFORE_OWN.keys() | AFTER_OWN.keys())
        self._handlers: dict[str, ObligationHandler] = {**BEFORE_OWN, **mine, **AFTER_OWN}
        self._places = {name: place for place, name in enumerate(self._handlers)}

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
        return Duties(
            tuple(
                (obligation, self._handlers[obligation.id])
                for obligation in sorted(decision.obligations, key=lambda duty: self._places[duty.id])
            ),
            log_level(decision.obligations),
            _transform(decision.obligations, transformed=transformed),
        )


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
        _log.exception("the handler of the obligation %s failed", name)
        raise ObligationError(f"{name}: its handler failed; the log says how") from error


def _withheld(name: str) -> Execution:
    message = f"the obligation {name} could not be fulfilled; the result is withheld"
    return Execution(failure=Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"obligation": name}))


def _check_handler(name: str, handler: object, taken: Iterable[str]) -> None:
    if name in taken:
        raise UsageError(f"obligation {name} is fulfilled by the baseline", hint="choose another id for your own")
    if not isinstance(handler, ObligationHandler):
        raise UsageError(f"the handler of obligation {name} cannot be used", hint="derive it from ObligationHandler")
    for step in ("check", "before", "on_result"):
        # Calling a coroutine function does nothing, and a check that does nothing would be passed.
        if inspect.iscoroutinefunction(getattr(handler, step)):
            raise UsageError(f"the handler of obligation {name} has an async {step}", hint="make it a plain function")
