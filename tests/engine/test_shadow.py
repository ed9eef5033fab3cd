"""A second engine decides alongside: it is counted and reported, and changes no decision whatever it does."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from pdp import Approvals, Pep, ShadowEngine
from pdp.decision import GRANT, Decision
from pdp.engine.protocol import DECISION, FINDINGS, PLAN, Engine
from pdp.engine.shadow import ShadowCounts, ShadowDifference
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import AnswerInvalidError, BundleError, EngineError, EngineTimeoutError, UsageError
from tests.support import PATIENCE, payments
from tests.support.bundle_releases import lax, scenario_requests, strict, wire_body
from tests.support.scripted import Scripted, answer, duty, until_approved


def usual() -> EmbeddedEngine:
    return payments.engine()


def loose() -> EmbeddedEngine:
    return EmbeddedEngine(lax())


def constant(verdict: str = "ALLOW", *, code: str | None = None, **answers: Any) -> Scripted:
    """An engine that always answers the same."""
    return Scripted(lambda _: {**answer(verdict, code=code), **answers})


def shadowed(engine: Engine, shadow: Engine, **options: Any) -> ShadowEngine:
    """Closing it waits until the shadow was asked about everything."""
    return ShadowEngine(engine, shadow, **{"closing": PATIENCE} | options)


class Raising(Engine):
    """An engine that never decides."""

    name = "raising"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        raise self.error

    def close(self) -> None:
        raise self.error


class Stuck(Engine):
    """An engine that answers when it is let go."""

    name = "stuck"

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.go = threading.Event()
        self.closed = threading.Event()

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        self.asked.set()
        self.go.wait(PATIENCE)
        return orjson.dumps(answer())

    def close(self) -> None:
        self.closed.set()


def whole(decision: Decision) -> dict[str, Any]:
    return {name: value for name, value in decision.as_json().items() if name != "decision_id"}


# The answer is the engine's


@pytest.mark.parametrize(
    "shadow",
    [
        pytest.param(loose, id="lax"),
        pytest.param(constant, id="says ALLOW"),
        pytest.param(lambda: Raising(EngineError("no")), id="fails"),
        pytest.param(lambda: Raising(SystemExit(3)), id="exits"),
        pytest.param(lambda: Scripted(lambda _: {"verdict": "ALLOW"}), id="lies"),
    ],
)
def test_every_answer_is_the_bare_engines_byte_for_byte(shadow: Callable[[], Engine]) -> None:
    bodies, plans = scenario_requests()
    hostile = [b"{}", b"null", b"[1]", b'{"subject":7}']
    asked = [(body, DECISION) for body in (*bodies, *hostile)] + [(plan, PLAN) for plan in plans]
    assert len(bodies) > 20

    async def tasks(engine: ShadowEngine) -> list[bytes]:
        return [await engine.aevaluate(*each) for each in asked]

    bare = usual()
    with shadowed(bare, shadow()) as engine:
        expected = [bare.evaluate(*each) for each in asked]
        assert [engine.evaluate(*each) for each in asked] == expected
        assert asyncio.run(tasks(engine)) == expected
        assert [engine.evaluate(body, FINDINGS) for body in bodies] == [
            bare.evaluate(body, FINDINGS) for body in bodies
        ]
        assert engine.name == "embedded"

    result = engine.counts()
    assert result.same + result.differing + result.failed == 2 * len(expected)


@pytest.mark.parametrize(
    "error",
    [
        EngineError("away"), EngineTimeoutError("late"), AnswerInvalidError("odd"), BundleError("old"), OSError(5, "x"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_failure_is_the_bare_engines_and_nothing_is_compared(error: Exception) -> None:
    shadow = constant()
    engine = ShadowEngine(Raising(error), shadow)
    for ask in (
        lambda: engine.evaluate(b"{}"), lambda: asyncio.run(engine.aevaluate(b"{}", PLAN)), engine.close,
    ):  # fmt: skip
        with pytest.raises(type(error)) as caught:
            ask()
        assert caught.value is error
    assert (engine.counts(), shadow.asked) == (ShadowCounts(), [])


def test_an_invalid_answer_of_the_engine_is_compared_with_nothing() -> None:
    shadow = constant()
    with shadowed(constant(verdict="MAYBE"), shadow) as engine:
        assert engine.decide_body(b"{}").codes == ("engine.answer_invalid",)
    assert (engine.counts(), shadow.asked) == (ShadowCounts(failed=1), [])


# What is counted and reported


def test_a_difference_has_both_decisions_and_the_request(caplog: pytest.LogCaptureFixture) -> None:
    differences: list[ShadowDifference] = []
    body = wire_body(47500, "hit")
    with usual() as bare, loose() as other:
        ours, theirs = bare.decide_body(body), other.decide_body(body)
    with shadowed(usual(), loose(), on_difference=differences.append) as engine:
        engine.evaluate(wire_body(20000))
        engine.evaluate(body)

    (difference,) = differences
    assert (difference.document, difference.request) == ("authz/decision", body)
    assert (whole(difference.decision), whole(difference.shadow_decision)) == (whole(ours), whole(theirs))
    assert (ours.codes, theirs.codes) == (("sanctions.not_clear",), ("limits.exceeded",))
    assert (engine.counts(), caplog.records) == (ShadowCounts(same=1, differing=1), [])


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (answer("DENY"), answer("ALLOW"), False),
        (answer("DENY", code="a.b"), answer("DENY", code="a.c"), False),
        (answer(), answer("ALLOW", duty("redact", fields=["a"])), False),
        (answer("ALLOW", duty("redact", fields=["a"])), answer("ALLOW", duty("redact", fields=["b"])), False),
        (answer("ALLOW", duty("a"), duty("b", n=1)), answer("ALLOW", duty("b", n=1.0), duty("a")), True),
        ({**answer(), "reasons": [{"code": GRANT, "message": "x", "details": {"n": 1}}]},
         {**answer(), "reasons": [{"code": GRANT, "message": "y", "details": {}}] * 2, "bundle": None}, True),
    ],
    ids=["verdict", "codes", "obligations", "parameters", "order of obligations", "words of reasons"],
)  # fmt: skip
def test_what_is_a_difference(ours: Any, theirs: Any, same: bool) -> None:
    with shadowed(Scripted(lambda _: ours), Scripted(lambda _: theirs)) as engine:
        engine.evaluate(b"{}")
    assert engine.counts() == ShadowCounts(same=int(same), differing=int(not same))


def test_plans_are_shadowed() -> None:
    differences: list[ShadowDifference] = []
    plan = b'{"steps":[{"tool":"a"},{"tool":"b"}]}'
    with shadowed(constant(code="planning.acceptable"), constant("DENY"), on_difference=differences.append) as engine:
        decided = (engine.decide_body(plan, PLAN), asyncio.run(engine.adecide_body(plan, PLAN)))

    assert [decision.verdict for decision in decided] == ["ALLOW", "ALLOW"]
    assert [(each.document, each.request) for each in differences] == [("authz/plan", plan)] * 2


# What the application gives


def test_an_observer_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    observed = []

    def observe(difference: ShadowDifference) -> None:
        observed.append(difference)
        raise SystemExit("the secret")

    with shadowed(constant(), constant("DENY"), on_difference=observe) as engine:
        for _ in range(3):
            assert engine.decide_body(b"{}").verdict == "ALLOW"

    assert (engine.counts(), len(observed)) == (ShadowCounts(differing=3), 3)
    assert [record.getMessage() for record in caplog.records] == ["on_difference failed: SystemExit"] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"waiting": 0}, "waiting: 0 is out of range (at least 1)"),
        ({"waiting": True}, "waiting: True is out of range (at least 1)"),
        ({"closing": -1}, "closing: -1 is not a number of seconds (above 0, at most 3600)"),
        ({"closing": None}, "closing: None is not a number of seconds (above 0, at most 3600)"),
    ],
)
def test_arguments_that_cannot_be_used(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ShadowEngine(constant(), constant(), **options)
    assert str(caught.value) == message


# Shadows that fail


@pytest.mark.parametrize(
    ("shadow", "failure"),
    [
        (lambda: Raising(EngineTimeoutError("the secret")), "engine.timeout"),
        (lambda: Raising(BundleError("the secret")), "bundle.invalid"),
        (lambda: Raising(SystemExit("the secret")), "SystemExit"),
        (lambda: constant(verdict="MAYBE"), "engine.answer_invalid"),
    ],
)  # fmt: skip
def test_a_shadow_that_fails_is_counted_and_logged_once(
    shadow: Callable[[], Engine], failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    with shadowed(constant(), shadow()) as engine:
        for _ in range(5):
            assert engine.decide_body(b"{}").verdict == "ALLOW"

    assert engine.counts() == ShadowCounts(failed=5)
    assert [record.getMessage() for record in caplog.records if "fails" in record.getMessage()] == [
        f"the shadow fails: {failure}"
    ]
    assert "secret" not in caplog.text


def test_a_shadow_that_never_answers_delays_nobody_and_the_rest_is_dropped() -> None:
    stuck = Stuck()
    engine = ShadowEngine(constant(), stuck, waiting=3, closing=0.05)
    engine.evaluate(b"{}")
    assert stuck.asked.wait(PATIENCE)
    for _ in range(100):
        assert engine.decide_body(b"{}").verdict == "ALLOW"
    assert engine.counts() == ShadowCounts(waiting=3, dropped=98)
    engine.close()
    assert engine.decide_body(b"{}").verdict == "ALLOW"
    assert engine.counts() == ShadowCounts(waiting=3, dropped=99)
    stuck.go.set()
    assert stuck.closed.wait(PATIENCE)
    assert engine.counts() == ShadowCounts(same=3, dropped=99)


# Closing


def test_closing_asks_about_what_waits_and_closes_both() -> None:
    ours, theirs = usual(), EmbeddedEngine(strict())
    engine = shadowed(ours, theirs)
    for _ in range(50):
        engine.evaluate(wire_body())
    engine.close()
    engine.close()

    assert [each.decide_body(wire_body()).codes for each in (engine, ours, theirs)] == [("engine.unavailable",)] * 3
    assert engine.counts() == ShadowCounts(differing=50)


async def test_closing_in_an_event_loop_lets_it_run() -> None:
    stuck = Stuck()
    engine = shadowed(constant(), stuck)
    await engine.adecide_body(b"{}")
    closing = asyncio.create_task(engine.aclose())
    done, _ = await asyncio.wait([closing], timeout=0.05)
    assert not done
    stuck.go.set()
    await closing
    assert (engine.counts(), stuck.closed.is_set()) == (ShadowCounts(same=1), True)


def test_an_observer_may_close_the_engine() -> None:
    closed = threading.Event()

    def observe(_: ShadowDifference) -> None:
        engine.close()
        closed.set()

    engine = shadowed(constant(), constant("DENY"), on_difference=observe)
    engine.evaluate(b"{}")
    assert closed.wait(PATIENCE / 3)
    engine.close()


def test_a_slow_shadow_is_waited_for_once_however_often_the_engine_is_closed() -> None:
    stuck = Stuck()
    engine = ShadowEngine(constant(), stuck, closing=0.1)
    engine.evaluate(b"{}")

    def close() -> None:
        for _ in range(6000):  # ten minutes, if each of them waited
            engine.close()

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(PATIENCE / 3)
    assert not closing.is_alive()
    stuck.go.set()


@pytest.mark.parametrize("engine", [usual, constant], ids=["embedded", "an engine of the user's own"])
def test_a_forked_child_decides_nothing_and_never_hangs(engine: Callable[[], Engine]) -> None:
    """Also where a thread of the parent held the lock at the fork."""
    with ShadowEngine(engine(), constant()) as shadowing:
        with shadowing._lock:
            child = os.fork()
            if child == 0:
                signal.alarm(int(PATIENCE))
                denied = False
                with contextlib.suppress(BaseException):
                    (reason,) = shadowing.decide_body(wire_body()).reasons
                    shadowing.close()
                    denied = reason.message == "the engine was opened before the process was forked"
                os._exit(0 if denied else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert shadowing.decide_body(wire_body()).verdict == "ALLOW"


# Many at once


def test_counts_are_exact_under_sixteen_threads() -> None:
    kinds = [wire_body(20000), wire_body(47500), wire_body(20000, "hit"), wire_body(47500, "hit")]
    rounds = 25
    reported: list[ShadowDifference] = []
    wrong: list[bytes] = []
    with usual() as bare:
        expected = {body: bare.evaluate(body) for body in kinds}

    def call() -> None:
        wrong.extend(body for body in kinds * rounds if engine.evaluate(body) != expected[body])

    with shadowed(usual(), loose(), waiting=16 * len(kinds) * rounds, on_difference=reported.append) as engine:
        callers = [threading.Thread(target=call) for _ in range(16)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()

    assert (wrong, engine.counts()) == ([], ShadowCounts(same=800, differing=800))
    assert len(reported) == 800


# Enforcement points


def test_an_approval_is_used_once_and_the_shadow_uses_none() -> None:
    wires: list[Any] = []
    approvals, soon = Approvals(), "2026-07-01T10:05:00Z"
    with shadowed(Scripted(until_approved), Scripted(until_approved)) as engine:
        tools = {"initiate_wire": lambda **arguments: wires.append(arguments)}
        pep = Pep(payments.effective(), engine, approvals=approvals, tools=tools)
        asked = pep.call(payments.wire(), payments.session()).approval
        assert asked is not None
        approvals.grant(asked.id, {"sub": "boss", "roles": ["payments.approver"]}, soon)
        executed = [pep.call(payments.wire(), payments.session(time=soon)).executed for _ in range(2)]

    assert (executed, wires, engine.counts()) == ([True, False], [payments.ARGUMENTS], ShadowCounts(same=3))
