"""Every answer of the policy engine is parsed into a decision, or raises an error with a stable code."""

from typing import Any

import orjson
import pytest

from pdp.decision import GRANT, Obligation, Reason, Verdict, parse_decision
from pdp.engine.protocol import DECISION, Engine
from pdp.errors import AnswerInvalidError, BundleError, EngineError, EngineTimeoutError
from pdp.request import Entity, Request, RequestedAction


def reason(code: str, **details: Any) -> dict[str, Any]:
    return {"code": code, "message": "why", "details": details}


def answer(**changes: Any) -> bytes:
    """Return an engine's answer as JSON: an ALLOW, with `changes` applied to its fields."""
    code = GRANT if changes.get("verdict", "ALLOW") == "ALLOW" else "x.y"
    whole: dict[str, Any] = {"verdict": "ALLOW", "reasons": [reason(code)], "obligations": [], "bundle": None}
    return orjson.dumps(whole | changes)


def test_parser_reads_every_field_of_a_decision() -> None:
    parsed = parse_decision(
        answer(
            obligations=[{"id": "redact", "on": "ALLOW", "parameters": {"marking": "pii"}}],
            bundle={"revision": "sha256:1", "release": 3},
        )
    )

    assert (parsed.verdict, parsed.reasons) == (Verdict.ALLOW, (Reason(GRANT, "why", {}),))
    assert parsed.obligations == (Obligation("redact", Verdict.ALLOW, {"marking": "pii"}),)
    assert (parsed.bundle_revision, parsed.release) == ("sha256:1", 3)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param({"remedy": "Ask the desk."}, "x.y: why Ask the desk.", id="stated"),
        pytest.param({}, "x.y: why", id="absent"),
    ],
)
def test_parsed_reason_has_a_remedy_only_if_the_engine_answer_contains_a_remedy(
    fields: dict[str, str], text: str
) -> None:
    plain = reason("x.y", b=1, a=2) | fields
    decision = parse_decision(answer(verdict="DENY", reasons=[plain]))

    assert decision.as_json()["reasons"] == [plain]
    assert (decision.reasons[0].remedy, decision.reasons[0].text) == (fields.get("remedy"), text)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{}", id="empty object"),
        pytest.param(b"<html>", id="not JSON"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"null", id="null"),
        pytest.param(answer()[:-2], id="half an answer"),
        pytest.param(answer(verdict="allow"), id="another spelling"),
        pytest.param(answer(verdict=True), id="verdict mistyped"),
        pytest.param(answer(verdict=None), id="no verdict"),
        pytest.param(answer(verdict=[]), id="verdict a list"),
        pytest.param(answer(reasons=[]), id="no reason"),
        pytest.param(answer(reasons=["x.y"]), id="reason a text"),
        pytest.param(answer(reasons=[{**reason("x.y"), "details": []}]), id="details mistyped"),
        pytest.param(answer(reasons=[{**reason("x.y"), "message": None}]), id="message mistyped"),
        pytest.param(answer(reasons=[{**reason("x.y"), "remedy": None}]), id="remedy mistyped"),
        pytest.param(answer(reasons=[{**reason("x.y"), "hint": "ask"}]), id="reason with an unknown field"),
        pytest.param(answer(reasons=[{"code": "x.y", "message": "", "remedy": ""}]), id="remedy instead of details"),
        pytest.param(answer(obligations={}), id="obligations mistyped"),
        pytest.param(answer(obligations=[{"id": "x", "on": "SOON", "parameters": {}}]), id="obligation for no verdict"),
        pytest.param(answer(obligations=[{"id": "x", "on": "ALLOW", "parameters": []}]), id="parameters mistyped"),
        pytest.param(answer(bundle={"revision": "x"}), id="half an identity"),
        pytest.param(answer(bundle={"revision": "x", "release": True}), id="release a boolean"),
        pytest.param(answer(reasons="none"), id="reasons mistyped"),
        pytest.param(answer(reasons=[{"code": "x.y", "message": ""}]), id="reason without details"),
        pytest.param(answer(reasons=[{"code": 1, "message": "", "details": {}}]), id="code mistyped"),
        pytest.param(answer(obligations=[{"id": "x"}]), id="half an obligation"),
        pytest.param(answer(advice=[]), id="unknown field"),
        pytest.param(answer(bundle={"revision": "x", "release": "3"}), id="release mistyped"),
    ],
)
def test_malformed_engine_answer_raises_an_error(body: bytes) -> None:
    with pytest.raises(AnswerInvalidError) as caught:
        parse_decision(body)

    assert caught.value.code == "engine.answer_invalid"


STEP_UP = reason("limits.over_limit")
GRANTED = reason(GRANT)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"reasons": [STEP_UP]}, "ALLOW lacks the reason effects.gate_satisfied"),
        (
            {"verdict": "STEP_UP", "reasons": [STEP_UP, GRANTED]},
            "STEP_UP must not have the reason effects.gate_satisfied",
        ),
        ({"verdict": "DENY", "reasons": [GRANTED]}, "DENY must not have the reason effects.gate_satisfied"),
        (
            {"reasons": [GRANTED, reason("decision.concern_not_loaded")]},
            "the verdict is ALLOW, but a reason denies the call",
        ),
        (
            {"verdict": "STEP_UP", "reasons": [reason("decision.nothing_allows")]},
            "the verdict is STEP_UP, but a reason denies the call",
        ),
        ({"obligations": [{"id": "x", "on": "STEP_UP", "parameters": {}}]}, "an obligation belongs to another verdict"),
    ],
)
def test_engine_answer_with_reasons_or_obligations_that_contradict_its_verdict_is_denied(
    changes: dict[str, Any], fault: str
) -> None:
    decision = Answering(answer(**changes)).decide(request())

    message = f"the policy engine's answer is not a decision: {fault}"
    assert [(each.code, each.message) for each in decision.reasons] == [("engine.answer_invalid", message)]


@pytest.mark.parametrize(
    ("asked", "answered", "is_right"),
    [
        (b'{"context":{"request_id":"a\\"b"}}', 'a"b', True),
        (b'{"context":{"request_id":"one"}}', "two", False),
        (b'{"context":{"request_id":"one"}}', None, False),
        (b'{"context":{"arguments":{"request_id":"two"},"request_id":"one"}}', None, False),
        (b'{"context":{"arguments":{"request_id":"two"},"request_id":"one"}}', "two", False),
        (b'{"context":{"arguments":{"request_id":"two"}}}', None, True),
        (b'{"context":{"request_id":1}}', None, True),
        (b'{"context":{"request_id":1}}', 1, False),
        (b'{"context":[]}', None, True),
        (b"[]", None, True),
        (b"{}", "two", False),
        (b"no JSON", None, True),
    ],
)
def test_engine_answer_with_another_request_id_is_denied(asked: bytes, answered: object, is_right: bool) -> None:
    engine = Answering(answer(request_id=answered), answer())

    verdicts = [engine.decide_body(asked).verdict for _ in range(2)]

    # The second answer comes from an old bundle, whose answers lack the id of the request. The id may be missing.
    assert verdicts == [Verdict.ALLOW if is_right else Verdict.DENY, Verdict.ALLOW]


class Answering(Engine):
    """An engine that returns the prepared answers. If an answer is an exception, the engine raises the exception."""

    name = "answering"

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        self.bodies.append(body)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def request(**context: Any) -> Request:
    return Request(Entity("user", "u", {}), RequestedAction("a", {}), Entity("tool", "t", {}), context)


def test_decision_sorts_reasons_and_obligations_of_the_engine() -> None:
    reasons = [reason("b.x", limit="2"), reason("a.x"), reason("b.x", limit="1")]
    obligations = [
        {"id": name, "on": "DENY", "parameters": {"n": number}} for name, number in (("r", 2), ("m", 1), ("r", 1))
    ]
    decision = Answering(answer(verdict="DENY", reasons=reasons, obligations=obligations)).decide(request())

    assert [(each.code, each.details) for each in decision.reasons] == [
        ("a.x", {}), ("b.x", {"limit": "1"}), ("b.x", {"limit": "2"}),
    ]  # fmt: skip
    assert [(each.id, each.parameters["n"]) for each in decision.obligations] == [("m", 1), ("r", 1), ("r", 2)]
    assert decision.codes == ("a.x", "b.x")


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        pytest.param(EngineError("down"), "engine.unavailable", id="unavailable"),
        pytest.param(EngineTimeoutError("late"), "engine.timeout", id="time-out"),
        pytest.param(BundleError("bad"), "bundle.invalid", id="bundle"),
        pytest.param(b"{}", "engine.answer_invalid", id="answer"),
    ],
)
async def test_engine_failure_gives_a_deny_with_the_code_of_the_error(failure: bytes | Exception, code: str) -> None:
    engine = Answering(failure, failure)
    for decision in (engine.decide(request()), await engine.adecide(request())):
        assert (decision.verdict, decision.codes, decision.bundle_revision, decision.release) == (
            Verdict.DENY, (code,), None, None,
        )  # fmt: skip
        assert len(decision.decision_id) == 32


@pytest.mark.parametrize("context", [{"x": float("nan")}, {"x": 2**53}, {"x": "y" * 1024 * 1024}, {"x": {1}}])
async def test_request_that_is_not_json_is_not_sent_to_the_engine(context: dict[str, Any]) -> None:
    engine = Answering()
    for decision in (engine.decide(request(**context)), await engine.adecide(request(**context))):
        assert (decision.verdict, decision.codes) == (Verdict.DENY, ("decision.request_invalid",))
    assert engine.bodies == []
