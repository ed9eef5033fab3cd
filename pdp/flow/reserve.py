"""Reservations for a call before its tool runs: first budgets, then the approval together with the idempotency key.

Budgets come first, because the policy decides a call again if other calls have spent its budget meanwhile.

Source: tool pattern library, 9.1 (re-invocation with the same key has no second side effect), pattern 6 and 9.2 (human
approval for the very call that was approved, and for the action that was staged for it); design, Execution: a key is of
one tenant, subject, tool and major version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

import orjson

from pdp.approvals.approvals import Approvals
from pdp.approvals.lasting import GrantRefusedError
from pdp.approvals.people import ApprovalRefusedError
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
from pdp.request import Request, bounded
from pdp.stores.actions import Action, ActionState, ActionStateError, ActionStore
from pdp.stores.approvals import Approval, ApprovalState, Reach, Transaction, lasting_offer
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

if TYPE_CHECKING:  # Only some calls need these modules at run time.
    from pdp.patterns.enforcement import EnforcedCall
    from pdp.patterns.run import Run

Consume = Callable[[Transaction | None], object]
"""Function that uses up an approval within a transaction."""

# A call waits this long for a running call with the same key; a remote call half as long, before its client times out.
PATIENCE: Final = 10.0
_FIRST_WAIT: Final = 0.002
_LONGEST_WAIT: Final = 0.25
_SPARE_SECONDS: Final = 5.0
_CONFLICT: Final = "the idempotency key was used for a call with other arguments"
RUNNING: Final = "a call with the same idempotency key is still running"
_UNKNOWN_OUTCOME: Final = (
    "a call with the same idempotency key was started before and its outcome is unknown, so this call does not run"
)


def key_of(asked: Asked, checked: Checked) -> IdempotencyKey | None:
    """Return the idempotency key of the call; None if the tool requires no key.

    The key of a compensation consists of the action's id only, so each action is compensated once, whoever calls. All
    other keys include the issuer (claim `iss`) as the tenant, so tenants with the same issuer need separate stores.
    """
    if checked.idempotency_key is None:
        return None
    if asked.received.compensates is not None:
        # A compensation key names no owner, so the action is compensated once, whoever calls.
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
    """Return the approval for exactly this call, or None, and the request with the approval added.

    An approval that an earlier call with the same key has used is returned too, because the tool does not run again.
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


def with_grant(prepared: Prepared, parts: Parts) -> Generator[Step, Any, Prepared | None]:
    """Return the call with the lasting grant that covers it, or None. Raise `StoreError` on failure."""
    entry, approvals, context = prepared.checked.tool.entry, parts.approvals, prepared.request.context
    if approvals is None or entry.approval.lasting is None or prepared.approval is not None:
        return None
    offer = lasting_offer(orjson.loads(prepared.body), entry)
    if offer is None:
        return None
    asked, now = prepared.asked, context["time"]
    tokens = asked.session.claims, asked.received.proposer
    grant = yield Work(partial(approvals.lasting.covering, offer, context["run_id"], now, *tokens), approvals.blocking)
    if grant is None:
        return None
    request = prepared.request._replace(context={**context, "grant": grant.as_context(now)})
    return prepared._replace(request=request, body=bounded(canonical(request.as_json())), grant=grant)


def open_approval(decided: Decided, parts: Parts) -> Generator[Step, Decided, Decided]:
    """Open or find the call's approval and stage the call's action. Raise `AuditError` or `StoreError` on failure."""
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
    """Return the action to approve, either staged in the call's run or new. None if the call has no effects."""
    prepared = decided.prepared
    if not decided.tool.has_action:
        return None
    staged = prepared.asked.received.staged
    if staged is not None and staged.payload_digest == prepared.checked.proposal.digest:
        # Another call with a different key may also commit this action, but it then needs its own approval.
        return staged
    if prepared.asked.session.run_id is not None:
        in_run = _staged_in_run(prepared, stores.actions, stores.run_of(prepared.asked.session))
        if in_run is not None:
            return in_run
    action = _stage(decided, stores.actions, prepared.call_digest)
    return action if action.state is ActionState.STAGED else _stage(decided, stores.actions)


def approved_action(decided: Decided, actions: ActionStore, run: Run, call_id: str | None = None) -> Action:
    """Return the call's action in the state `approved`. Two calls never get the same action.

    With a `call_id`, a call that continues after a crash gets the same action again. Raises `StoreError` if the action
    cannot be stored, and `ActionStateError` if the action was denied or belongs to another call.
    """
    prepared, approval = decided.prepared, decided.approval
    if approval is not None and approval.action_id is not None:
        action = actions.get(approval.action_id)
        if action is not None:
            if action.state is not ActionState.APPROVED:
                return actions.move(action, ActionState.APPROVED, approval_id=approval.id)
            if action.approval_id != approval.id:
                raise ActionStateError(f"action {action.id} was approved by another approval")
            return action
    approval_id = approval.id if approval is not None else None
    in_run = _staged_in_run(prepared, actions, run)
    if approval is None and prepared.checked.tool.commits_staged:
        if in_run is None:
            raise ActionStateError(
                f"the action staged for {decided.tool_name} was committed or denied, or belongs to another call"
            )
        return actions.move(in_run, ActionState.APPROVED)
    if in_run is not None:
        # Another call of this run may already have committed the action. In that case this call stages a new action.
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
    """Bind the action staged in the run to this call. Return the action, or None if it is not in the state `staged`."""
    proposal = prepared.checked.proposal
    action_id = run.bind_staged(proposal.tool, proposal.digest, prepared.call_digest)
    action = None if action_id is None else actions.get(action_id)
    return action if action is not None and action.state is ActionState.STAGED else None


class RemoteTransaction(NamedTuple):
    """Steps that a remote call adds to the transaction that reserves its key and approval."""

    token: str  # The text by which the key's record identifies this run of the tool.
    check: Callable[[], None]  # Raises if another request has begun the call.
    transaction: Callable[[], AbstractContextManager[Transaction | None]]
    take: Callable[[Consume, Transaction | None], object]  # Stores the call and uses up its approval, if any.


def reserve(
    reserved: Reserved, parts: Parts, remote: RemoteTransaction | None = None
) -> Generator[Step, Any, Reserved | Known]:
    """Reserve the call's key and use up its approval. Return `Known` if an earlier call has used the key.

    Raises `CallDeniedError` if the approval is no longer valid or the key was used with other arguments.
    """
    prepared = reserved.prepared
    uses_approval = (prepared.approval or prepared.grant) and parts.approvals is not None and parts.approvals.blocking
    blocking = parts.stores.keys.blocking or bool(uses_approval) or remote is not None
    try:
        patience = PATIENCE if remote is None else PATIENCE / 2
        begun, used = yield from _with_retries(partial(_reserve, prepared, parts, remote), patience, blocking=blocking)
    except ApprovalRefusedError as error:
        raise CallDeniedError("approvals.invalid", error.message) from error
    except GrantRefusedError as error:
        # Another call took the last use, or a person revoked the grant, so the call is decided again without it.
        raise OverspentError from error
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
            return Known(reserved, not_run(RUNNING, "unknown"))
        case Unknown(execution, _):
            return Known(
                reserved, execution._replace(replayed=True) if execution else not_run(_UNKNOWN_OUTCOME, "unknown")
            )
        case _:
            assert_never(begun)


def _reserve(
    prepared: Prepared, parts: Parts, remote: RemoteTransaction | None
) -> tuple[Begun | None, Approval | None]:
    approvals, approval = parts.approvals, prepared.approval
    key = key_of(prepared.asked, prepared.checked)
    if remote is not None:
        remote.check()

    def step(consume: Consume) -> Begun | None:
        take = consume if remote is None else partial(remote.take, consume)
        if key is not None:
            return _begin(prepared, key, parts.stores.keys, take, None if remote is None else remote.token)
        with nullcontext() if remote is None else remote.transaction() as transaction:
            take(transaction)
        return None

    now = prepared.asked.session.time or to_seconds(time.time())
    if approval is not None and approvals is not None:
        return approvals.consume_with(approval, now, step)
    if prepared.grant is not None and approvals is not None:
        return approvals.lasting.use_with(prepared.grant, now, step), None
    return step(lambda _: None), None


def _begin(prepared: Prepared, key: IdempotencyKey, keys: IdempotencyStore, take: Consume, token: str | None) -> Begun:
    tool, approval = prepared.checked.tool, prepared.approval
    return keys.begin(
        key,
        prepared.checked.proposal.digest,
        ttl=tool.key_ttl,
        now=time.time(),
        lasting=max_run_seconds(tool),
        approval=ApprovalUse(None if approval is None else approval.id, take),
        token=token,
    )


def max_run_seconds(tool: CompiledTool) -> float:
    """Return how long a run of the tool may last, in seconds."""
    return tool.timeout + _SPARE_SECONDS if tool.timeout is not None else LASTING


def _with_retries(
    begin: Callable[[], tuple[Begun | None, Approval | None]], patience: float, *, blocking: bool
) -> Generator[Step, Any, tuple[Begun | None, Approval | None]]:
    """Repeat `begin` while another call with the same key is running, for at most `patience` seconds."""
    end, wait = time.monotonic() + patience, _FIRST_WAIT
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
    """Return the amounts that the call would spend, and the request with the amounts spent before by other calls."""
    key = key_of(asked, checked)

    def read() -> tuple[Sequence[Spending], Request]:
        known = None if key is None else stores.keys.look(key, checked.proposal.digest, time.time())
        replayed = isinstance(known, Stored | Running | Unknown)
        tenant, now = asked.session.issuer, _window_time(asked)
        taken = spendings(checked, asked.session, request, tenant, replayed=replayed)
        spent = [
            spending.as_context(stores.budgets.spent(spending.take, now) if spending.take else Spent(0), now)
            for spending in taken
        ]
        return taken, request._replace(context={**request.context, "spent": spent})

    return (yield Work(read, stores.budgets.blocking or stores.blocking))


def reserve_budgets(reserved: Reserved, parts: Parts) -> Generator[Step, Any, Reserved]:
    """Reserve the amounts that the call spends. Raise `OverspentError` if the policy's caps are exceeded."""
    # The decision id links a reservation to its call in the audit stream.
    reservation = reserved.decided.decision.decision_id
    take_all = budget_reservation(reserved.decided, parts.stores, reservation)
    if take_all is None:
        return reserved
    yield Work(partial(take_all, None), parts.stores.budgets.blocking)
    return reserved._replace(budgets=reservation)


def budget_reservation(
    decided: Decided, stores: Stores, reservation: str
) -> Callable[[Transaction | None], None] | None:
    """Return a function that reserves the call's amounts and may raise `OverspentError`; None without amounts."""
    prepared = decided.prepared
    takes = [_capped(spending, decided) for spending in prepared.spendings]
    takes = [take for take in takes if take.amount]

    def take_all(transaction: Transaction | None) -> None:
        now, until = _window_time(prepared.asked, time.time()), time.time() + max_run_seconds(prepared.checked.tool)
        if not stores.budgets.reserve(reservation, takes, now=now, running_until=until, within=transaction):
            raise OverspentError

    return take_all if takes else None


def _capped(spending: Spending, decided: Decided) -> Take:
    """Return the amount to reserve, with the lowest cap among the policy's obligations. A null cap means no cap."""
    take = spending.take
    caps = [
        duty.parameters["cap"]
        for duty in decided.decision.obligations
        if duty.id == "reserve" and duty.parameters["limit"] == spending.limit and take is not None
        and duty.parameters["amount"] == spending.number(take.amount)
    ]  # fmt: skip
    if take is None or not caps:
        reason = f"the policy allows the call but reserves no amount of the limit {spending.limit}"
        raise CallDeniedError("obligations.unfulfillable", reason)
    return take._replace(cap=min(MOST if cap is None else spending.units(cap) for cap in caps))


def _window_time(asked: Asked, now: float | None = None) -> float:
    """Return the time that selects the budget windows: the session's time, else `now`, else the call's arrival time."""
    session_time = asked.session.time
    if session_time is not None:
        return datetime.fromisoformat(session_time).timestamp()
    return asked.received.now if now is None else now


def open_pattern_call(decided: Decided, parts: Parts) -> Generator[Step, Any, EnforcedCall]:
    """Return the call with its run and its pattern's rules. Raise `StateError` if the run cannot be opened."""
    from pdp.patterns.enforcement import EnforcedCall  # noqa: PLC0415 - only for calls with rules of a pattern or run
    from pdp.patterns.rule import CallFacts  # noqa: PLC0415 - only for calls with rules of a pattern or run

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
        approved=prepared.approval is not None or prepared.grant is not None,
        now=prepared.asked.received.now,
        time=prepared.request.context["time"],
        inputs=_inputs(prepared),
    )
    return EnforcedCall(prepared.checked.tool.entry, arguments, run, facts, stores.actions, parts.approvals)


def _clearances(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the clearances that subject and agents share. Agents without the claim `clearances` are ignored."""
    # The types of the claims need no check here, because the policy has allowed the call and checks them.
    clearances = frozenset(claims.get("clearances") or ())
    agent = claims.get("act")
    while isinstance(agent, dict):
        if "clearances" in agent:
            clearances &= frozenset(agent["clearances"] or ())
        agent = agent.get("act")
    return clearances


def _inputs(prepared: Prepared) -> bytes:
    tool, session = prepared.checked.tool, prepared.asked.session
    if tool.entry.pattern is None:
        return b""
    state = {key: session.state[key] for key in tool.reads if key in session.state}
    try:
        return canonical({"config": dict(prepared.checked.config), "state": state})
    except JsonValueError:
        # A normalizer may put any object into the config. Inputs that are not JSON are treated as different from all
        # others.
        return new_id().encode()


def endorse(prepared: Prepared, stores: Stores) -> Generator[Step, None, None]:
    """Record in the run ledger that people approved the call's values. Raise `StateError` if that fails."""
    flow, approval = prepared.flow, prepared.approval
    if flow is None or approval is None:
        return
    # People who let the approval reach further have seen only the markings in the request that they approved.
    seen = None if approval.reach is Reach.ONCE else approval.request["context"]["flow"]["markings"]
    endorsed = prepared.checked.tool.tracker.endorsed(flow, prepared.call_id, seen)
    if endorsed:
        from pdp.ledger.ledger import RunLabels  # noqa: PLC0415 - only if the manifest tracks flow

        ledger, now = stores.ledger, prepared.asked.received.now
        yield Work(lambda: ledger.write(flow.run, RunLabels(), endorsed, now), blocking=ledger.blocking)
