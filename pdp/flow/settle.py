"""The end of a call: what is stored of its outcome (`settle`), and what its caller gets (`deliver`).

Where nothing was done, the key is free again and the budgets have back what was reserved of them. Where nobody knows
what was done, both stay reserved, for a person to settle.
"""

import logging
import time
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pdp.contract.sensitive import place_of
from pdp.errors import PdpError
from pdp.execution.failures import ToolResultError, failure_of
from pdp.flow.drive import Step, Work
from pdp.flow.parts import Stores
from pdp.flow.stages import Executed, Prepared, Reserved, not_run, withheld
from pdp.proposal import Execution
from pdp.stores.actions import Action, ActionState, ActionStore

_log = logging.getLogger("pdp.pep")

GIVEN_UP: Final = not_run("the call was given up before its tool was started")
_UNDELIVERED: Final = "the tool ran, and its result could not be delivered"
_WITHHELD: Final = "the tool ran, and its result is withheld: the ledger of the run could not be written"


def settle(
    reserved: Reserved, action: Action | None, execution: Execution, stores: Stores
) -> Generator[Step, Any, Action | None]:
    """Store the outcome of a call for its action, key and budgets, and return the action as it is then."""
    compensates = reserved.prepared.asked.received.compensates
    if action is None and compensates is None and reserved.key is None and reserved.budgets is None:
        return None
    if action is not None or compensates is not None:
        move = partial(_settle_action, action, compensates, stores.actions, execution)
        action = yield Work(move, blocking=stores.actions.blocking)
    yield from _settle_reserved(reserved, execution, stores)
    return action


def release(
    reserved: Reserved, action: Action | None, stores: Stores, execution: Execution = GIVEN_UP
) -> Generator[Step, Any, None]:
    """Settle a call whose end is recorded already. An error is logged, and what it is about stays reserved."""
    try:
        yield from settle(reserved, action, execution, stores)
    except Exception:  # noqa: BLE001 - the call's end is what is recorded
        _log.critical("could not release the call's reservations", exc_info=True)


def deliver(
    reserved: Reserved, action: Action | None, execution: Execution, stores: Stores
) -> Generator[Step, Any, Executed]:
    """Return what the caller gets of a run: what pattern and obligations leave of its result, and the state after it.

    It never raises: the tool has run by now, and its key is settled. Whatever fails here withholds the result.
    """
    executed = Executed(reserved.decided, execution, action)
    try:
        executed = _filtered(executed, reserved)
        if executed.execution.failure is not None:
            executed = executed._replace(markings=frozenset(), retrieval_snapshot=None)
    except Exception as error:  # noqa: BLE001 - whatever it was, the result does not go out
        _log.error("a result could not be delivered: %s", place_of(error))
        executed = executed._replace(execution=withheld(execution, _UNDELIVERED))
    if reserved.prepared.flow is not None:
        executed = yield from _follow(executed, reserved.prepared, stores)
    return executed


def _filtered(executed: Executed, reserved: Reserved) -> Executed:
    tool, held, duties = reserved.decided.tool, reserved.held, reserved.decided.duties
    if held is not None:
        executed = executed._replace(**held.after(executed.execution)._asdict())
    if duties is not None:
        before = executed.execution
        execution, delivery = duties.delivered(before)
        if execution.failure is not None and before.failure is None:  # an obligation withholds what is there
            execution.failure.details["effect"] = "done"
        executed = executed._replace(
            execution=execution,
            markings=delivery.markings | executed.markings,
            retrieval_snapshot=delivery.retrieval_snapshot or executed.retrieval_snapshot,
        )
    if executed.execution.failure is not None or not tool.state_effects:
        return executed
    try:
        state = tool.state_after(reserved.prepared.asked.session.state, executed.execution.result)
        return executed._replace(state=state)
    except PdpError as error:
        fault = ToolResultError(error.message)
        failure = failure_of(fault)
        failure.details["effect"] = "done"
        return executed._replace(execution=executed.execution._replace(result=None, failure=failure, error=fault))


def _settle_reserved(reserved: Reserved, execution: Execution, stores: Stores) -> Generator[Step, Any, None]:
    """Store for the reserved key what the run came to, and let what is reserved of budgets be spent.

    Where nothing was done, the key is free and the budgets have it back; a sum of which nobody knows stays as it is.
    """
    tool, key, budgets = reserved.decided.tool, reserved.key, reserved.budgets
    effect = execution.failure.details.get("effect") if execution.failure else "done"

    def finish() -> None:
        try:
            if key is not None:
                stores.keys.finish(key, execution, now=time.time(), effects=tool.entry.has_effects)
        except Exception:  # noqa: BLE001 - whatever it was, the tool has run
            _log.critical("a tool ran and its idempotency key could not be finished: it stays taken", exc_info=True)
        try:
            if budgets is None:
                return
            if not execution.started or effect == "none":
                stores.budgets.release(budgets)
            elif effect == "done" or not tool.entry.has_effects:
                stores.budgets.commit(budgets)
        except Exception:  # noqa: BLE001 - likewise
            _log.critical("a call is over, and what it has reserved could not be settled: it counts", exc_info=True)

    waits = (key is not None and stores.keys.blocking) or (budgets is not None and stores.budgets.blocking)
    yield Work(finish, waits)


def _settle_action(
    action: Action | None, compensates: Action | None, actions: ActionStore, execution: Execution
) -> Action | None:
    """Return a call's action as its run leaves it: committed, failed, or as it was where nobody knows.

    The one that the call takes back (`compensates`) is compensated when the run has succeeded. The run is over: what
    cannot be stored now is logged, and changes nothing about it.
    """
    succeeded = execution.outcome == "succeeded"
    if action is not None and execution.outcome != "unknown":
        action = _moved(action, actions, ActionState.COMMITTED if succeeded else ActionState.FAILED)
    if compensates is not None and succeeded:
        _moved(compensates, actions, ActionState.COMPENSATED)
    return action


def _moved(action: Action, actions: ActionStore, state: ActionState) -> Action:
    try:
        return actions.move(action, state)
    except Exception:  # noqa: BLE001 - whatever it was, the tool has run
        with suppress(Exception):
            now = actions.get(action.id)
            if now is not None and now.state is state:
                return now
        _log.critical(
            "what action %s stands for has run, and it could not be moved to %s", action.id, state, exc_info=True
        )
        return action


def _follow(executed: Executed, prepared: Prepared, stores: Stores) -> Generator[Step, None, Executed]:
    """Write to the ledger what a result brings into the run; a result that cannot be written does not go out."""
    flow, execution = prepared.flow, executed.execution
    # A tool that is not available says so itself.
    if flow is None or not (execution.started or execution.replayed or execution.error is not None):
        return executed
    ledger, now, failure = stores.ledger, prepared.asked.received.now, execution.failure
    shown = execution.result if failure is None else failure.message
    from pdp.ledger.ledger import RunLabels  # noqa: PLC0415 - only where labels are in use

    arguments, tracker = prepared.checked.proposal.arguments, prepared.checked.tool.tracker
    try:
        labels, sources = tracker.learned(flow, arguments, shown, prepared.call_id, failed=failure is not None)
        new = labels.joined(RunLabels(markings=executed.markings)).beyond(flow.labels)
        if sources or new != RunLabels():
            yield Work(lambda: ledger.write(flow.run, new, sources, now), blocking=ledger.blocking)
    except Exception as error:  # noqa: BLE001 - whatever it was: nobody would know any more what the run has seen
        _log.error("a result could not be written to the run's ledger, and is withheld: %s", place_of(error))
        execution = withheld(execution, _WITHHELD)
        return executed._replace(execution=execution, state=None, markings=frozenset(), retrieval_snapshot=None)
    return executed
