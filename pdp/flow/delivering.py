"""What a caller gets of a result: what its pattern, the obligations and the run that it belongs to leave of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pdp.errors import PdpError
from pdp.execution.failures import ToolResultError, failure_of
from pdp.execution.running import Execution
from pdp.obligations.obligation import Delivery
from pdp.patterns.circumstances import Checked
from pdp.patterns.exceptions import PatternFault

if TYPE_CHECKING:
    from pdp.flow.call import Call
    from pdp.patterns.circumstances import Circumstances
    from pdp.patterns.enforcement import HeldCall
    from pdp.patterns.runs import Run


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
    """Give the caller what pattern and obligations leave of a result, and what it makes of the state."""
    checked = _held(held, execution)
    call.pins = checked.pins
    call.execution, delivery = call.duties.delivered(checked.execution)
    if call.execution.failure is not None:
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
