"""What a call takes of the stores before its tool runs: its budgets; approval and idempotency key, both or neither.

Source: tool pattern library, 9.1 (re-invocation with the same key has no second side effect), pattern 6 and 9.2 (human
approval for the very call that was approved, and for the action that was staged for it); design, Execution: a key is of
one tenant, subject, tool and major version.

Budgets (cumulative limits) come before both: a call that others leave nothing for is decided again, with the new sum,
and has used nothing up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

from pdp.approvals.approvals import ApprovalRefusedError, Approvals
from pdp.clock import to_seconds
from pdp.contract.budgets import MOST, Spending, Spent, Take, spendings
from pdp.contract.checks import Checked
from pdp.contract.compiled import CompiledTool
from pdp.decision import new_id
from pdp.flow.drive import Pause, Step, Work
from pdp.flow.parts import Parts, Stores
from pdp.flow.stages import (
    Asked,
    CallDeniedError,
    Decided,
    Known,
    OverspentError,
    Prepared,
    Reserved,
    arguments_of,
    not_run,
)
from pdp.json import JsonValueError, canonical
from pdp.request import Request
from pdp.stores.actions import Action, ActionState, ActionStateError, ActionStore
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

if TYPE_CHECKING:  # only some calls load these
    from pdp.patterns.enforcement import HeldCall
    from pdp.patterns.run import Run

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


def open_approval(decided: Decided, parts: Parts) -> Generator[Step, Decided, Decided]:
    """Open the approval that the policy asks for, or find the one that is pending; stage the action that it is for.

    AuditError: it could not be recorded, and is not opened; StoreError: the action cannot be staged.
    """
    prepared, stores, approvals = decided.prepared, parts.stores, parts.approvals
    if approvals is None:
        return decided

    def open_or_find() -> Decided:
        approval = approvals.open(
            prepared.body,
            decided.tool.entry,
            decided.decision.codes,
            stage=partial(_staged_action, decided, stores),
            decision_id=decided.decision.decision_id,
            claims=prepared.asked.session.claims,
            proposer=prepared.asked.received.proposer,
        )
        action = None if approval.action_id is None else stores.actions.get(approval.action_id)
        return decided._replace(approval=approval, action=action)

    return (yield Work(open_or_find, approvals.blocking or stores.blocking or stores.reads_sources))


def _staged_action(decided: Decided, stores: Stores) -> Action | None:
    """Return the action that a person is asked about: the one staged in the call's run, or one of the call's own.

    None when the call has no effects. As long as nobody has decided on it, the same call finds the same action again,
    and another call another one.
    """
    prepared = decided.prepared
    if not decided.tool.has_action:
        return None
    staged = prepared.asked.received.staged
    if staged is not None and staged.payload_digest == prepared.checked.proposal.digest:
        return staged  # and no call's yet: one with another key may still commit it, and then needs its own approval
    if prepared.asked.session.run_id is not None:
        in_run = _staged_in_run(prepared, stores.actions, stores.run_of(prepared.asked.session))
        if in_run is not None:
            return in_run
    action = _stage(decided, stores.actions, prepared.call_digest)
    return action if action.state is ActionState.STAGED else _stage(decided, stores.actions)


def approved_action(decided: Decided, actions: ActionStore, run: Run, call_id: str | None = None) -> Action:
    """Return the call's action, approved: by the approval that lets it through, or by the policy alone.

    No two calls get the same one: an action belongs to one approval, and of all that move a staged one, one succeeds.
    `call_id`: the same call that goes on after a crash gets the same one again.

    StoreError: that cannot be stored; ActionStateError: it was denied, or another call or approval has it.
    """
    prepared, approval = decided.prepared, decided.approval
    if approval is not None and approval.action_id is not None:
        action = actions.get(approval.action_id)
        if action is not None:
            if action.state is not ActionState.APPROVED:
                return actions.move(action, ActionState.APPROVED, approval_id=approval.id)
            if action.approval_id != approval.id:
                raise ActionStateError(f"action {action.id} was approved by another approval than the call's")
            return action
    approval_id = approval.id if approval is not None else None
    in_run = _staged_in_run(prepared, actions, run)
    if approval is None and prepared.checked.tool.commits_staged:
        if in_run is None:
            raise ActionStateError(
                f"the action staged for {decided.tool_name} was committed or denied, or is another call's"
            )
        return actions.move(in_run, ActionState.APPROVED)
    if in_run is not None:
        # Another call of this run may have been quicker: then this one is an effect of its own.
        with suppress(ActionStateError):
            return actions.move(in_run, ActionState.APPROVED, approval_id=approval_id)
    action = _stage(decided, actions, None if call_id is None else f"call:{call_id}")
    if call_id is not None and action.state is ActionState.APPROVED:
        return action
    return actions.move(action, ActionState.APPROVED, approval_id=approval_id)


def _stage(decided: Decided, actions: ActionStore, key: str | None = None) -> Action:
    prepared = decided.prepared
    action = Action.staged(
        kind=decided.tool_name,
        target="/".join(prepared.resource),
        payload_digest=prepared.checked.proposal.digest,
        decision_id=decided.decision.decision_id,
        idempotency_key=key,
        now=prepared.asked.received.now,
    )
    return actions.stage(action, prepared.asked.session.caller)


def _staged_in_run(prepared: Prepared, actions: ActionStore, run: Run) -> Action | None:
    """The action that its caller has staged in the run, if nothing has become of it yet; it is this call's then."""
    proposal = prepared.checked.proposal
    action_id = run.bind_staged(proposal.tool, proposal.digest, prepared.call_digest)
    action = None if action_id is None else actions.get(action_id)
    return action if action is not None and action.state is ActionState.STAGED else None


class Together(NamedTuple):
    """What a call of a remote enforcement point takes and stores in one transaction with its key and approval.

    `token` names the run of its key; `check` raises where another request has begun the call; `take` gets that
    transaction, and what uses up the approval within it.
    """

    token: str
    check: Callable[[], None]
    transaction: Callable[[], AbstractContextManager[Transaction | None]]
    take: Callable[[Consume, Transaction | None], object]


def reserve(
    reserved: Reserved, parts: Parts, together: Together | None = None
) -> Generator[Step, Any, Reserved | Known]:
    """Reserve the call's key and use up its approval; `Known`: what an earlier call with the key came to.

    CallDeniedError: the approval does not hold any more, or the key stands for other arguments; StateError: a store or
    the audit cannot be used.
    """
    prepared = reserved.prepared
    uses_approval = prepared.approval is not None and parts.approvals is not None and parts.approvals.blocking
    blocking = parts.stores.keys.blocking or uses_approval or together is not None
    try:
        begun, used = yield from _waiting(partial(_take, prepared, parts, together), blocking=blocking)
    except ApprovalRefusedError as error:
        raise CallDeniedError("approvals.invalid", error.message) from error
    reserved = reserved._replace(decided=reserved.decided._replace(approval=used))
    match begun:
        case None:
            return reserved
        case Fresh(record):
            return reserved._replace(key=record)
        case Stored(execution, _):
            return Known(reserved, execution._replace(replayed=True))
        case Conflict():
            raise CallDeniedError("idempotency.conflict", _CONFLICT)
        case Running():
            return Known(reserved, not_run(_RUNNING, "unknown"))
        case Unknown(execution, _):
            return Known(reserved, execution._replace(replayed=True) if execution else not_run(_LOST, "unknown"))
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


def read_spent(
    asked: Asked, checked: Checked, request: Request, stores: Stores
) -> Generator[Step, tuple[Sequence[Spending], Request], tuple[Sequence[Spending], Request]]:
    """Return what the call takes of its cumulative limits, and the request that shows what is spent of them.

    Where its idempotency key is known already, it takes nothing: its tool will not run again.
    """
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


def reserve_budgets(reserved: Reserved, parts: Parts) -> Generator[Step, Any, Reserved]:
    """Reserve what the call takes of its budgets, up to the caps that the policy has allowed.

    OverspentError: others were quicker, and it is not there any more; CallDeniedError: the policy allows the call, and
    not what it takes; StoreError: the store cannot be used.
    """
    # Whoever has to settle it finds the call by its decision in the audit.
    reservation = reserved.decided.decision.decision_id
    take_all = taking(reserved.decided, parts.stores, reservation)
    if take_all is None:
        return reserved
    yield Work(partial(take_all, None), parts.stores.budgets.blocking)
    return reserved._replace(budgets=reservation)


def taking(decided: Decided, stores: Stores, reservation: str) -> Callable[[Transaction | None], None] | None:
    """Return what reserves a call's budgets, within a transaction; None where it takes nothing of any.

    Errors as of `reserve_budgets`.
    """
    prepared = decided.prepared
    takes = [_capped(spending, decided) for spending in prepared.spendings]
    takes = [take for take in takes if take.amount]

    def take_all(transaction: Transaction | None) -> None:
        now, until = _now(prepared.asked, time.time()), time.time() + lasting(prepared.checked.tool)
        if not stores.budgets.reserve(reservation, takes, now=now, running_until=until, within=transaction):
            raise OverspentError

    return take_all if takes else None


def _capped(spending: Spending, decided: Decided) -> Take:
    """Return what a call takes, with the lowest cap of the policy's obligations for it; null there is none."""
    take = spending.take
    caps = [
        duty.parameters["cap"]
        for duty in decided.decision.obligations
        if duty.id == "reserve" and duty.parameters["limit"] == spending.limit and take is not None
        and duty.parameters["amount"] == spending.number(take.amount)
    ]  # fmt: skip
    if take is None or not caps:
        reason = f"the policy allows the call, and reserves nothing of {spending.limit} for it"
        raise CallDeniedError("obligations.unfulfillable", reason)
    return take._replace(cap=min(MOST if cap is None else spending.units(cap) for cap in caps))


def _now(asked: Asked, now: float | None = None) -> float:
    """Return the time that windows go by: the session's; where it states none, `now` or when the call came in."""
    stated = asked.session.time
    if stated is not None:
        return datetime.fromisoformat(stated).timestamp()
    return asked.received.now if now is None else now


def hold(decided: Decided, parts: Parts) -> Generator[Step, Any, HeldCall]:
    """Open the run that the call belongs to, and hold the call to the rules of its pattern; StateError if it cannot."""
    from pdp.patterns.enforcement import HeldCall  # noqa: PLC0415 - only calls that a pattern or a run has rules for
    from pdp.patterns.rule import CallFacts  # noqa: PLC0415 - likewise

    prepared, stores = decided.prepared, parts.stores
    run = yield Work(lambda: stores.run_of(prepared.asked.session), blocking=stores.reads_sources)
    arguments = arguments_of(prepared.checked.proposal)
    facts = CallFacts(
        caller=prepared.asked.session.caller,
        idempotency_key=prepared.checked.idempotency_key,
        decision_id=decided.decision.decision_id,
        markings=decided.markings,
        clearances=_clearances(prepared.asked.session.claims),
        resource=prepared.resource,
        approved=prepared.approval is not None,
        now=prepared.asked.received.now,
        time=prepared.request.context["time"],
        inputs=_inputs(prepared),
    )
    return HeldCall(prepared.checked.tool.entry, arguments, run, facts, stores.actions, parts.approvals)


def _clearances(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return what subject and acting agents are all cleared for. An agent that states no clearances narrows nothing."""
    # The policy has checked the shape of the claims: it allowed the call.
    held = frozenset(claims.get("clearances") or ())
    agent = claims.get("act")
    while isinstance(agent, dict):
        if "clearances" in agent:
            held &= frozenset(agent["clearances"] or ())
        agent = agent.get("act")
    return held


def _inputs(prepared: Prepared) -> bytes:
    tool, session = prepared.checked.tool, prepared.asked.session
    if tool.entry.pattern is None:
        return b""
    state = {key: session.state[key] for key in tool.reads if key in session.state}
    try:
        return canonical({"config": dict(prepared.checked.config), "state": state})
    except JsonValueError:
        # A normalizer may make any object of a config: what cannot be compared is like nothing else.
        return new_id().encode()


def endorse(prepared: Prepared, stores: Stores) -> Generator[Step, None, None]:
    """Write what the approval of a call endorses, before its tool runs; StateError if it cannot be written."""
    flow = prepared.flow
    if flow is None or prepared.approval is None:
        return
    endorsed = prepared.checked.tool.tracker.endorsed(flow, prepared.call_id)
    if endorsed:
        from pdp.ledger.ledger import RunLabels  # noqa: PLC0415 - only where labels are in use

        ledger, now = stores.ledger, prepared.asked.received.now
        yield Work(lambda: ledger.write(flow.run, RunLabels(), endorsed, now), blocking=ledger.blocking)
