"""Sessions are validated and copied. The subject of a session comes only from verified claims."""

import math
from typing import Any

import pytest

from pdp.errors import UsageError
from pdp.session import Session


def session(**claims: Any) -> Session:
    return Session(claims={"sub": "officer-123", **claims})


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        pytest.param({}, [], id="none"),
        pytest.param({"emts": {"b": True, "a": True}}, ["a", "b"], id="entitlements, sorted"),
        pytest.param({"emts": {"a": "true", "b": 1, "c": None, "d": False}}, [], id="only literal true counts"),
        pytest.param({"scope": "b a  b"}, ["a", "b"], id="scope"),
        pytest.param({"scope": "a\u00a0b"}, ["a\u00a0b"], id="only a blank parts scopes"),
        pytest.param({"scope": "b", "emts": {"a": True}}, ["a", "b"], id="both"),
        pytest.param({"scope": ["a"], "emts": ["a"]}, [], id="mistyped gives nothing"),
    ],
)
def test_session_scopes_come_from_the_claims_entitlements_and_scope(claims: dict[str, Any], scopes: list[str]) -> None:
    assert session(**claims).subject.properties == {"scopes": scopes}


def test_session_logs_an_entitlement_that_is_false_although_the_scope_claim_grants_the_scope(
    caplog: pytest.LogCaptureFixture,
) -> None:
    claims = {"sub": "ann", "emts": {"notes.wipe": False, "notes.read": True}, "scope": "notes.wipe notes.read"}
    for _ in range(2):
        assert Session(claims=claims).subject.properties["scopes"] == ["notes.read", "notes.wipe"]

    assert [record.getMessage() for record in caplog.records] == [
        "a claim was ignored: emts: 'notes.wipe' is false, but the claim scope grants it"
    ]


def test_subject_contains_only_known_claims() -> None:
    act = {"sub": "agent:payments", "scopes": ["a"], "act": {"sub": "agent:inner"}}
    given = session(
        iss="https://issuer.example", clearances=["pii"], roles=["officer"], limits={"l": 1},
        entitlements={"corpora": ["c"]}, act=act, email="x@example.org", exp=1,
    )  # fmt: skip

    assert given.subject._asdict() == {
        "type": "user",
        "id": "officer-123",
        "properties": {
            "scopes": [],
            "clearances": ["pii"],
            "roles": ["officer"],
            "limits": {"l": 1},
            "entitlements": {"corpora": ["c"]},
            "iss": "https://issuer.example",
            "act": act,
        },
    }


@pytest.mark.parametrize(
    ("claims", "wrong"),
    [
        ({}, "missing"),
        ({"sub": None}, "missing"),
        ({"sub": ""}, "empty"),
        ({"sub": 7}, "not text"),
        ({"sub": ["officer-123"]}, "not text"),
        ({"sub": False}, "not text"),
    ],
)
def test_claims_without_a_subject_are_rejected(claims: dict[str, Any], wrong: str) -> None:
    with pytest.raises(UsageError) as caught:
        _ = Session(claims=claims).subject

    assert str(caught.value) == f"session: claims.sub is {wrong}, but a decision needs a subject"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param(
            None, "the call has no session (open a session with `with pep.using(session)`, or pass one)", id="none"
        ),
        pytest.param({}, "session: claims: Field required", id="no claims"),
        pytest.param({"claims": []}, "session: claims: Input should be a valid dictionary", id="claims a list"),
        pytest.param({"claims": {}, "approval": {}}, "session: approval: Extra inputs are not permitted", id="unknown"),
        pytest.param(
            {"claims": {}, "facts": {"x": math.nan}},
            "session: facts: Value error, x: nan is not a number of JSON",
            id="NaN",
        ),
        pytest.param({"claims": {}, "purpose": 1}, "session: purpose: Input should be a valid string", id="mistyped"),
        pytest.param(
            {"claims": {}, "time": "yesterday"},
            "session: time: Value error, is not a time such as 2026-07-01T10:00:00Z",
            id="time",
        ),
        pytest.param(
            {"claims": {}, "time": "2026-99-99T99:99:99Z"},
            "session: time: Value error, is not a time such as 2026-07-01T10:00:00Z",
            id="an impossible time",
        ),
        pytest.param(
            {"claims": {}, "run_id": "\ud800"},
            "session: run_id: Value error, value: lone surrogate in a string",
            id="lone surrogate",
        ),
        pytest.param(
            {"claims": {}, "request_id": "x" * 1025},
            "session: request_id: Value error, has 1025 characters, but at most 1024 are allowed",
            id="too long",
        ),
        pytest.param(
            {"claims": {}, "prompt": ["1" * 262_144, "2"]},
            "session: prompt: Value error, has 262145 characters, but at most 262144 are allowed",
            id="prompt too long",
        ),
    ],
)
def test_invalid_session_is_rejected(value: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Session.read(value)

    assert str(caught.value) == message


def test_session_does_not_change_when_its_input_changes() -> None:
    claims: dict[str, Any] = {"sub": "officer-123", "emts": {}}
    made = Session(claims=claims)

    claims["emts"]["payments.wire.initiate"] = True

    assert made.subject.properties == {"scopes": []}


def test_with_changes_returns_a_changed_copy_of_the_session() -> None:
    before = session()
    after = before.with_changes(facts={"sanctions_status": "clear"}, purpose="payments.supplier")

    assert (before.facts, before.purpose) == ({}, None)
    assert (after.facts, after.purpose, after.claims) == (
        {"sanctions_status": "clear"}, "payments.supplier", before.claims,
    )  # fmt: skip


def test_changing_the_claims_of_a_session_changes_its_subject() -> None:
    before = session(emts={"a": True})
    assert before.subject.properties == {"scopes": ["a"]}

    after = before.model_copy(update={"claims": {"sub": "eve"}})

    assert (after.subject.id, after.subject.properties) == ("eve", {"scopes": []})
    assert after.variables["claims"] == {"sub": "eve"}


def test_expressions_see_only_session_fields_that_are_set() -> None:
    assert session().variables == {
        "claims": {"sub": "officer-123"}, "facts": {}, "prompt": [], "home_domains": [], "plan": [], "state": {},
        "config": {},
    }  # fmt: skip
