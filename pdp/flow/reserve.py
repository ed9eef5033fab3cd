"""What a call takes of the stores before its tool runs: its budgets; approval and idempotency key, both or neither.

Source: tool pattern library, 9.1 (re-invocation with the same key has no second side effect), pattern 6 and 9.2 (human
approval for the very call that was approved, and for the action that was staged for it); design, Execution: a key is of
one tenant, subject, tool and major version.

Budgets (cumulative limits) come before both: a call that others leave nothing for is decided again, with the new sum,
and has used nothing up.
"""

import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple, assert_never

from pdp.approvals.approvals import ApprovalRefusedError, Approvals
from pdp.clock import to_seconds
from pdp.contract.budgets import Spending, Take
from pdp.contract.checks import Checked
from pdp.contract.compiled import CompiledTool
from pdp.decision import new_id
from pdp.flow.drive import Pause, Step, Work
from pdp.flow.parts import Parts, Stores
from pdp.flow.stages import Asked, Decided, OverspentError, Prepared, Ready, StoppedError, not_run
from pdp.proposal import Execution
from pdp.request import Request
from pdp.stores.approvals import Approval, ApprovalState, Transaction
from pdp.stores.keys import (
    LASTING,
    ApprovalUse,
    Begun,
    Conflict,
    Fresh,
    IdempotencyKey,
    IdempotencyStore,
    Running,
    Stored,
    Unknown,
)

_log = logging.getLogger("pdp.pep")

Consume = Callable[[Transaction | None], object]
"""What uses up an approval within a transaction."""

PATIENCE: Final = 10.0  # seconds that a call waits for another one with the same key that is running
_FIRST_WAIT: Final = 0.002
_LONGEST_WAIT: Final = 0.25
_SPARE: Final = 5.0
_CONFLICT: Final = "the idempotency key stands for a call with other arguments"
_RUNNING: Final = "a call with the same idempotency key is still running"
_LOST: Final = (
    "a call with the same idempotency key was started before, and nobody knows what came of it; it is not run again"
)


def key_of(asked: Asked, checked: Checked) -> IdempotencyKey | None:
    """Return the key under which the call runs once; None where its entry demands none.

    The compensation of an action always has one, the action's id alone: it is done once, whoever does it. The tenant is
    the issuer (claim `iss`) and nothing else: where several tenants have one issuer, keep a store for each of them.
    """
    if checked.idempotency_key is None:
        return None
    if asked.received.compensates is not None:
        # Without an owner: an action is compensated once for all.
        return IdempotencyKey("", "", "", "", f"compensation:{asked.received.compensates.id}")
    if not checked.tool.reserves_key:
        return None
    session = asked.session
    return IdempotencyKey.of(
        checked.tool.entry, tenant=session.issuer, subject=str(session.claims.get("sub")), key=checked.idempotency_key
    )


def find_approval(
    asked: Asked, checked: Checked, request: Request, approvals: Approvals, stores: Stores
) -> Generator[Step, tuple[Approval | None, Request], tuple[Approval | None, Request]]:
    """Return the approval that lets exactly this call through, if there is one, and the request that shows it.

    One that was used up by the very run whose result is stored still counts: nothing will run for it.
    """

    def find() -> tuple[Approval | None, Request]:
        now, call_digest = request.context["time"], request.context["call_digest"]
        approval = approvals.usable(call_digest, now, asked.session.claims, asked.received.proposer)
        if approval is None:
            approval = _used(asked, checked, call_digest, approvals, stores)
            if approval is None:
                return None, request
            now = approval.closed_at or now
        return approval, request._replace(context={**request.context, "approval": approval.as_context(now)})

    return (yield Work(find, approvals.store.blocking or stores.blocking))


def _used(asked: Asked, checked: Checked, call_digest: str, approvals: Approvals, stores: Stores) -> Approval | None:
    key = key_of(asked, checked)
    known = None if key is None else stores.keys.look(key, checked.proposal.digest, time.time())
    approval_id = known.approval_id if isinstance(known, Stored | Running | Unknown) else None
    approval = None if approval_id is None else approvals.store.get(approval_id)
    if approval is None or approval.call_digest != call_digest or approval.state is not ApprovalState.CONSUMED:
        return None
    return approval


def open_approval(
    decided: Decided, prepared: Prepared, approvals: Approvals, stores: Stores
) -> Generator[Step, Decided, Decided]:
    """Open the approval that the policy asks for, or find the one that is pending; stage the action that it is for.

    AuditError: it could not be recorded, and is not opened; StoreError: the action cannot be staged.
    """
    from pdp.flow.action import staged_action  # noqa: PLC0415 - only calls that a person is asked about

    def open_or_find() -> Decided:
        codes = decided.decision.codes if decided.decision else ()
        approval = approvals.open(
            prepared.body,
            prepared.checked.tool.entry,
            codes,
            stage=partial(staged_action, decided, prepared, stores),
            decision_id=decided.decision.decision_id if decided.decision else None,
            claims=prepared.asked.session.claims,
            proposer=prepared.asked.received.proposer,
        )
        action = None if approval.action_id is None else stores.actions.get(approval.action_id)
        return decided._replace(approval=approval, action=action)

    return (yield Work(open_or_find, approvals.blocking or stores.blocking or stores.reads_sources))


class Together(NamedTuple):
    """What a call of a remote enforcement point takes and stores in one transaction with its key and approval.

    `token` names the run of its key; `check` raises where another request has begun the call; `take` gets that
    transaction, and what uses up the approval within it.
    """

    token: str
    check: Callable[[], None]
    transaction: Callable[[], AbstractContextManager[Transaction | None]]
    take: Callable[[Consume, Transaction | None], object]


def reserve(ready: Ready, parts: Parts, together: Together | None = None) -> Generator[Step, Any, Ready]:
    """Reserve the call's key and use up its approval; what an earlier call with the key came to is known of it then.

    StoppedError: the approval does not hold any more, or the key stands for other arguments; StateError: a store or the
    audit cannot be used.
    """
    decided, prepared = ready.decided, ready.prepared
    uses_approval = prepared.approval is not None and parts.approvals is not None and parts.approvals.blocking
    blocking = parts.stores.keys.blocking or uses_approval or together is not None
    try:
        begun, used = yield from _waiting(partial(_take, prepared, parts, together), blocking=blocking)
    except ApprovalRefusedError as error:
        raise StoppedError(decided.denied("approvals.invalid", error.message)) from error
    reserved = ready._replace(decided=decided._replace(approval=used))
    match begun:
        case None:
            return reserved
        case Fresh(record):
            return reserved._replace(key=record)
        case Stored(execution, _):
            return reserved._replace(known=execution._replace(replayed=True))
        case Conflict():
            raise StoppedError(decided.denied("idempotency.conflict", _CONFLICT))
        case Running():
            return reserved._replace(known=not_run(_RUNNING, "unknown"))
        case Unknown(execution, _):
            known = execution._replace(replayed=True) if execution else not_run(_LOST, "unknown")
            return reserved._replace(known=known)
        case _:
            assert_never(begun)


def _take(prepared: Prepared, parts: Parts, together: Together | None) -> tuple[Begun | None, Approval | None]:
    approvals, approval = parts.approvals, prepared.approval
    key = key_of(prepared.asked, prepared.checked)
    if together is not None:
        together.check()

    def step(consume: Consume) -> Begun | None:
        take = consume if together is None else partial(together.take, consume)
        if key is not None:
            return _begin(prepared, key, parts.stores.keys, take, None if together is None else together.token)
        with nullcontext() if together is None else together.transaction() as transaction:
            take(transaction)
        return None

    if approval is None or approvals is None:
        return step(lambda _: None), None
    return approvals.consume_with(approval, prepared.asked.session.time or to_seconds(time.time()), step)


def _begin(prepared: Prepared, key: IdempotencyKey, keys: IdempotencyStore, take: Consume, token: str | None) -> Begun:
    tool, approval = prepared.checked.tool, prepared.approval
    return keys.begin(
        key,
        prepared.checked.proposal.digest,
        ttl=tool.key_ttl,
        now=time.time(),
        lasting=lasting(tool),
        approval=ApprovalUse(None if approval is None else approval.id, take),
        token=token,
    )


def lasting(tool: CompiledTool) -> float:
    """Return for how many seconds a tool may run at most."""
    return tool.timeout + _SPARE if tool.timeout is not None else LASTING


def _waiting(
    begin: Callable[[], tuple[Begun | None, Approval | None]], *, blocking: bool
) -> Generator[Step, Any, tuple[Begun | None, Approval | None]]:
    """Begin, and while another call with the same key runs, begin again: at most `PATIENCE` seconds."""
    end, wait = time.monotonic() + PATIENCE, _FIRST_WAIT
    while True:
        begun, used = yield Work(begin, blocking)
        left = end - time.monotonic()
        if not isinstance(begun, Running) or left <= 0:
            return begun, used
        yield Pause(min(wait, left))
        wait = min(2 * wait, _LONGEST_WAIT)


def free(ready: Ready, stores: Stores, execution: Execution) -> Generator[Step, Any, None]:
    """Store for the reserved key what the run came to, and let what is reserved of budgets be spent.

    Where nothing was done, the key is free and the budgets have it back; a sum of which nobody knows stays as it is.
    """
    tool, key, reservation = ready.prepared.checked.tool, ready.key, ready.reservation
    effect = execution.failure.details.get("effect") if execution.failure else "done"

    def finish() -> None:
        try:
            if key is not None:
                stores.keys.finish(key, execution, now=time.time(), effects=tool.entry.has_effects)
        except Exception:  # noqa: BLE001 - whatever it was, the tool has run
            _log.critical("a tool ran and its idempotency key could not be finished: it stays taken", exc_info=True)
        try:
            if reservation is None:
                return
            if not execution.started or effect == "none":
                stores.budgets.release(reservation)
            elif effect == "done" or not tool.entry.has_effects:
                stores.budgets.commit(reservation)
        except Exception:  # noqa: BLE001 - likewise
            _log.critical("a call is over, and what it has reserved could not be settled: it counts", exc_info=True)

    waits = (key is not None and stores.keys.blocking) or (reservation is not None and stores.budgets.blocking)
    yield Work(finish, waits)


def read_spent(
    asked: Asked, checked: Checked, request: Request, stores: Stores
) -> Generator[Step, tuple[Sequence[Spending], Request], tuple[Sequence[Spending], Request]]:
    """Return what the call takes of its cumulative limits, and the request that shows what is spent of them.

    Where its idempotency key is known already, it takes nothing: its tool will not run again.
    """
    from pdp.contract.budgets import Spent, spendings  # noqa: PLC0415 - only tools with cumulative limits

    key = key_of(asked, checked)

    def read() -> tuple[Sequence[Spending], Request]:
        known = None if key is None else stores.keys.look(key, checked.proposal.digest, time.time())
        replayed = isinstance(known, Stored | Running | Unknown)
        tenant, now = asked.session.issuer, _now(asked)
        taken = spendings(checked, asked.session, request, tenant, replayed=replayed)
        spent = [
            spending.as_context(stores.budgets.spent(spending.take, now) if spending.take else Spent(0), now)
            for spending in taken
        ]
        return taken, request._replace(context={**request.context, "spent": spent})

    return (yield Work(read, stores.budgets.blocking or stores.blocking))


def reserve_budgets(ready: Ready, parts: Parts) -> Generator[Step, Any, Ready]:
    """Reserve what the call takes of its budgets, up to the caps that the policy has allowed.

    OverspentError: others were quicker, and it is not there any more; StoppedError: the policy allows the call, and not
    what it takes; StoreError: the store cannot be used.
    """
    decision = ready.decided.decision
    # Whoever has to settle it finds the call by its decision in the audit.
    reservation = new_id() if decision is None else decision.decision_id
    take_all = taking(ready.decided, ready.prepared, parts.stores, reservation)
    if take_all is None:
        return ready
    yield Work(partial(take_all, None), parts.stores.budgets.blocking)
    return ready._replace(reservation=reservation)


def taking(
    decided: Decided, prepared: Prepared, stores: Stores, reservation: str
) -> Callable[[Transaction | None], None] | None:
    """Return what reserves a call's budgets, within a transaction; None where it takes nothing of any.

    Errors as of `reserve_budgets`.
    """
    takes = [_capped(spending, decided) for spending in prepared.spendings]
    takes = [take for take in takes if take.amount]

    def take_all(transaction: Transaction | None) -> None:
        now, until = _now(prepared.asked, time.time()), time.time() + lasting(prepared.checked.tool)
        if not stores.budgets.reserve(reservation, takes, now=now, running_until=until, within=transaction):
            raise OverspentError(prepared)

    return take_all if takes else None


def _capped(spending: Spending, decided: Decided) -> Take:
    """Return what a call takes, with the lowest cap of the policy's obligations for it; null there is none."""
    from pdp.contract.budgets import MOST  # noqa: PLC0415 - only tools with cumulative limits

    take = spending.take
    duties = decided.decision.obligations if decided.decision else ()
    caps = [
        duty.parameters["cap"]
        for duty in duties
        if duty.id == "reserve" and duty.parameters["limit"] == spending.limit and take is not None
        and duty.parameters["amount"] == spending.number(take.amount)
    ]  # fmt: skip
    if take is None or not caps:
        reason = f"the policy allows the call, and reserves nothing of {spending.limit} for it"
        raise StoppedError(decided.denied("obligations.unfulfillable", reason))
    return take._replace(cap=min(MOST if cap is None else spending.units(cap) for cap in caps))


def _now(asked: Asked, now: float | None = None) -> float:
    """Return the time that windows go by: the session's; where it states none, `now` or when the call came in."""
    stated = asked.session.time
    if stated is not None:
        return datetime.fromisoformat(stated).timestamp()
    return asked.received.now if now is None else now
