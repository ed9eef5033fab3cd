"""Taking what a call may use only once, before its tool runs: its idempotency key and its approval, both or neither.

Source: tool pattern library, 9.1 (re-invocation with the same key has no second side effect), and 9.2 (human approval
for the very call that was approved).
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pdp.decision import denied
from pdp.execution.idempotency import (
    LASTING,
    ApprovalUse,
    Conflict,
    Fresh,
    NotApproved,
    Running,
    Stored,
    begin_waiting,
)
from pdp.execution.running import Execution
from pdp.flow.approving import use_approval
from pdp.flow.drive import Pause, Work
from pdp.flow.keys import arguments_digest, key_of
from pdp.manifest.fields import duration_seconds
from pdp.proposal import Failure, FailureCode

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqlalchemy import Connection

    from pdp.approvals.approvals import Approvals
    from pdp.execution.idempotency import Begun, IdempotencyStore
    from pdp.flow.call import Call
    from pdp.flow.drive import Step

CONFLICT: Final = "idempotency.conflict"
"""The code of a call whose idempotency key stands for a call with other arguments."""

_SPARE: Final = 5.0


class Claim(NamedTuple):
    """What a call got hold of. `token`: of its key, None without one; `instead`: what it comes to without running."""

    token: str | None = None
    instead: Execution | None = None


def claimed(call: Call, keys: IdempotencyStore, approvals: Approvals | None) -> Generator[Step, Any, Claim]:
    """Take key and approval. Where that is not possible, `call` is denied, or what it comes to is in the claim."""
    key = key_of(call)
    needs_approval = approvals is not None and call.approval is not None
    if key is None:
        if needs_approval and approvals is not None:
            yield Work(lambda: use_approval(call, approvals), blocking=approvals.blocking)
        return Claim()
    use = _use(call, approvals) if needs_approval and approvals is not None else None
    tool = call.checked.tool
    ttl = duration_seconds(tool.entry.idempotency.ttl) if tool and tool.entry.idempotency.ttl else None
    lasting = call.timeout + _SPARE if call.timeout is not None else LASTING

    def begin() -> Begun:
        with approvals.held() if use is not None and approvals is not None else nullcontext():
            return keys.begin(key, arguments_digest(call), ttl=ttl, now=time.time(), lasting=lasting, approval=use)

    begun = yield from _begun(begin, keys)
    match begun:
        case Fresh(token):
            return Claim(token=token)
        case Stored(execution, _):
            return Claim(instead=execution)
        case Conflict():
            call.deny(denied(CONFLICT, "the idempotency key stands for a call with other arguments"))
        case NotApproved():
            # `use` has said why.
            if call.allowed:
                call.deny(denied("approvals.invalid", "the approval could not be used"))
        case Running():
            return Claim(instead=_unfinished("a call with the same idempotency key is still running", {}))
        case _:
            return Claim(instead=begun.execution or _unfinished(_LOST, {"effect": "unknown"}))
    return Claim()


_LOST: Final = (
    "a call with the same idempotency key was started before, and nobody knows what came of it; it is not run again"
)


def _begun(begin: Any, keys: IdempotencyStore) -> Generator[Step, Any, Begun]:
    waiting = begin_waiting(begin)
    if not keys.blocking:
        try:
            seconds = next(waiting)
            while True:
                yield Pause(seconds)
                seconds = next(waiting)
        except StopIteration as end:
            begun: Begun = end.value
            return begun
    while True:
        seconds_or_end = yield Work(lambda: _next(waiting), blocking=True)
        if isinstance(seconds_or_end, float):
            yield Pause(seconds_or_end)
        else:
            return seconds_or_end  # type: ignore[no-any-return]


# StopIteration does not pass through a thread's future.
def _next(waiting: Generator[float, None, Begun]) -> float | Begun:
    try:
        return next(waiting)
    except StopIteration as end:
        begun: Begun = end.value
        return begun


def _use(call: Call, approvals: Approvals) -> ApprovalUse:
    def consume(connection: Connection | None) -> bool:
        use_approval(call, approvals, within=connection)
        return call.allowed

    return ApprovalUse(call.approval.id if call.approval else "", consume)


def _unfinished(message: str, details: dict[str, Any]) -> Execution:
    return Execution(failure=Failure(FailureCode.TOOL_EXECUTION_FAILED, message, details), started=False)
