"""The details of a denial name ignored claims and malformed fields, but contain no values of claims or fields."""

from typing import Any

import pytest

from pdp import Pep
from pdp.manifest.load import load_effective
from tests.support import desk

MANIFEST = """
manifest_version: 2026.07.1
tools:
  - {name: list_letters, description: List., effect_class: read-internal, scopes: [letters.read],
     resource: {type: corpus, id: $arguments.corpus},
     schema: {type: object, required: [corpus], properties: {corpus: {type: string, maxLength: 20}}}}
  - {name: send_wire, description: Send., risk_tier: low, scopes: [wire.send, wire.read], markings: [pii],
     effect_class: read-internal, limits: [{limit: wire.most, argument: amount}],
     schema: {type: object, required: [amount], properties: {amount: {type: number}}},
     resource: {type: wire, id: $session.claims.sub, markings: $session.facts.markings}}
"""
WIRE = {"tool": "send_wire", "arguments": {"amount": 5}}
HELD = {"wire.send": True, "wire.read": True}
VALUE = "a value that nobody else must read"


@pytest.fixture(scope="module")
def deciding(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("reasons") / "manifest.yaml"
    file.write_text(MANIFEST)
    effective = load_effective(file)
    with desk.engine(effective) as engine:
        yield effective, engine


@pytest.fixture
def pep(deciding: Any) -> Pep:
    return Pep(*deciding)


def details(pep: Pep, claims: dict[str, Any], proposal: Any = WIRE, **fields: Any) -> dict[str, Any]:
    """Return the details of a denied call by reason code."""
    evaluation = pep.decide(proposal, {"claims": {"sub": "ann", **claims}, **fields})
    assert not evaluation.allowed
    assert VALUE not in str(evaluation.as_json())
    return {reason["code"]: reason["details"] for reason in evaluation.as_json()["reasons"]}


@pytest.mark.parametrize(
    ("claims", "ignored"),
    [
        ({"emts": ["wire.send"]}, ["emts: expected an object {SCOPE: true}, found array of string"]),
        ({"emts": "wire.send"}, ["emts: expected an object {SCOPE: true}, found string"]),
        (
            {"emts": {"wire.send": "true", "wire.read": 1, VALUE: "true"}},
            [
                "emts: wire.read: only true grants a scope, found number",
                "emts: wire.send: only true grants a scope, found string",
            ],
        ),
        ({"emts": {"wire.send": False, "wire.read": None}}, None),
        ({"emts": {"other": True}}, None),
        ({"scope": [VALUE]}, ["scope: expected one string of scopes separated by spaces, found array of string"]),
        ({"scope": "wire.send,wire.read"}, ["scope: expected spaces between scopes, found another separator"]),
        ({"scope": "wire.sender"}, None),
        ({"emt": HELD}, ["emt: unknown claim, did you mean emts?"]),
        ({"EMTS": HELD}, ["EMTS: unknown claim, did you mean emts?"]),
        (
            {"scp": ["wire.send"], "permissions": ["wire.read"], "realm_access": {"roles": [VALUE]}},
            [
                f"{name}: no scopes are read from this claim; map the claim to emts"
                for name in ("permissions", "realm_access", "scp")
            ],
        ),
        ({"scopes": VALUE}, ["scopes: unknown claim, did you mean scope?"]),
        ({"limit": {}, "email": VALUE, "exp": 1, "iat": 1, "acr": "1", "aud": VALUE, "jti": VALUE}, None),
    ],
)
def test_denial_names_the_claims_that_grant_no_scope(
    pep: Pep, claims: dict[str, Any], ignored: list[str] | None
) -> None:
    expected = {"missing": ["wire.read", "wire.send"]} | ({"ignored_claims": ignored} if ignored else {})

    assert details(pep, claims, facts={"markings": []}) == {"scopes.missing": expected}


@pytest.mark.parametrize(
    ("claims", "code", "ignored"),
    [
        ({"clearance": ["pii"]}, "markings.not_cleared", "clearance: unknown claim, did you mean clearances?"),
        ({"limit": {"wire.most": 9}}, "limits.exceeded", "limit: unknown claim, did you mean limits?"),
        ({"act": {"sub": "a", "scope": VALUE}}, "delegation.exceeds_agent",
         "act.scope: unknown claim, did you mean act.scopes?"),
        ({"act": {"sub": "a", "emts": HELD}}, "delegation.exceeds_agent",
         "act.emts: unknown claim, did you mean act.scopes?"),
        ({"act": {"sub": "a", "scopes": [*HELD], "act": {"sub": "b", "Scopes": [*HELD]}}}, "delegation.exceeds_agent",
         "act.act.Scopes: unknown claim, did you mean act.act.scopes?"),
    ],
)  # fmt: skip
def test_denial_names_a_misspelt_claim(pep: Pep, claims: dict[str, Any], code: str, ignored: str) -> None:
    marked = {"markings": ["pii"] if code == "markings.not_cleared" else []}

    assert details(pep, {"emts": HELD, **claims}, facts=marked)[code]["ignored_claims"] == [ignored]


def test_denial_names_a_misspelt_entitlement(pep: Pep) -> None:
    search = {"tool": "list_letters", "arguments": {"corpus": "hr"}}
    found = details(pep, {"emts": {"letters.read": True}, "entitlement": {"corpora": ["hr"]}}, search)

    assert found == {
        "documents.not_entitled": {
            "type": "corpus",
            "id": "hr",
            "ignored_claims": ["entitlement: unknown claim, did you mean entitlements?"],
        }
    }


DEEP = {"sub": "a", "act": {"sub": "b", "act": {"sub": "c", "act": {"sub": "d", "act": {"sub": "e"}}}}}


@pytest.mark.parametrize(
    ("claims", "faults"),
    [
        ({"clearances": VALUE}, [("claims.clearances", "array of strings", "string")]),
        ({"roles": ["a", 1, None]}, [("claims.roles", "array of strings", "array of null and number and string")]),
        ({"limits": [9]}, [("claims.limits", "object", "array of number")]),
        ({"limits": {"wire.most": "9", "b": -1, "c": True, "d": 9}}, [
            ("claims.limits.b", "number of at least 0", "number below 0"),
            ("claims.limits.c", "number of at least 0", "boolean"),
            ("claims.limits.wire.most", "number of at least 0", "string"),
        ]),
        ({"entitlements": ["hr"]}, [("claims.entitlements", "object", "array of string")]),
        ({"entitlements": {"corpora": VALUE, "documents": [{}]}}, [
            ("claims.entitlements.corpora", "array of strings", "string"),
            ("claims.entitlements.documents", "array of strings", "array of object"),
        ]),
        ({"iss": 7}, [("claims.iss", "string or null", "number")]),
        ({"act": VALUE}, [("claims.act", "object", "string")]),
        ({"act": {}}, [("claims.act.sub", "string that is not empty", "absent")]),
        ({"act": {"sub": "", "purposes": VALUE}}, [
            ("claims.act.purposes", "array of strings", "string"),
            ("claims.act.sub", "string that is not empty", "empty string"),
        ]),
        ({"act": {"sub": "a", "act": {"sub": "b", "limits": []}}}, [("claims.act.act.limits", "object", "array")]),
        ({"act": DEEP}, [("claims.act.act.act.act.act", "null, as there are at most 4 agents", "object")]),
    ],
)  # fmt: skip
def test_denial_names_expected_and_actual_type_of_a_malformed_field(
    pep: Pep, claims: dict[str, Any], faults: list[tuple[str, str, str]]
) -> None:
    named = [{"field": field, "expected": expected, "found": found} for field, expected, found in faults]

    assert details(pep, claims) == {"decision.request_invalid": {"faults": named}}


def test_denial_reports_malformed_markings_as_a_resource_field(pep: Pep) -> None:
    named = {"field": "resource.markings", "expected": "array of strings", "found": "string"}

    assert details(pep, {}, facts={"markings": VALUE}) == {"decision.request_invalid": {"faults": [named]}}


def test_denial_names_at_most_ten_malformed_fields(pep: Pep) -> None:
    found = details(pep, {"limits": {f"{number:03}": "" for number in range(500)}})

    assert [fault["field"] for fault in found["decision.request_invalid"]["faults"]] == [
        f"claims.limits.{number:03}" for number in range(10)
    ]


def test_each_enforcement_point_logs_an_ignored_claim_once(deciding: Any, caplog: pytest.LogCaptureFixture) -> None:
    for pep in (Pep(*deciding), Pep(*deciding)):
        for claims in ({"emts": [VALUE]}, {"emts": ["another"]}, {"emts": 7}, {"emts": [VALUE]}):
            details(pep.with_changes(), claims)

    logged = [record.getMessage() for record in caplog.records]
    text = (
        "a call was not allowed, and a claim of its session was ignored: emts: expected an object {SCOPE: true}, found"
    )
    assert logged == [f"{text} array of string", f"{text} number"] * 2
    assert VALUE not in caplog.text


def test_allowed_call_has_no_ignored_claims_in_its_details(pep: Pep, caplog: pytest.LogCaptureFixture) -> None:
    claims = {"sub": "ann", "emts": HELD, "limits": {"wire.most": 9}, "scopes": ["x"], "clearances": []}
    evaluation = pep.decide(WIRE, {"claims": claims, "facts": {"markings": []}})

    assert evaluation.allowed
    assert "ignored_claims" not in str(evaluation.as_json())
    assert not caplog.records
