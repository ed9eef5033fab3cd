"""Approvals: who may grant an approval and how often it can be used. A step that cannot be recorded has no effect."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pdp import Approval, ApprovalRefusedError, Approvals, MemoryAudit, Pep
from pdp.approvals import approvals as approvals_module
from pdp.approvals.people import Refusal
from pdp.audit.chain import EMPTY, AuditEvent, recordable
from pdp.audit.verify import verify_chain
from pdp.errors import AuditError, StoreError, StoreFullError, UsageError
from pdp.json import canonical
from pdp.manifest.model import EffectiveApproval, Tool
from pdp.session import Person
from pdp.stores.actions import Action, ActionState
from pdp.stores.approvals import ApprovalState, Grant, Transaction
from pdp.stores.memory import MemoryActions, MemoryApprovals
from tests.support import PATIENCE, payments
from tests.support.payments import session, wire
from tests.support.scripted import Scripted, until_approved

OPENED, SOON, LATE, END = (f"2026-07-01T{clock}Z" for clock in ("10:00:00", "10:05:00", "10:59:59", "11:00:00"))
APPROVER = {"sub": "boss", "iss": "https://id", "roles": ["payments.approver", "staff"]}
OTHER = {"sub": "vice", "iss": "https://id", "roles": ["payments.approver"]}
EFFECTIVE = payments.effective()


def entry(**approval: Any) -> Tool:
    tool = EFFECTIVE.tools["initiate_wire"]
    block = {"approvers": ("payments.approver",), "quorum": 1, "expires": "PT1H", **approval}
    return tool.model_copy(update={"approval": EffectiveApproval(**block)})


def body(**changes: Any) -> bytes:
    """Return the request for a wire of the payments example, as the enforcement point sends it to the engine."""
    asked = Pep(EFFECTIVE, Scripted(until_approved)).decide(wire(), session(**changes)).request
    assert asked is not None
    return canonical(asked)


def claims(**changes: Any) -> dict[str, Any]:
    return {**session().claims, **changes}


def opened(approvals: Approvals, request: bytes | None = None, **approval: Any) -> Approval:
    return approvals.open(request or body(), entry(**approval), ["approvals.required"])


def refusal(step: Callable[[], object]) -> Refusal:
    with pytest.raises(ApprovalRefusedError) as caught:
        step()
    assert caught.value.code == "approvals.refused"
    return caught.value.reason


def log_of(approvals: Approvals) -> list[dict[str, Any]]:
    assert isinstance(approvals.audit, MemoryAudit)
    assert verify_chain(list(approvals.audit._lines)) == len(approvals.audit.events)
    return approvals.audit.events


def test_opened_approval_has_every_documented_field() -> None:
    request = body(agent="agent:payments", claims=claims(iss="https://id", act={"sub": "agent:a", "act": {"sub": "b"}}))
    approval = opened(Approvals(public_url="https://pdp.example/"), request)

    assert approval.state is ApprovalState.PENDING
    assert approval.as_json() == {
        "id": approval.id,
        "state": "expired",  # At this time, the approval has expired, although the store still has the state `pending`.
        "call_digest": approval.request["context"]["call_digest"],
        "tool": "initiate_wire",
        "tool_version": EFFECTIVE.tools["initiate_wire"].version,
        "action": "initiate_wire",
        "subject": "officer-123",
        "agent": "agent:payments",
        "requesters": [
            {"iss": "https://id", "sub": "officer-123"},
            {"iss": None, "sub": "agent:payments"},
            {"iss": None, "sub": "agent:a"},
            {"iss": None, "sub": "b"},
        ],
        "manifest_digest": EFFECTIVE.digest,
        "approvers": ["payments.approver"],
        "quorum": 1,
        "opened_at": OPENED,
        "expires_at": END,
        "request": approval.request,
        "reasons": ["approvals.required"],
        "idempotency_key": "idm-4a2b",
        "run_id": "run-1",
        "grants": [],
        "closed_at": None,
        "closed_by": None,
        "why": None,
        "action_id": None,
        "decision_id": None,
        "task": None,
        "token": {},
        "lasting": None,
        "url": f"https://pdp.example/console/approvals/{approval.id}",
    }
    assert approval.request["context"]["arguments"] == payments.ARGUMENTS
    assert "47500" not in repr(approval)


def test_call_has_at_most_one_pending_approval() -> None:
    approvals = Approvals()
    first = opened(approvals)

    assert opened(approvals, body(time=LATE, request_id="another")) == first
    assert opened(approvals, body(purpose="another")).id != first.id
    assert [event["type"] for event in log_of(approvals)] == ["approval.opened"] * 2


def test_expired_approval_is_replaced_by_a_new_approval() -> None:
    approvals = Approvals()
    first, second = opened(approvals), opened(approvals, body(time=END))

    assert second.id != first.id
    assert [(each.id, each.state) for each in approvals.list()] == [(first.id, "expired"), (second.id, "pending")]


def test_clock_that_goes_back_does_not_revive_an_approval() -> None:
    approvals = Approvals()
    granted = approvals.grant(opened(approvals).id, APPROVER, SOON)
    assert approvals.usable(granted.call_digest, END) is None

    assert approvals.usable(granted.call_digest, SOON) is None
    assert approvals.get(granted.id).state is ApprovalState.EXPIRED
    assert opened(approvals).id != granted.id


def variant(number: int, run: str | None = "run-1", sub: str = 'officer "1"%_', time: str = OPENED) -> bytes:
    return body(purpose=str(number), run_id=run, claims=claims(sub=sub), time=time)


def test_concurrent_calls_do_not_exceed_the_limit_of_pending_approvals(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = Approvals()
    monkeypatch.setattr(approvals_module, "MOST_OF_A_RUN", 1)
    first: list[Approval] = []

    def stage() -> None:
        first.append(opened(bounded, variant(1)))

    second = bounded.open(variant(2), entry(), ["approvals.required"], stage)

    assert [(each.id, each.state) for each in bounded.list()] == [(first[0].id, "withdrawn"), (second.id, "pending")]


@pytest.mark.parametrize("run", ["run-1", None])
def test_newer_approval_replaces_the_oldest_ungranted_approval_of_its_run(
    monkeypatch: pytest.MonkeyPatch, run: str | None
) -> None:
    bounded, actions = Approvals(), MemoryActions()
    bounded.attach(MemoryAudit(), actions)
    monkeypatch.setattr(approvals_module, "MOST_OF_A_RUN", 3)
    monkeypatch.setattr(approvals_module, "MOST_OF_A_SUBJECT", 5)
    staged = Action.staged(kind="initiate_wire", target="bene", payload_digest="p", decision_id="d", now=0.0)
    granted = opened(bounded, variant(0, run), quorum=2)
    bounded.grant(granted.id, APPROVER, SOON)
    oldest = bounded.open(variant(1, run), entry(), ["approvals.required"], lambda: actions.add(staged, "key"))
    others = [opened(bounded, variant(number, run)) for number in (2, 3)]

    ended = bounded.get(oldest.id)
    assert (ended.state, ended.closed_at, ended.closed_by) == (ApprovalState.WITHDRAWN, OPENED, None)
    assert ended.why == "a newer approval of the same run took its place"
    assert [action.state for action in actions.list()] == [ActionState.DENIED]
    events = [event for event in log_of(bounded) if event["approval_id"] == oldest.id]
    assert [(event["type"], event["subject"], event["status"]) for event in events] == [
        ("approval.opened", oldest.subject, "pending"), ("approval.withdrawn", oldest.subject, "withdrawn"),
    ]  # fmt: skip
    pending = [each.id for each in bounded.list(state=ApprovalState.PENDING, run_id=run)]
    assert pending == [each.id for each in (granted, *others)]
    # A run at the limit of its subject replaces its own approvals only, and those of other subjects do not count.
    assert opened(bounded, variant(0, run, sub='OFFICER "1"%_')).state is ApprovalState.PENDING
    second = [opened(bounded, variant(number, "run-2")) for number in range(3)]
    assert [bounded.get(each.id).state for each in second] == ["withdrawn", "pending", "pending"]
    with pytest.raises(StoreFullError, match="pending: 0 of this run, 5 of its subject"):
        opened(bounded, variant(9, "run-3"))
    # Expired approvals are marked as expired and no longer count towards the limit.
    assert opened(bounded, variant(9, "run-3", time=END)).state is ApprovalState.PENDING


def test_limit_does_not_end_an_approval_that_a_person_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = Approvals()
    monkeypatch.setattr(approvals_module, "MOST_OF_A_RUN", 1)
    first = bounded.grant(opened(bounded, variant(1), quorum=2).id, APPROVER, SOON)

    with pytest.raises(StoreFullError, match="pending: 1 of this run"):
        opened(bounded, variant(2))

    assert bounded.list() == [first]


@pytest.mark.parametrize(
    ("expires", "begins", "ends"),
    [
        pytest.param("PT0.9S", OPENED, OPENED, id="less than a second is none"),
        pytest.param("PT1.9S", OPENED, "2026-07-01T10:00:01Z", id="rounded down"),
        pytest.param("P1D", OPENED, "2026-07-02T10:00:00Z", id="a day"),
        pytest.param("PT1H", "9999-12-31T23:30:00Z", "9999-12-31T23:59:59Z", id="beyond the calendar"),
    ],
)
def test_approval_expires_after_the_duration_in_the_manifest_entry(expires: str, begins: str, ends: str) -> None:
    assert opened(Approvals(), body(time=begins), expires=expires).expires_at == ends


def test_granted_approval_can_be_used_only_between_its_opening_and_its_expiry() -> None:
    approvals = Approvals()
    granted = approvals.grant(opened(approvals).id, APPROVER, SOON)

    assert granted.state is ApprovalState.GRANTED
    assert granted.grants == (Grant("https://id", "boss", ("payments.approver",), SOON),)
    times = ("2026-07-01T09:59:59Z", OPENED, LATE, END, "2027-01-01T00:00:00Z")
    assert [approvals.usable(granted.call_digest, now) for now in times] == [None, granted, granted, None, None]
    assert granted.as_context(SOON) == {
        "id": granted.id,
        "call_digest": granted.call_digest,
        "age_seconds": 300,
        "expires_at": END,
        "grants": [{"iss": "https://id", "sub": "boss", "roles": ["payments.approver"], "at": SOON}],
    }


REFUSED: dict[Refusal, list[Any]] = {
    Refusal.NO_SUBJECT: [
        None, "boss", {"roles": APPROVER["roles"]}, {**APPROVER, "iss": 7}, {**APPROVER, "iss": ""},
        *({**APPROVER, "sub": sub} for sub in ("", ["boss"], "\ud800", "x" * 1025)),
    ],
    Refusal.AGENT: [{**APPROVER, "act": act} for act in ({"sub": "agent:x"}, {})],
    # The subject, the agent and the inner agents of a call cannot approve this call, with or without an issuer.
    Refusal.REQUESTER: [
        {**APPROVER, "sub": "officer-123"}, {**APPROVER, "sub": "agent:payments"},
        {**APPROVER, "sub": "agent:a", "iss": "https://b"}, {**APPROVER, "sub": "agent:b", "iss": None},
    ],
    # The `roles` claim is ignored unless it is a list of texts.
    Refusal.NOT_AN_APPROVER: [
        {"sub": "boss"}, {"sub": "boss", "roles": []}, {"sub": "boss", "roles": ["payments"]},
        {"sub": "boss", "roles": "payments.approver"}, {"sub": "boss", "roles": ["payments.approver", 1]},
        {"sub": "boss", "roles": {"payments.approver": False}},
    ],
}  # fmt: skip


@pytest.mark.parametrize("roles", ["p", {"p": True}, ["p", 1]])
def test_roles_claim_that_is_not_a_list_of_texts_is_ignored(roles: Any) -> None:
    approvals = Approvals()
    approval = opened(approvals, approvers=("p",))

    assert (
        refusal(lambda: approvals.grant(approval.id, {"sub": "boss", "roles": roles}, SOON)) is Refusal.NOT_AN_APPROVER
    )
    assert approvals.grant(approval.id, {"sub": "boss", "roles": ["p"]}, SOON).state is ApprovalState.GRANTED


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_no_agent_of_a_call_can_approve_the_call(level: int) -> None:
    names = [f"agent:{number}" for number in range(4)]
    acting: dict[str, Any] | None = None
    for name in reversed(names):
        acting = {"sub": name, "scopes": ["payments.wire.initiate"], **({"act": acting} if acting else {})}
    approvals = Approvals()
    approval = opened(approvals, body(claims=claims(act=acting)))

    assert refusal(lambda: approvals.grant(approval.id, {**APPROVER, "sub": names[level]}, SOON)) is Refusal.REQUESTER


def test_newest_granted_approval_is_used_first() -> None:
    approvals = Approvals()
    granted = []
    for _ in range(3):
        approval = opened(approvals)
        granted.append(approvals.grant(approval.id, APPROVER, SOON))

    for expected in reversed(granted):
        usable = approvals.usable(expected.call_digest, LATE)
        assert usable == expected
        approvals.consume(usable, LATE)
    assert approvals.usable(granted[0].call_digest, LATE) is None


def test_approval_task_can_change_until_the_first_grant() -> None:
    approvals = Approvals()
    approval = opened(approvals, quorum=2)
    for task in ({"rationale": "a draft"}, {"rationale": "small"}):
        assert approvals.request(approval.id, task, SOON).task == task
    approvals.grant(approval.id, APPROVER, SOON)

    assert refusal(lambda: approvals.request(approval.id, {"rationale": "large"}, SOON)) is Refusal.TASK_SEEN
    assert approvals.request(approval.id, {"rationale": "small"}, SOON).task == {"rationale": "small"}


@pytest.mark.parametrize(("reason", "by"), [(reason, by) for reason, people in REFUSED.items() for by in people])
@pytest.mark.parametrize("step", ["grant", "deny"])
def test_people_who_are_not_approvers_cannot_grant_or_deny(step: str, by: Any, reason: Refusal) -> None:
    approvals = Approvals()
    acting = claims(act={"sub": "agent:a", "iss": "https://b", "act": {"sub": "agent:b", "iss": "https://b"}})
    approval = opened(approvals, body(agent="agent:payments", claims=acting))

    assert refusal(lambda: getattr(approvals, step)(approval.id, by, SOON)) is reason
    assert approvals.get(approval.id) == approval
    assert [event["type"] for event in log_of(approvals)] == ["approval.opened"]


def test_claims_with_the_same_sub_but_another_issuer_mean_another_person() -> None:
    approvals = Approvals()
    approval = opened(approvals, body(claims=claims(iss="https://id")))

    assert approvals.grant(approval.id, {**APPROVER, "sub": "officer-123", "iss": "https://b"}, SOON).usable(SOON)


@pytest.mark.parametrize("approvers", [None, ()])
def test_approval_without_approvers_cannot_be_granted(approvers: Any) -> None:
    approvals = Approvals()
    approval = opened(approvals, approvers=approvers)

    with pytest.raises(ApprovalRefusedError) as caught:
        approvals.grant(approval.id, APPROVER, SOON)

    assert str(caught.value) == (
        f"approval {approval.id}: the claims have none of the roles that can approve the call: none"
    )  # fmt: skip


@pytest.mark.parametrize("again", [APPROVER, {**APPROVER, "iss": None}, {"sub": "boss", "roles": APPROVER["roles"]}])
def test_second_grant_by_the_same_person_does_not_count(again: dict[str, Any]) -> None:
    approvals = Approvals()
    approval = approvals.grant(opened(approvals, quorum=2).id, APPROVER, SOON)

    assert approval.state is ApprovalState.PENDING
    assert approvals.usable(approval.call_digest, SOON) is None
    assert refusal(lambda: approvals.grant(approval.id, again, SOON)) is Refusal.ALREADY_GRANTED
    assert approvals.grant(approval.id, OTHER, LATE).state is ApprovalState.GRANTED
    assert [event["status"] for event in log_of(approvals)] == ["pending", "pending", "granted"]


COMPOSED, DECOMPOSED, HIDDEN = "Jos\u00e9", "Jose\u0301", "an\u200bn"
# Names with Cyrillic a, Greek o, dotless i, a Roman numeral, a special hyphen, wide letters, or a combining mark.
MIXED = ["\u0430nn", "b\u03bfss", "\u0131vy", "\u2170", "ann\u20101", "\uff41\uff4e\uff4e", "ann\u0332", "\u0430\u03b1"]


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        *[
            ({"sub": first}, {"sub": second}, Refusal.NO_SUBJECT)
            for first, second in (
                (COMPOSED, DECOMPOSED),
                ("ann", "ann "),
                ("ann", "\u00a0ann"),
                ("ann", HIDDEN),
                *(("ann", name) for name in MIXED),
            )
        ],
        *[({"sub": "ann"}, {"sub": second}, Refusal.ALREADY_GRANTED) for second in ("Ann", "ANN")],
        *[
            ({"sub": first}, {"sub": second}, Refusal.ALREADY_GRANTED)
            for first, second in (
                ("coco", "\u0441\u043e\u0441\u043e"),
                ("HP-1", "\u0397\u03a1-1"),
                ("tom", "\u0442\u043e\u043c"),
                ("clerk-10", "cIerk-lO"),
                ("carney", "camey"),
                ("\u03bf\u03bf", "\u043e\u043e"),
            )
        ],
        *[
            ({"sub": "ann", "iss": "https://id"}, {"sub": "ann", "iss": issuer}, reason)
            for issuer, reason in (
                ("https://id/", Refusal.ALREADY_GRANTED),
                ("https://ID", Refusal.ALREADY_GRANTED),
                ("https://id ", Refusal.NO_SUBJECT),
            )
        ],
    ],
)
def test_two_unicode_spellings_of_a_name_do_not_count_as_two_approvers(
    first: dict[str, str], second: dict[str, str], reason: Refusal
) -> None:
    approvals, role = Approvals(), {"roles": ["payments.approver"]}
    approval = approvals.grant(opened(approvals, quorum=2).id, {**first, **role}, SOON)
    assert refusal(lambda: approvals.grant(approval.id, {**second, **role}, SOON)) is reason
    assert approvals.get(approval.id).state is ApprovalState.PENDING

    theirs = opened(approvals, body(claims=claims(**first)))
    own = Refusal.REQUESTER if reason is Refusal.ALREADY_GRANTED else reason
    for step in (approvals.grant, approvals.deny):
        assert refusal(lambda step=step: step(theirs.id, {**second, **role}, SOON)) is own  # type: ignore[misc]
    assert approvals.get(theirs.id) == theirs


@pytest.mark.parametrize("at", ["sub", "iss"])
@pytest.mark.parametrize("name", [DECOMPOSED, "ann ", HIDDEN, "a\nb", *MIXED])
def test_requester_with_an_ambiguous_name_is_rejected(at: str, name: str) -> None:
    decided = Pep(EFFECTIVE, Scripted(until_approved)).decide(wire(), session(claims=claims(**{at: name})))

    assert decided.codes == ("decision.request_invalid",)
    assert decided.reasons[0].message == (
        f"session: claims.{at} is {name!r}, which can be mistaken for another name (name people in letters of one "
        "script, in NFC and without blanks at the ends)"
    )


@pytest.mark.parametrize(
    ("requester", "other"),
    [
        ("anna", "\u0418\u0432\u0430\u043d"), ("user-1", "user-2"), ("\u5f20\u4f1f", "\u738b\u82b3"),
        ("user-11", "user-17"), ("Jos\u00e9", "Jose"), ("\u05d3\u05df", "\u05d3\u05e0\u05d4"), ("S\u00f8ren", "Soren"),
    ],
)  # fmt: skip
def test_requesters_with_distinct_names_can_approve_calls_of_each_other(requester: str, other: str) -> None:
    approvals = Approvals()
    approval = opened(approvals, body(claims=claims(sub=requester)))

    granted = approvals.grant(approval.id, {"sub": other, "roles": ["payments.approver"]}, SOON)

    assert granted.state is ApprovalState.GRANTED


@pytest.mark.parametrize("hidden", [HIDDEN, MIXED[0]])
@pytest.mark.parametrize("level", [1, 2, 3])
def test_agent_with_an_ambiguous_name_is_rejected_at_every_level(level: int, hidden: str) -> None:
    acting: dict[str, Any] = {"sub": hidden, "scopes": ["payments.wire.initiate"]}
    for _ in range(level - 1):
        acting = {"sub": "agent:above", "scopes": ["payments.wire.initiate"], "act": acting}
    at = "claims" + ".act" * level

    decided = Pep(EFFECTIVE, Scripted(until_approved)).decide(wire(), session(claims=claims(act=acting)))

    assert decided.codes == ("decision.request_invalid",)
    assert decided.reasons[0].message.startswith(f"session: {at}.sub is {hidden!r}, which can be mistaken for")


@pytest.mark.parametrize("step", ["grant", "deny"])
def test_grant_or_denial_dated_before_the_opening_of_the_approval_is_rejected(step: str) -> None:
    approvals = Approvals()
    approval = opened(approvals)
    with pytest.raises(ApprovalRefusedError) as caught:
        getattr(approvals, step)(approval.id, APPROVER, "2026-07-01T09:59:59Z")

    assert (caught.value.reason, str(caught.value)) == (
        Refusal.NOT_YET_OPEN,
        f"approval {approval.id}: the approval opens at {OPENED} and cannot be decided earlier",
    )
    assert approvals.get(approval.id) == approval


def test_approval_use_in_a_failed_transaction_is_recorded_with_an_unknown_outcome() -> None:
    approvals = Approvals()
    granted = approvals.grant(opened(approvals).id, APPROVER, SOON)

    def step(consume: Callable[[None], object]) -> None:
        consume(None)
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        approvals.consume_with(granted, LATE, step)

    before, after = log_of(approvals)[-2:]
    assert (before["outcome"], after["outcome"]) == (None, "unknown")
    chain = ("seq", "time", "prev_hash", "hash", "outcome")
    assert {k: v for k, v in before.items() if k not in chain} == {k: v for k, v in after.items() if k not in chain}


def test_grant_or_denial_of_an_expired_approval_is_rejected_and_marks_the_approval_as_expired() -> None:
    approvals = Approvals()
    approval = opened(approvals)

    assert refusal(lambda: approvals.grant(approval.id, APPROVER, END)) is Refusal.EXPIRED
    assert approvals.get(approval.id).state is ApprovalState.EXPIRED
    assert refusal(lambda: approvals.deny(approval.id, APPROVER, SOON)) is Refusal.EXPIRED


@pytest.mark.parametrize("unknown", ["", "0" * 32, "x" * 10_000, None, 7])
def test_unknown_approval_id_is_rejected(unknown: Any) -> None:
    assert refusal(lambda: Approvals().grant(unknown, APPROVER, SOON)) is Refusal.UNKNOWN
    assert refusal(lambda: Approvals().get(unknown)) is Refusal.UNKNOWN


@pytest.mark.parametrize("at", ["", "now", "2026-07-01T10:05:00", "2026-13-01T10:05:00Z", "2026-07-01T10:05:00.5Z", 7])
def test_invalid_time_raises_an_error(at: Any) -> None:
    approvals = Approvals()
    approval = opened(approvals)

    with pytest.raises(UsageError) as caught:
        approvals.grant(approval.id, APPROVER, at)

    assert str(caught.value) == f"{at!r} is not a time (write a time such as 2026-07-01T10:00:00Z)"


@pytest.mark.parametrize("before", [(), (OTHER,)])
def test_one_denial_denies_an_approval_even_after_a_grant(before: Sequence[dict[str, Any]]) -> None:
    approvals = Approvals()
    approval = opened(approvals)
    for by in before:
        approvals.grant(approval.id, by, SOON)
    denied = approvals.deny(approval.id, APPROVER, LATE, "not this\nmonth \ud800")

    assert (denied.state, denied.closed_at, denied.closed_by, denied.why) == (
        ApprovalState.DENIED, LATE, Person("https://id", "boss"), recordable("not this\nmonth \ud800"),
    )  # fmt: skip
    assert approvals.usable(approval.call_digest, SOON) is None
    assert refusal(lambda: approvals.grant(approval.id, OTHER, LATE)) is Refusal.NOT_PENDING
    assert denied.as_json()["closed_by"] == {"iss": "https://id", "sub": "boss"}


@pytest.mark.parametrize("sub", ["officer-123", "agent:payments"])
def test_requester_can_withdraw_an_approval(sub: str) -> None:
    approvals = Approvals()
    approval = opened(approvals, body(agent="agent:payments"))
    approvals.grant(approval.id, APPROVER, SOON)

    assert refusal(lambda: approvals.withdraw(approval.id, APPROVER, SOON)) is Refusal.NOT_A_REQUESTER
    assert approvals.withdraw(approval.id, {"sub": sub}, SOON).state is ApprovalState.WITHDRAWN
    assert approvals.usable(approval.call_digest, SOON) is None


def test_approval_is_used_only_once() -> None:
    approvals = Approvals()
    granted = approvals.grant(opened(approvals).id, APPROVER, SOON)
    consumed = approvals.consume(granted, LATE)

    assert (consumed.state, consumed.closed_at) == (ApprovalState.CONSUMED, LATE)
    assert approvals.usable(granted.call_digest, LATE) is None
    for step in (
        lambda: approvals.consume(granted, LATE),
        lambda: approvals.grant(granted.id, OTHER, LATE),
        lambda: approvals.deny(granted.id, OTHER, LATE),
        lambda: approvals.withdraw(granted.id, {"sub": "officer-123"}, LATE),
    ):
        assert refusal(step) is Refusal.CONSUMED


def test_using_an_approval_fails_if_the_stored_approval_has_changed() -> None:
    approvals = Approvals()
    pending = opened(approvals)
    assert refusal(lambda: approvals.consume(pending, SOON)) is Refusal.NOT_PENDING
    granted = approvals.grant(pending.id, APPROVER, SOON)
    assert refusal(lambda: approvals.grant(pending.id, OTHER, SOON)) is Refusal.NOT_PENDING
    assert (granted.usable(SOON), replace(granted, quorum=2).usable(SOON)) == (True, False)

    for other, now, reason in (
        (replace(granted, call_digest="sha256:other"), SOON, Refusal.NOT_PENDING),
        (replace(granted, grants=()), SOON, Refusal.NOT_PENDING),
        (granted, "2026-07-01T09:00:00Z", Refusal.NOT_PENDING),
        (granted, END, Refusal.EXPIRED),
    ):
        assert refusal(lambda other=other, now=now: approvals.consume(other, now)) is reason  # type: ignore[misc]


def test_every_step_of_an_approval_is_recorded_as_an_event() -> None:
    log = MemoryAudit()
    approvals = Approvals(audit=log)
    acting = body(claims=claims(act={"sub": "agent:payments"}))
    used = approvals.grant(opened(approvals, acting, quorum=2).id, APPROVER, SOON)
    used = approvals.consume(approvals.grant(used.id, OTHER, SOON), SOON)
    denied = approvals.deny(opened(approvals, acting).id, APPROVER, SOON, "no")
    withdrawn = approvals.withdraw(opened(approvals, acting).id, {"sub": "officer-123"}, SOON)

    same = {
        **EMPTY, "request_id": "req-1", "run_id": "run-1", "tool_name": "initiate_wire",
        "manifest_version": "2026.07.1", "manifest_digest": EFFECTIVE.digest,
        "arguments_digest": log.digest(canonical(payments.ARGUMENTS)), "codes": ["approvals.required"],
        "idempotency_key": "idm-4a2b", "sources": [], "spent": [],
    }  # fmt: skip
    steps = [
        ("opened", "officer-123", "agent:payments", "pending", used.id),
        ("granted", "boss", None, "pending", used.id),
        ("granted", "vice", None, "granted", used.id),
        ("consumed", "officer-123", "agent:payments", "consumed", used.id),
        ("opened", "officer-123", "agent:payments", "pending", denied.id),
        ("denied", "boss", None, "denied", denied.id),
        ("opened", "officer-123", "agent:payments", "pending", withdrawn.id),
        ("withdrawn", "officer-123", "agent:payments", "withdrawn", withdrawn.id),
    ]
    chain = dict.fromkeys(("seq", "time", "prev_hash", "hash"))
    assert [event.keys() for event in log_of(approvals)] == [{*EMPTY, "hash"}] * len(steps)
    assert [{**event, **chain} for event in log_of(approvals)] == [
        {
            **same,
            **chain,
            "type": f"approval.{step}",
            "subject": who,
            "agent": agent,
            "status": status,
            "approval_id": approval_id,
        }
        for step, who, agent, status, approval_id in steps
    ]


def test_expiry_of_an_approval_is_recorded_once() -> None:
    approvals = Approvals()
    granted = approvals.grant(opened(approvals).id, APPROVER, SOON)
    pending = opened(approvals, body(purpose="another"))
    approvals.sweep(SOON)
    assert [each.state for each in approvals.list()] == ["granted", "pending"]

    approvals.sweep(END)
    approvals.sweep(END)
    assert approvals.usable(granted.call_digest, END) is None
    assert refusal(lambda: approvals.grant(pending.id, APPROVER, END)) is Refusal.EXPIRED

    assert [each.state for each in approvals.list()] == ["expired", "expired"]
    expired = [event for event in log_of(approvals) if event["type"] == "approval.expired"]
    assert {(event["approval_id"], event["subject"], event["status"], event["outcome"]) for event in expired} == {
        (each.id, "officer-123", "expired", None) for each in (granted, pending)
    }
    assert len(expired) == 2


def test_expired_approval_is_unusable_even_if_its_expiry_cannot_be_recorded() -> None:
    log = FullLog(2)
    approvals = Approvals(audit=log)
    granted = approvals.grant(opened(approvals).id, APPROVER, SOON)

    assert approvals.usable(granted.call_digest, END) is None
    assert approvals.get(granted.id).state is ApprovalState.GRANTED
    log.takes = 1
    approvals.sweep(END)
    assert approvals.get(granted.id).state is ApprovalState.EXPIRED


class FullLog(MemoryAudit):
    """An audit log that accepts the given number of events and then fails."""

    def __init__(self, takes: int) -> None:
        super().__init__()
        self.takes = takes

    def append(self, event: AuditEvent) -> None:
        if self.takes == 0:
            raise AuditError("disk full")
        self.takes -= 1
        super().append(event)


def test_approval_does_not_change_if_a_grant_or_denial_cannot_be_recorded() -> None:
    log = FullLog(0)
    approvals = Approvals(audit=log)
    with pytest.raises(AuditError, match="disk full"):
        opened(approvals)
    assert list(approvals.list()) == []

    log.takes = 1
    approval = opened(approvals)
    for step, by in (("grant", APPROVER), ("deny", APPROVER), ("withdraw", {"sub": "officer-123"})):
        with pytest.raises(AuditError, match="disk full"):
            getattr(approvals, step)(approval.id, by, SOON)
    assert approvals.get(approval.id) == approval

    log.takes = 1
    granted = approvals.grant(approval.id, APPROVER, SOON)
    with pytest.raises(AuditError, match="disk full"):
        approvals.consume(granted, SOON)
    assert approvals.usable(granted.call_digest, SOON) == granted


class OvertakenStore(MemoryApprovals):
    """A store in which another process changes the approval just before the next replacement."""

    def __init__(self) -> None:
        super().__init__()
        self.other_step: Callable[[], object] | None = None

    def replace(self, old: Approval, new: Approval, *, within: Transaction | None = None) -> bool:
        if self.other_step is not None:
            step, self.other_step = self.other_step, None
            step()
        return super().replace(old, new, within=within)


def test_grant_is_checked_again_if_another_process_changed_the_approval_first() -> None:
    store = OvertakenStore()
    here, there = Approvals(store), Approvals(store)
    approval = opened(here)
    store.other_step = lambda: there.deny(approval.id, OTHER, SOON)

    assert refusal(lambda: here.grant(approval.id, APPROVER, SOON)) is Refusal.NOT_PENDING
    assert here.get(approval.id).grants == ()
    assert [(event["type"], event["outcome"]) for event in log_of(here)] == [
        ("approval.opened", None), ("approval.granted", None), ("approval.granted", "failed"),
    ]  # fmt: skip


def test_two_processes_open_one_approval_for_the_same_call() -> None:
    class Late(MemoryApprovals):
        def add(self, approval: Approval) -> Approval:
            there.open(body(), entry(), ["approvals.required"])
            return super().add(approval)

    store = Late()
    here, there = Approvals(store), Approvals(store)
    there.store = MemoryApprovals()
    there.store._records, there.store._by_call = store._records, store._by_call

    approval = opened(here)

    assert [each.id for each in here.list()] == [approval.id]
    assert [(event["type"], event["outcome"]) for event in log_of(here)] == [
        ("approval.opened", None), ("approval.opened", "failed"),
    ]  # fmt: skip


def test_approvals_can_be_granted_while_another_call_stages_its_action() -> None:
    approvals = Approvals()
    other = opened(approvals, body(purpose="other"))
    with ThreadPoolExecutor(1) as threads:

        def stage() -> None:
            granted = threads.submit(approvals.grant, other.id, APPROVER, SOON).result(PATIENCE)
            assert granted.state is ApprovalState.GRANTED

        approval = approvals.open(body(), entry(), ["approvals.required"], stage)

    assert [stored.id for stored in approvals.list()] == [other.id, approval.id]


def test_approval_change_times_out_while_another_thread_holds_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals_module, "TURN_SECONDS", 0.05)
    approvals = Approvals()
    approval = opened(approvals)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(approvals._lock.acquire).result()
        with pytest.raises(StoreError, match=r"approvals: locked by another thread for 0\.05 s"):
            approvals.grant(approval.id, APPROVER, SOON)
        other.submit(approvals._lock.release).result()

    assert approvals.grant(approval.id, APPROVER, SOON).state is ApprovalState.GRANTED


def test_two_calls_that_stage_concurrently_open_one_approval() -> None:
    approvals = Approvals()
    others: list[Approval] = []
    approval = approvals.open(body(), entry(), ["approvals.required"], lambda: others.append(opened(approvals)))

    assert [approval] == others == list(approvals.list())
    assert [event["type"] for event in log_of(approvals)] == ["approval.opened"]


def test_action_is_staged_again_if_an_approval_was_decided_during_staging() -> None:
    approvals = Approvals()
    staged: list[Action] = []

    def stage() -> Action:
        if not staged:
            approvals.deny(opened(approvals).id, APPROVER, SOON)
        staged.append(
            Action.staged(kind="wire", target="x", payload_digest="d", decision_id="id", idempotency_key=None, now=0.0)
        )
        return staged[-1]

    approval = approvals.open(body(), entry(), ["approvals.required"], stage)

    assert (len(staged), approval.action_id) == (2, staged[-1].id)


def test_grant_is_recorded_with_an_unknown_outcome_if_the_store_fails() -> None:
    class Gone(MemoryApprovals):
        def replace(self, old: Approval, new: Approval, *, within: Transaction | None = None) -> bool:
            raise ConnectionError("database is gone")

    approvals = Approvals(Gone())
    approval = opened(approvals)

    with pytest.raises(ConnectionError):
        approvals.grant(approval.id, APPROVER, SOON)
    assert [event["outcome"] for event in log_of(approvals)] == [None, None, "unknown"]


def test_memory_store_at_its_maximum_size_drops_the_oldest_approval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdp.stores.memory.CAPACITY", 2)
    approvals = Approvals()
    kept = [opened(approvals, body(purpose=purpose)) for purpose in ("a", "b", "c")]

    assert list(approvals.list()) == kept[1:]
    assert opened(approvals, body(purpose="a")).id != kept[0].id


PEOPLE = [
    *({"sub": sub, "roles": ["payments.approver"]} for sub in ("boss", "vice", "officer-123", "agent:payments")),
    {"sub": "boss", "iss": "https://id", "roles": ["payments.approver"]},
    {"sub": "vice", "iss": "https://id", "roles": ["staff"]},
    {"sub": "vice", "roles": ["payments.approver"], "act": {"sub": "agent:x"}},
]
TIMES = st.sampled_from([OPENED, SOON, LATE, END])
REQUEST = body(agent="agent:payments")


class ApprovalMachine(RuleBasedStateMachine):
    """Random steps by random people at random times. After each step, the invariants of all approvals are checked."""

    def __init__(self) -> None:
        super().__init__()
        self.approvals = Approvals()
        self.used: list[str] = []
        self.ids: list[str] = []
        self.ended: dict[str, ApprovalState] = {}

    @rule(quorum=st.integers(1, 3))
    def open(self, quorum: int) -> None:
        approval = opened(self.approvals, REQUEST, quorum=quorum)
        if approval.id not in self.ids:
            self.ids.append(approval.id)

    @precondition(lambda self: self.ids)
    @rule(which=st.integers(0, 50), step=st.sampled_from(["grant", "deny", "withdraw"]), by=st.sampled_from(PEOPLE),
          at=TIMES)  # fmt: skip
    def decide(self, which: int, step: str, by: dict[str, Any], at: str) -> None:
        approval_id = self.ids[which % len(self.ids)]
        before = self.approvals.get(approval_id)
        try:
            after = getattr(self.approvals, step)(approval_id, by, at)
        except ApprovalRefusedError:
            kept = replace(self.approvals.get(approval_id), state=before.state)
            assert kept == before
        else:
            assert before.state in {"pending", "granted"}
            assert len(after.grants) == len(before.grants) + (step == "grant")

    @precondition(lambda self: self.ids)
    @rule(which=st.integers(0, 50), at=TIMES)
    def use(self, which: int, at: str) -> None:
        approval = self.approvals.get(self.ids[which % len(self.ids)])
        usable = self.approvals.usable(approval.call_digest, at)
        try:
            self.approvals.consume(approval, at)
        except ApprovalRefusedError:
            assert usable is None or usable.id != approval.id
        else:
            assert approval.state is ApprovalState.GRANTED
            assert OPENED <= at < END
            self.used.append(approval.id)

    @invariant()
    def closed_approvals_stay_closed(self) -> None:
        assert len(self.used) == len(set(self.used))
        for approval in self.approvals.list():
            assert (approval.state is ApprovalState.CONSUMED) == (approval.id in self.used)
            assert self.ended.get(approval.id, approval.state) == approval.state
            if approval.state not in {"pending", "granted"}:
                self.ended[approval.id] = approval.state

    @invariant()
    def only_different_approvers_have_granted(self) -> None:
        for approval in self.approvals.list():
            people = [grant.sub for grant in approval.grants]
            assert len(people) == len(set(people)) <= approval.quorum
            assert set(people) <= {"boss", "vice"}
            assert all(grant.roles == ("payments.approver",) and grant.at < END for grant in approval.grants)
            if approval.state in {"granted", "consumed"}:
                assert len(people) == approval.quorum

    @invariant()
    def at_most_one_approval_is_pending(self) -> None:
        assert len(self.approvals.list(state=ApprovalState.PENDING)) <= 1


ApprovalMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=20)
TestApprovalMachine = ApprovalMachine.TestCase
