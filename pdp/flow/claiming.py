"""Taking what a call may use only once, before its tool runs: its idempotency key and its approval, both or neither.

Source: tool pattern library, 9.1 (re-invocation with the same key has no second side effect), and 9.2 (human approval
for the very call that was approved).
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pdp.decision import denied
from pdp.execution.run import Execution
from pdp.flow.approving import APPROVAL_INVALID, use_approval
from pdp.flow.drive import Pause, Work
from pdp.flow.keys import arguments_digest, key_of
from pdp.manifest.fields import duration_seconds
from pdp.proposal import Failure, FailureCode
from pdp.stores.key import (
    LASTING,
    ApprovalUse,
    Conflict,
    Fresh,
    NotApproved,
    Running,
    Stored,
    begin_waiting,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from sqlalchemy import Connection

    from pdp.approvals.approvals import Approvals
    from pdp.flow.call import Call
    from pdp.flow.drive import Step
    from pdp.stores.key import Begun, IdempotencyKey, IdempotencyStore

CONFLICT: Final = "idempotency.conflict"
"""The code of a call whose idempotency key stands for a call with other arguments."""

_SPARE: Final = 5.0
_UNKNOWN: Final = {"effect": "unknown"}
_RUNNING: Final = "a call with the same idempotency key is still running"
_LOST: Final = (
    "a call with the same idempotency key was started before, and nobody knows what came of it; it is not run again"
)


class Claim(NamedTuple):
    """What a call got hold of. `token`: of its key, None without one; `instead`: what it comes to without running."""

    token: str | None = None
    instead: Execution | None = None


def claimed(call: Call, keys: IdempotencyStore, approvals: Approvals | None) -> Generator[Step, Any, Claim]:
    """Take key and approval. Where that is not possible, `call` is denied, or what it comes to is in the claim."""
    key = key_of(call)
    use = _Use(call, approvals) if approvals is not None and call.approval is not None else None
    if key is None:
        if use is not None:
            yield Work(lambda: use.consume(None), blocking=use.approvals.blocking or keys.blocking)
        return Claim()
    begin = _begin(call, key, keys, use)
    begun = yield from _begun(begin, blocking=keys.blocking or (use is not None and use.approvals.blocking))
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
                call.deny(denied(APPROVAL_INVALID, "the approval could not be used"))
        case Running():
            return Claim(instead=_unfinished(_RUNNING))
        case _:
            return Claim(instead=begun.execution or _unfinished(_LOST))
    return Claim()


def _begin(call: Call, key: IdempotencyKey, keys: IdempotencyStore, use: _Use | None) -> Callable[[], Begun]:
    """Return what begins the key, and uses up the approval with it."""
    tool = call.checked.tool
    ttl = duration_seconds(tool.entry.idempotency.ttl) if tool and tool.entry.idempotency.ttl else None
    lasting = call.timeout + _SPARE if call.timeout is not None else LASTING
    approval = use.as_part if use is not None else None

    def begin() -> Begun:
        return keys.begin(key, arguments_digest(call), ttl=ttl, now=time.time(), lasting=lasting, approval=approval)

    return begin if use is None else partial(use.within, begin)


class _Use:
    """Using up the approval of a call, by itself or as a part of beginning its key."""

    def __init__(self, call: Call, approvals: Approvals) -> None:
        self.approvals = approvals
        self._call = call
        self._before = call.approval
        self._used = False

    @property
    def as_part(self) -> ApprovalUse:
        return ApprovalUse(self._before.id if self._before is not None else "", self.consume)

    def consume(self, connection: Connection | None) -> bool:
        use_approval(self._call, self.approvals, within=connection)
        self._used = self._call.allowed
        return self._used

    def within(self, begin: Callable[[], Begun]) -> Begun:
        """Begin, holding the approvals first: whoever takes a step on them has them before the database, too."""
        with self.approvals.held():
            try:
                return begin()
            except Exception:
                if self._used and self._call.approval is not None:
                    self.approvals.record_doubt("consumed", self._call.approval)
                    self._call.approval = self._before
                raise


def _begun(begin: Callable[[], Begun], *, blocking: bool) -> Generator[Step, Any, Begun]:
    waiting = begin_waiting(begin)
    while True:
        seconds_or_end = (yield Work(lambda: _next(waiting), blocking=True)) if blocking else _next(waiting)
        if not isinstance(seconds_or_end, float):
            begun: Begun = seconds_or_end
            return begun
        yield Pause(seconds_or_end)


# StopIteration does not pass through a thread's future.
def _next(waiting: Generator[float, None, Begun]) -> float | Begun:
    try:
        return next(waiting)
    except StopIteration as end:
        begun: Begun = end.value
        return begun


def _unfinished(message: str) -> Execution:
    return Execution(failure=Failure(FailureCode.TOOL_EXECUTION_FAILED, message, dict(_UNKNOWN)), started=False)
