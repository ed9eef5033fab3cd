"""The end of a call: `settle` stores its outcome, and `deliver` builds the result for its caller.

If the call had no effect, its key and budgets are released. If the effect is unknown, a person has to settle the call.
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

CANCELLED: Final = not_run("the call was cancelled before its tool started")
_UNDELIVERED: Final = "the tool ran, but its result could not be delivered"
_WITHHELD: Final = "the tool ran, but its result is withheld, because the run's ledger could not be written"


def settle(
    reserved: Reserved, action: Action | None, execution: Execution, stores: Stores
) -> Generator[Step, Any, Action | None]:
    """Store the outcome of a call with its action, key and budgets. Return the action in its new state, or None."""
    compensates = reserved.prepared.asked.received.compensates
    if action is None and compensates is None and reserved.key is None and reserved.budgets is None:
        return None
    if action is not None or compensates is not None:
        move = partial(_settle_action, action, compensates, stores.actions, execution)
        action = yield Work(move, blocking=stores.actions.blocking)
    yield from _settle_reserved(reserved, execution, stores)
    return action


def release(
    reserved: Reserved, action: Action | None, stores: Stores, execution: Execution = CANCELLED
) -> Generator[Step, Any, None]:
    """Store an outcome that the audit already contains. If storing fails, log the error and keep the reservations."""
    try:
        yield from settle(reserved, action, execution, stores)
    except Exception:  # noqa: BLE001 - the end of the call is recorded already
        _log.critical("could not release the call's reservations", exc_info=True)


def deliver(
    reserved: Reserved, action: Action | None, execution: Execution, stores: Stores
) -> Generator[Step, Any, Executed]:
    """Build the caller's result with the pattern's checks and the obligations. Any error withholds the result."""
    executed = Executed(reserved.decided, execution, action)
    try:
        executed = _filtered(executed, reserved)
        if executed.execution.failure is not None:
            executed = executed._replace(markings=frozenset(), retrieval_snapshot=None)
    except Exception as error:  # noqa: BLE001 - any error withholds the result
        _log.error("a result could not be delivered: %s", place_of(error))
        executed = executed._replace(execution=withheld(execution, _UNDELIVERED))
    if reserved.prepared.flow is not None:
        executed = yield from _write_labels(executed, reserved.prepared, stores)
    return executed


def _filtered(executed: Executed, reserved: Reserved) -> Executed:
    tool, enforced, duties = reserved.decided.tool, reserved.enforced, reserved.decided.duties
    if enforced is not None:
        executed = executed._replace(**enforced.after(executed.execution)._asdict())
    if duties is not None:
        before = executed.execution
        execution, delivery = duties.delivered(before)
        # The tool ran, and then an obligation withheld its result.
        if execution.failure is not None and before.failure is None:
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
    """Store the outcome with the key, and commit or release the budgets. An unknown effect keeps budgets reserved."""
    tool, key, budgets = reserved.decided.tool, reserved.key, reserved.budgets
    effect = execution.failure.details.get("effect") if execution.failure else "done"

    def finish() -> None:
        try:
            if key is not None:
                stores.keys.finish(key, execution, now=time.time(), effects=tool.entry.has_effects)
        except Exception:  # noqa: BLE001 - the tool has run already
            _log.critical(
                "a tool ran, but its idempotency key could not be finished, so the key stays reserved", exc_info=True
            )
        try:
            if budgets is None:
                return
            if not execution.started or effect == "none":
                stores.budgets.release(budgets)
            elif effect == "done" or not tool.entry.has_effects:
                stores.budgets.commit(budgets)
        except Exception:  # noqa: BLE001 - the tool has run already
            _log.critical(
                "could not settle the budgets of a finished call, so its amounts stay reserved", exc_info=True
            )

    waits = (key is not None and stores.keys.blocking) or (budgets is not None and stores.budgets.blocking)
    yield Work(finish, waits)


def _settle_action(
    action: Action | None, compensates: Action | None, actions: ActionStore, execution: Execution
) -> Action | None:
    """Store a call's outcome in its action, or in the action that the call compensates. Store errors are logged."""
    succeeded = execution.outcome == "succeeded"
    if action is not None and execution.outcome != "unknown":
        action = _moved(action, actions, ActionState.COMMITTED if succeeded else ActionState.FAILED)
    if compensates is not None and succeeded:
        _moved(compensates, actions, ActionState.COMPENSATED)
    return action


def _moved(action: Action, actions: ActionStore, state: ActionState) -> Action:
    try:
        return actions.move(action, state)
    except Exception:  # noqa: BLE001 - the tool has run already
        with suppress(Exception):
            now = actions.get(action.id)
            if now is not None and now.state is state:
                return now
        _log.critical("action %s has run, but its state could not be changed to %s", action.id, state, exc_info=True)
        return action


def _write_labels(executed: Executed, prepared: Prepared, stores: Stores) -> Generator[Step, None, Executed]:
    """Write the labels of a result to the run's ledger. If the labels cannot be written, the result is withheld."""
    flow, execution = prepared.flow, executed.execution
    # A tool that raised `ToolUnavailableError` did not start, but it wrote the message, which gets labels too.
    if flow is None or not (execution.started or execution.replayed or execution.error is not None):
        return executed
    ledger, now, failure = stores.ledger, prepared.asked.received.now, execution.failure
    shown = execution.result if failure is None else failure.message
    from pdp.ledger.ledger import RunLabels  # noqa: PLC0415 - only if the manifest tracks flow

    arguments, tracker = prepared.checked.proposal.arguments, prepared.checked.tool.tracker
    try:
        labels, sources = tracker.learned(flow, arguments, shown, prepared.call_id, failed=failure is not None)
        new = labels.joined(RunLabels(markings=executed.markings)).beyond(flow.labels)
        if sources or new != RunLabels():
            yield Work(lambda: ledger.write(flow.run, new, sources, now), blocking=ledger.blocking)
    except Exception as error:  # noqa: BLE001 - without its labels the result must be withheld
        _log.error("a result could not be written to the run's ledger, so the result is withheld: %s", place_of(error))
        execution = withheld(execution, _WITHHELD)
        return executed._replace(execution=execution, state=None, markings=frozenset(), retrieval_snapshot=None)
    return executed
