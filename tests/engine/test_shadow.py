"""A shadow engine decides in the background. Differences are counted and reported, but never change the decision."""

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
    """Return an engine that always gives the same answer."""
    return Scripted(lambda _: {**answer(verdict, code=code), **answers})


def shadowed(engine: Engine, shadow: Engine, **options: Any) -> ShadowEngine:
    """Return a shadow engine whose `close` waits until the shadow has decided all queued requests."""
    return ShadowEngine(engine, shadow, **{"closing": PATIENCE} | options)


class Raising(Engine):
    """An engine that raises the given error on every evaluation."""

    name = "raising"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        raise self.error

    def close(self) -> None:
        raise self.error


class Stuck(Engine):
    """An engine that answers only after `go` is set."""

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


# Callers get the answers of the engine, not of its shadow


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
def test_engine_with_a_shadow_returns_the_same_answers_as_without_a_shadow(shadow: Callable[[], Engine]) -> None:
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
def test_failure_of_the_main_engine_is_raised_and_not_compared_with_the_shadow(error: Exception) -> None:
    shadow = constant()
    engine = ShadowEngine(Raising(error), shadow)
    for ask in (
        lambda: engine.evaluate(b"{}"), lambda: asyncio.run(engine.aevaluate(b"{}", PLAN)), engine.close,
    ):  # fmt: skip
        with pytest.raises(type(error)) as caught:
            ask()
        assert caught.value is error
    assert (engine.counts(), shadow.asked) == (ShadowCounts(), [])


def test_invalid_answer_of_the_main_engine_is_not_compared_with_the_shadow() -> None:
    shadow = constant()
    with shadowed(constant(verdict="MAYBE"), shadow) as engine:
        assert engine.decide_body(b"{}").codes == ("engine.answer_invalid",)
    assert (engine.counts(), shadow.asked) == (ShadowCounts(failed=1), [])


# Counts and reports


def test_reported_shadow_difference_has_both_decisions_and_the_request(caplog: pytest.LogCaptureFixture) -> None:
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
def test_verdict_codes_and_obligations_of_engine_and_shadow_are_compared(ours: Any, theirs: Any, same: bool) -> None:
    with shadowed(Scripted(lambda _: ours), Scripted(lambda _: theirs)) as engine:
        engine.evaluate(b"{}")
    assert engine.counts() == ShadowCounts(same=int(same), differing=int(not same))


def test_decisions_of_engine_and_shadow_on_plans_are_compared() -> None:
    differences: list[ShadowDifference] = []
    plan = b'{"steps":[{"tool":"a"},{"tool":"b"}]}'
    with shadowed(constant(code="planning.acceptable"), constant("DENY"), on_difference=differences.append) as engine:
        decided = (engine.decide_body(plan, PLAN), asyncio.run(engine.adecide_body(plan, PLAN)))

    assert [decision.verdict for decision in decided] == ["ALLOW", "ALLOW"]
    assert [(each.document, each.request) for each in differences] == [("authz/plan", plan)] * 2


# Observers and arguments


def test_failing_observer_does_not_affect_decisions(caplog: pytest.LogCaptureFixture) -> None:
    observed = []

    def observe(difference: ShadowDifference) -> None:
        observed.append(difference)
        raise SystemExit("the secret")

    with shadowed(constant(), constant("DENY"), on_difference=observe) as engine:
        for _ in range(3):
            assert engine.decide_body(b"{}").verdict == "ALLOW"

    assert (engine.counts(), len(observed)) == (ShadowCounts(differing=3), 3)
    assert [record.getMessage() for record in caplog.records] == ["on_difference raised SystemExit"] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"waiting": 0}, "waiting: 0 is out of range (give at least 1)"),
        ({"waiting": True}, "waiting: True is out of range (give at least 1)"),
        ({"closing": -1}, "closing: -1 is not a number of seconds (give a number above 0, at most 3600)"),
        ({"closing": None}, "closing: None is not a number of seconds (give a number above 0, at most 3600)"),
    ],
)
def test_invalid_arguments_are_rejected(options: dict[str, Any], message: str) -> None:
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
def test_failing_shadow_is_counted_and_logged_once(
    shadow: Callable[[], Engine], failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    with shadowed(constant(), shadow()) as engine:
        for _ in range(5):
            assert engine.decide_body(b"{}").verdict == "ALLOW"

    assert engine.counts() == ShadowCounts(failed=5)
    assert [record.getMessage() for record in caplog.records if "failed" in record.getMessage()] == [
        f"the shadow engine failed: {failure}"
    ]
    assert "secret" not in caplog.text


def test_stuck_shadow_delays_no_decision_and_drops_excess_requests() -> None:
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


def test_close_processes_the_queue_and_closes_both_engines() -> None:
    ours, theirs = usual(), EmbeddedEngine(strict())
    engine = shadowed(ours, theirs)
    for _ in range(50):
        engine.evaluate(wire_body())
    engine.close()
    engine.close()

    assert [each.decide_body(wire_body()).codes for each in (engine, ours, theirs)] == [("engine.unavailable",)] * 3
    assert engine.counts() == ShadowCounts(differing=50)


async def test_aclose_does_not_block_the_event_loop() -> None:
    stuck = Stuck()
    engine = shadowed(constant(), stuck)
    await engine.adecide_body(b"{}")
    closing = asyncio.create_task(engine.aclose())
    done, _ = await asyncio.wait([closing], timeout=0.05)
    assert not done
    stuck.go.set()
    await closing
    assert (engine.counts(), stuck.closed.is_set()) == (ShadowCounts(same=1), True)


def test_observer_of_shadow_differences_may_close_the_engine() -> None:
    closed = threading.Event()

    def observe(_: ShadowDifference) -> None:
        engine.close()
        closed.set()

    engine = shadowed(constant(), constant("DENY"), on_difference=observe)
    engine.evaluate(b"{}")
    assert closed.wait(PATIENCE / 3)
    engine.close()


def test_closing_twice_waits_only_once_for_a_slow_shadow() -> None:
    stuck = Stuck()
    engine = ShadowEngine(constant(), stuck, closing=0.1)
    engine.evaluate(b"{}")

    def close() -> None:
        for _ in range(6000):  # If every `close` waited 0.1 seconds, the calls would take ten minutes.
            engine.close()

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(PATIENCE / 3)
    assert not closing.is_alive()
    stuck.go.set()


@pytest.mark.parametrize("engine", [usual, constant], ids=["embedded", "an engine of the user's own"])
def test_forked_child_denies_and_never_hangs(engine: Callable[[], Engine]) -> None:
    """At the time of the fork, another thread of the parent may hold the lock. The test holds the lock instead."""
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


# Concurrency


def test_shadow_comparison_counts_are_exact_with_sixteen_threads() -> None:
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


def test_approval_is_used_once_although_a_shadow_also_decides() -> None:
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
