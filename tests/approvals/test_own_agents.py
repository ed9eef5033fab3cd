"""With `approvers: [$subject]`, a person can approve the calls of their own agent, but only with a second token."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from pdp import Approval, ApprovalRefusedError, Approvals, Pep
from pdp.approvals.people import Refusal
from pdp.json import canonical, digest
from pdp.manifest.fields import EffectClass
from pdp.manifest.model import EffectiveApproval
from pdp.stores.approvals import ApprovalState
from tests.support import payments
from tests.support.payments import session, wire
from tests.support.scripted import Scripted, until_approved

SOON = "2026-07-01T10:05:00Z"
EFFECTIVE = payments.effective()
ENTRY = EFFECTIVE.tools["initiate_wire"]
PERSON = {"sub": "officer-123", "iss": "https://id"}
AGENT = {"sub": "agent:wires", "iss": "https://id"}
CALL = {**PERSON, "jti": "call", "azp": "assistant", "sid": "day", "act": AGENT}
OWN = {**PERSON, "jti": "person"}
BOSS = {"sub": "boss", "iss": "https://id", "roles": ["payments.approver"]}


def opened(
    approvals: Approvals,
    call: dict[str, Any] = CALL,
    approvers: tuple[str, ...] = ("$subject",),
    effect_class: EffectClass | None = None,
    agent: str | None = None,
    **block: Any,
) -> Approval:
    claims = {**session().claims, **call}
    request = Pep(EFFECTIVE, Scripted(until_approved)).decide(wire(), session(claims=claims, agent=agent)).request
    assert request is not None
    approval = EffectiveApproval(approvers=approvers, **block)
    entry = ENTRY.model_copy(update={"approval": approval, "effect_class": effect_class})
    return approvals.open(canonical(request), entry, ["approvals.required"], claims=claims)


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in CALL.items() if name not in names}


def outcome(step: Callable[..., Approval], approval: Approval, claims: dict[str, Any]) -> str:
    """Return the state of the approval after the step, or the reason why the step was rejected."""
    try:
        return step(approval.id, claims, SOON).state
    except ApprovalRefusedError as error:
        return error.reason


@pytest.mark.parametrize(
    ("call", "claims", "expected"),
    [
        (CALL, OWN, "granted"),
        (CALL, {**OWN, "azp": "assistant", "sid": "day"}, "granted"),
        (without("jti"), {**PERSON, "azp": "desk"}, "granted"),
        (without("jti", "azp"), {**PERSON, "sid": "night", "jti": "person"}, "granted"),
        ({**without("azp"), "client_id": "assistant"}, {**PERSON, "azp": "desk"}, "granted"),
        # Both tokens have the same token id, so they are the same token, even if other claims differ.
        (CALL, {**OWN, "jti": "call"}, "same_token"),
        (CALL, {**OWN, "jti": "call", "azp": "desk", "sid": "night"}, "same_token"),
        # Both tokens name the same client, in the claim `azp` or in the claim `client_id`.
        (without("jti", "sid"), {**PERSON, "client_id": "assistant"}, "same_token"),
        (without("jti", "sid"), {**PERSON, "azp": "desk", "client_id": "assistant"}, "same_token"),
        # None of the claims jti, azp, client_id and sid is in both tokens, so the two tokens may be the same token.
        (CALL, PERSON, "same_token"),
        (without("jti", "azp", "sid"), {**OWN, "azp": "desk", "sid": "night"}, "same_token"),
        (without("jti"), OWN, "same_token"),
        *[(CALL, {**PERSON, "jti": odd}, "same_token") for odd in ("", None, 7, True, ["person"], {"id": "person"})],
        # The approver's token was issued to the agent, with or without the claim `act`.
        (CALL, {**OWN, "act": AGENT}, "agent"),
        (CALL, {**OWN, "azp": "agent:wires"}, "same_token"),
        (CALL, {**OWN, "client_id": "agent:wires", "azp": "desk"}, "same_token"),
        ({**CALL, "act": {**AGENT, "act": {"sub": "agent:inner"}}}, {**OWN, "azp": "agent:inner"}, "same_token"),
        (CALL, {**AGENT, "jti": "person"}, "requester"),
        # The approver has an issuer or a name that resembles the issuer or the name of the requester.
        (CALL, {**OWN, "iss": "https://id/"}, "requester"),
        (CALL, {**OWN, "iss": "https://ID"}, "requester"),
        (CALL, {"sub": "officer-123", "jti": "person"}, "requester"),
        (without("iss"), OWN, "requester"),
        (CALL, {**OWN, "sub": "Officer-123"}, "requester"),
        (CALL, {**OWN, "sub": "0fficer-l23"}, "requester"),
        (CALL, {**OWN, "iss": "https://elsewhere"}, "not_an_approver"),
        (without("iss"), {"sub": "officer-123", "jti": "person"}, "granted"),
        # The approver is another person, whose token has the role `$subject`.
        (CALL, {**BOSS, "jti": "boss", "roles": ["$subject"]}, "not_an_approver"),
        # The name of an agent resembles the name of the approver, so the approver may be this agent.
        ({**CALL, "act": {"sub": "officer-123"}}, OWN, "requester"),
        ({**CALL, "act": {**AGENT, "act": {"sub": "OFFICER-123"}}}, OWN, "requester"),
    ],
)  # fmt: skip
def test_person_can_grant_a_call_of_their_own_agent_only_with_another_token(
    call: Any, claims: dict[str, Any], expected: str
) -> None:
    approvals = Approvals()
    approval = opened(approvals, call)

    assert outcome(approvals.grant, approval, claims) == expected
    assert approvals.get(approval.id).state == ("granted" if expected == "granted" else "pending")


@pytest.mark.parametrize(("claims", "expected"), [(OWN, "denied"), (without("act"), "same_token"), (CALL, "agent")])
def test_denial_of_a_call_has_the_same_rules_for_own_agents_as_a_grant(claims: dict[str, Any], expected: str) -> None:
    approvals = Approvals()

    assert outcome(approvals.deny, opened(approvals), claims) == expected


def test_approval_record_contains_digests_of_token_client_and_session() -> None:
    approvals = Approvals()
    approval = opened(approvals)
    granted = approvals.grant(approval.id, OWN, SOON)

    marks = {"token": "call", "client": "assistant", "session": "day"}
    assert granted.token == {kind: (digest(text.encode()),) for kind, text in marks.items()}
    (grant,) = granted.grants
    assert (grant.person, grant.roles, grant.token) == (
        approval.requesters[0], ("$subject",), {"token": (digest(b"person"),)}
    )  # fmt: skip
    assert granted.as_context(SOON)["grants"] == [
        {"iss": "https://id", "sub": "officer-123", "roles": ["$subject"], "at": SOON}
    ]


@pytest.mark.parametrize(
    ("call", "changes", "expected"),
    [
        (without("act"), {}, "requester"),
        (without("act"), {"agent": "agent:desk"}, "granted"),
        (CALL, {"effect_class": EffectClass.COMMIT_HIGH}, "requester"),
        (CALL, {"effect_class": EffectClass.COMMIT_LOW}, "granted"),
        (CALL, {"approvers": ("payments.approver",)}, "requester"),
        (CALL, {"approvers": ()}, "requester"),
        (CALL, {"approvers": ("payments.approver", "$subject")}, "granted"),
    ],
)
def test_person_can_approve_only_if_the_tool_allows_it_and_an_agent_acts(
    call: Any, changes: dict[str, Any], expected: str
) -> None:
    approvals = Approvals()
    approval = opened(approvals, call, **changes)

    assert ("$subject" in approval.approvers) == (expected == "granted")
    assert outcome(approvals.grant, approval, {**OWN, "roles": ["payments.approver"]}) == expected


def test_person_who_is_subject_and_approver_counts_once_towards_the_quorum() -> None:
    approvals = Approvals()
    approval = opened(approvals, approvers=("payments.approver", "$subject"), quorum=2)
    approval = approvals.grant(approval.id, {**OWN, "roles": ["payments.approver"]}, SOON)

    for again in (OWN, {**OWN, "jti": "third"}):
        with pytest.raises(ApprovalRefusedError) as refused:
            approvals.grant(approval.id, again, SOON)
        assert refused.value.reason is Refusal.ALREADY_GRANTED
    granted = approvals.grant(approval.id, BOSS, SOON)
    assert (granted.state, [grant.roles for grant in granted.grants]) == (
        ApprovalState.GRANTED, [("$subject",), ("payments.approver",)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("claims", "usable"), [(CALL, True), ({**CALL, "jti": "next"}, True), (OWN, False), (without("jti"), False)]
)
def test_call_with_the_token_of_the_grant_cannot_use_the_approval(claims: dict[str, Any], *, usable: bool) -> None:
    approvals = Approvals()
    granted = approvals.grant(opened(approvals).id, OWN, SOON)

    assert approvals.usable(granted.call_digest, SOON, claims) == (granted if usable else None)


def test_old_approval_record_without_tokens_can_be_loaded() -> None:
    approvals, adapter = Approvals(), TypeAdapter(Approval)
    new = approvals.grant(opened(approvals, approvers=("payments.approver",), quorum=2).id, BOSS, SOON)
    assert adapter.validate_json(adapter.dump_json(new)) == new

    old = json.loads(adapter.dump_json(new))
    del old["token"], old["grants"][0]["token"]
    assert adapter.validate_json(json.dumps(old)) == replace(new, token={})
