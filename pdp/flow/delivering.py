"""What a caller gets of a result: what its pattern, the obligations and the run that it belongs to leave of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from traceback import format_tb
from typing import TYPE_CHECKING

from pdp.errors import PdpError
from pdp.execution.failures import ToolResultError, failure_of
from pdp.execution.run import Execution
from pdp.obligations.obligation import Delivery
from pdp.patterns.circumstances import Checked
from pdp.patterns.exceptions import PatternFault
from pdp.proposal import Failure, FailureCode

if TYPE_CHECKING:
    from pdp.flow.call import Call
    from pdp.patterns.circumstances import Circumstances
    from pdp.patterns.enforcement import HeldCall
    from pdp.patterns.run import Run

_log = logging.getLogger("pdp.pep")


def without_room(run: Run, about: Circumstances) -> Execution | None:
    """Return the failure of a call whose result would be marked in a run that remembers no more; None: it may run."""
    try:
        if about.resource is not None and about.markings:
            run.check_markable(*about.resource)
    except PatternFault as error:
        failure = failure_of(error)
        failure.details["effect"] = "none"
        return Execution(failure=failure, error=error, started=False)
    return None


def deliver(call: Call, execution: Execution, held: HeldCall) -> None:
    """Give the caller what pattern and obligations leave of a result, and what it makes of the state.

    It never raises: the tool has run by now, and its key is finished. Whatever fails here withholds the result.
    """
    try:
        _deliver(call, execution, held)
    except Exception as error:  # noqa: BLE001 - whatever it was, the result does not go out
        # Where it was raised, and not its text, which could quote what an obligation hides.
        where = "".join(format_tb(error.__traceback__))
        _log.error("a result could not be delivered: %s\n%s", type(error).__name__, where)
        call.execution, call.delivery, call.state = _undelivered(execution), Delivery(None), None


def _deliver(call: Call, execution: Execution, held: HeldCall) -> None:
    checked = _held(held, execution)
    call.pins = checked.pins
    call.execution, delivery = call.duties.delivered(checked.execution)
    if call.execution.failure is not None:
        if checked.execution.failure is None:  # an obligation withholds what is there
            call.execution.failure.details["effect"] = "done"
        call.delivery = Delivery(None)
        return
    call.delivery = replace(
        delivery,
        markings=delivery.markings | checked.markings,
        retrieval_snapshot=delivery.retrieval_snapshot or checked.retrieval_snapshot,
    )
    tool, session = call.checked.tool, call.session
    if tool is not None and session is not None and tool.effects:
        try:
            call.state = tool.state_after(session.state, call.execution.result)
        except PdpError as error:
            failure = failure_of(ToolResultError(error.message))
            failure.details["effect"] = "done"
            call.execution, call.delivery = call.execution._replace(result=None, failure=failure), Delivery(None)


def _held(held: HeldCall, execution: Execution) -> Checked:
    try:
        return held.after(execution)
    except PatternFault as error:
        # Others have filled the run meanwhile. A result whose markings nobody would remember does not go out.
        failure = failure_of(error)
        failure.details["effect"] = "done"
        return Checked(execution._replace(result=None, failure=failure, error=error))


def _undelivered(execution: Execution) -> Execution:
    """Return what a run came to whose result or failure cannot go out: of it all, only what became of its effect."""
    effect = "done" if execution.failure is None else execution.failure.details.get("effect", "unknown")
    message = "the tool ran, and its result could not be delivered"
    failure = Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"effect": effect})
    return execution._replace(result=None, failure=failure, error=None)
