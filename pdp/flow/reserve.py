"""What a call may use only once, reserved before its tool runs: its idempotency key and its approval, both or neither.

Source: tool pattern library, 9.1 (re-invocation with the same key has no second side effect), and 9.2 (human approval
for the very call that was approved); design, Execution: a key is of one tenant, subject, tool and major version.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pdp.approvals.approvals import ApprovalRefusedError
from pdp.clock import to_seconds
from pdp.decision import denied
from pdp.errors import AuditError, StoreError
from pdp.flow.call import issuer_of
from pdp.flow.drive import Pause, Work
from pdp.json import digest
from pdp.proposal import Execution, Failure, FailureCode
from pdp.stores.keys import (
    LASTING,
    ApprovalUse,
    Conflict,
    Fresh,
    IdempotencyKey,
    NotApproved,
    Running,
    Stored,
    begin_waiting,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from sqlalchemy import Connection

    from pdp.approvals.approvals import Approvals
    from pdp.contract.checks import Checked
    from pdp.contract.compiled import CompiledTool
    from pdp.decision import Decision
    from pdp.flow.call import Asked, Prepared
    from pdp.flow.drive import Step
    from pdp.flow.parts import Parts
    from pdp.proposal import Proposal
    from pdp.stores.approvals import Approval
    from pdp.stores.keys import Begun, IdempotencyStore

_log = logging.getLogger("pdp.pep")

CONFLICT: Final = "idempotency.conflict"
"""The code of a call whose idempotency key stands for a call with other arguments."""

APPROVAL_INVALID: Final = "approvals.invalid"
"""The code of an approval that does not let its call through; the policy gives the same."""

_SPARE: Final = 5.0
_RUNNING: Final = "a call with the same idempotency key is still running"
_LOST: Final = (
    "a call with the same idempotency key was started before, and nobody knows what came of it; it is not run again"
)


class Reservation(NamedTuple):
    """What a call has reserved.

    Attributes:
        approval: the approval as its use leaves it; None without one.
        token: of its key; None without one.
        instead: what the call comes to without running.
        denial: why it must not run after all.
    """

    approval: Approval | None = None
    token: str | None = None
    instead: Execution | None = None
    denial: Decision | None = None


def key_of(asked: Asked, checked: Checked) -> IdempotencyKey | None:
    """Return the key under which the call runs once; None where its entry demands none.

    The compensation of an action always has one, the action's id alone: it is done once, whoever does it. The tenant is
    the issuer (claim `iss`) and nothing else: where several tenants have one issuer, keep a store for each of them.
    """
    if asked.session is None or checked.idempotency_key is None:
        return None
    if asked.received.compensates is not None:
        return IdempotencyKey.of_compensation(asked.received.compensates.id)
    if not checked.tool.reserves_key:
        return None
    claims = asked.session.claims
    return IdempotencyKey.of(
        checked.tool.entry, tenant=issuer_of(claims), subject=str(claims.get("sub")), key=checked.idempotency_key
    )


def arguments_digest(proposal: Proposal) -> str:
    """Return the digest of the arguments that were decided on."""
    return digest(proposal.text)


def reserve(prepared: Prepared, parts: Parts) -> Generator[Step, Any, Reservation]:
    """Reserve the call's key and use up its approval."""
    try:
        return (yield from _reserve(prepared, parts.stores.keys, parts.approvals))
    except StoreError as error:
        _log.exception("an idempotency key or approval could not be reserved, which is a DENY")
        return Reservation(prepared.approval, denial=denied(error.code, error.message))


def _reserve(
    prepared: Prepared, keys: IdempotencyStore, approvals: Approvals | None
) -> Generator[Step, Any, Reservation]:
    key = key_of(prepared.asked, prepared.checked)
    use = None
    if approvals is not None and prepared.approval is not None:
        use = _Use(approvals, prepared.approval, prepared.session.time)
    blocking = keys.blocking or (use is not None and approvals is not None and approvals.blocking)
    if key is None:
        if use is not None:
            yield Work(partial(use.consume, None), blocking=blocking)
        return Reservation(prepared.approval) if use is None else Reservation(use.approval, denial=use.denial)
    begun = yield from _begun(_begin(prepared, key, keys, use), blocking=blocking)
    token: str | None = None
    instead: Execution | None = None
    denial = None if use is None else use.denial
    match begun:
        case Fresh(token):
            pass
        case Stored(instead, _):
            pass
        case Conflict():
            denial = denied(CONFLICT, "the idempotency key stands for a call with other arguments")
        case NotApproved():
            denial = denial or denied(APPROVAL_INVALID, "the approval could not be used")
        case Running():
            instead = _unfinished(_RUNNING)
        case _:
            instead = begun.execution or _unfinished(_LOST)
    return Reservation(prepared.approval if use is None else use.approval, token, instead, denial)


def _begin(prepared: Prepared, key: IdempotencyKey, keys: IdempotencyStore, use: _Use | None) -> Callable[[], Begun]:
    """Return what begins the key, and uses up the approval with it."""
    tool, arguments = prepared.checked.tool, arguments_digest(prepared.checked.proposal)
    lasting = tool.timeout + _SPARE if tool.timeout is not None else LASTING
    approval = None if use is None else ApprovalUse(use.approval.id, use.consume)

    def begin() -> Begun:
        return keys.begin(key, arguments, ttl=tool.key_ttl, now=time.time(), lasting=lasting, approval=approval)

    return begin if use is None else partial(use.within, begin)


class _Use:
    """Using up an approval, by itself or as a part of beginning a key; `denial` says why it could not be."""

    def __init__(self, approvals: Approvals, approval: Approval, time_stated: str | None) -> None:
        self.approval = approval
        self.denial: Decision | None = None
        self._approvals = approvals
        self._before = approval
        self._time_stated = time_stated

    def consume(self, connection: Connection | None) -> bool:
        now = self._time_stated or to_seconds(time.time())
        try:
            self.approval = self._approvals.consume(self._before, now, within=connection)
        except ApprovalRefusedError as error:
            self.denial = denied(APPROVAL_INVALID, error.message)
        except AuditError as error:
            _log.exception("the use of an approval could not be recorded, which is a DENY")
            self.denial = denied(error.code, str(error))
        return self.denial is None

    def within(self, begin: Callable[[], Begun]) -> Begun:
        """Begin, holding the approvals first: whoever takes a step on them has them before the database, too."""
        with self._approvals.held():
            try:
                return begin()
            except Exception:
                if self.approval is not self._before:
                    self._approvals.record_doubt("consumed", self.approval)
                    self.approval = self._before
                raise


def _begun(begin: Callable[[], Begun], *, blocking: bool) -> Generator[Step, Any, Begun]:
    waiting = begin_waiting(begin)
    while True:
        seconds_or_end = (yield Work(partial(_next, waiting), blocking=True)) if blocking else _next(waiting)
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
    return Execution(failure=Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"effect": "unknown"}), started=False)


def release(token: str, tool: CompiledTool, keys: IdempotencyStore, execution: Execution) -> Generator[Step, Any, None]:
    """Store for the reserved key what the run came to, or free it where nothing was done."""

    def finish() -> None:
        try:
            keys.finish(token, execution, now=time.time(), effects=tool.entry.has_effects)
        except Exception:  # noqa: BLE001 - whatever it was, the tool has run
            _log.critical("a tool ran and its idempotency key could not be finished: it stays taken", exc_info=True)

    yield Work(finish, blocking=keys.blocking)
