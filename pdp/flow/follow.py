"""The ledger of a call's run: read before the decision, written before a result goes out. Others do not load this."""

import logging
from collections.abc import Generator
from functools import partial
from typing import Final

from pdp.contract.checks import Checked
from pdp.contract.sensitive import place_of
from pdp.flow.drive import Step, Work
from pdp.flow.parts import Stores
from pdp.flow.stages import Asked, Executed, Prepared, withheld
from pdp.ledger.ledger import RunLabels
from pdp.ledger.summary import CallFlow

_log = logging.getLogger("pdp.pep")

_WITHHELD: Final = "the tool ran, and its result is withheld: the ledger of the run could not be written"


def call_flow(asked: Asked, checked: Checked, stores: Stores) -> Generator[Step, CallFlow | None, CallFlow | None]:
    """Return what the ledger says of a call; None where its session names no run.

    StateError: the run has expired, or the ledger cannot be read.
    """
    session, ledger = asked.session, stores.ledger
    if not session.run_id:
        return None
    work = partial(checked.tool.tracker.call_flow, checked.proposal.arguments, session, ledger, asked.received.now)
    return (yield Work(work, blocking=ledger.blocking))


def endorse(prepared: Prepared, stores: Stores) -> Generator[Step, None, None]:
    """Write what the approval of a call endorses, before its tool runs; StateError if it cannot be written."""
    flow = prepared.flow
    if flow is None or prepared.approval is None:
        return
    endorsed = prepared.checked.tool.tracker.endorsed(flow, _call_id(prepared))
    if endorsed:
        ledger, now = stores.ledger, prepared.asked.received.now
        yield Work(lambda: ledger.write(flow.run, RunLabels(), endorsed, now), blocking=ledger.blocking)


def follow(executed: Executed, prepared: Prepared, stores: Stores) -> Generator[Step, None, Executed]:
    """Write to the ledger what a result brings into the run; a result that cannot be written does not go out."""
    flow, execution = prepared.flow, executed.execution
    # A tool that is not available says so itself.
    if flow is None or not (execution.started or execution.replayed or execution.error is not None):
        return executed
    ledger, now, failure = stores.ledger, prepared.asked.received.now, execution.failure
    shown = execution.result if failure is None else failure.message
    arguments, tracker = prepared.checked.proposal.arguments, prepared.checked.tool.tracker
    try:
        labels, sources = tracker.learned(flow, arguments, shown, _call_id(prepared), failed=failure is not None)
        new = labels.joined(RunLabels(markings=executed.markings)).beyond(flow.labels)
        if sources or new != RunLabels():
            yield Work(lambda: ledger.write(flow.run, new, sources, now), blocking=ledger.blocking)
    except Exception as error:  # noqa: BLE001 - whatever it was: nobody would know any more what the run has seen
        _log.error("a result could not be written to the run's ledger, and is withheld: %s", place_of(error))
        execution = withheld(execution, _WITHHELD)
        return executed._replace(execution=execution, state=None, markings=frozenset(), retrieval_snapshot=None)
    return executed


def _call_id(prepared: Prepared) -> str:
    return prepared.asked.received.tool_call_id or prepared.asked.request_id
