"""A second bundle decides alongside: it is counted and reported, and changes no decision whatever it does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from pdp import Approvals, MemoryAudit, Pep, ShadowEngine
from pdp.engine.opa.engine import SidecarEngine
from pdp.engine.protocol import Engine
from pdp.engine.shadow import ShadowDifference
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import AnswerInvalidError, BundleError, EngineError, EngineTimeoutError, UsageError
from pdp.workbench.opa.local import LocalOpa
from tests.support import payments
from tests.support.bundle_releases import lax, scenario_requests, strict, wire_body
from tests.support.scripted import Scripted, answer, duty, until_approved

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LONG = 30.0


def usual() -> EmbeddedEngine:
    return payments.engine()


def loose() -> EmbeddedEngine:
    return EmbeddedEngine(lax())


def tight() -> EmbeddedEngine:
    return EmbeddedEngine(strict())


def constant(**answers: Any) -> Scripted:
    """An engine that always answers the same."""
    return Scripted(lambda _: {**answer(), **answers})


class Raising(Engine):
    """An engine that never decides."""

    name = "raising"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def evaluate(self, body: bytes) -> bytes:
        raise self.error

    async def aevaluate(self, body: bytes) -> bytes:
        raise self.error

    def evaluate_plan(self, body: bytes) -> bytes:
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

    def evaluate(self, body: bytes) -> bytes:
        self.asked.set()
        self.go.wait(LONG)
        return orjson.dumps(answer())

    async def aevaluate(self, body: bytes) -> bytes:
        return self.evaluate(body)

    def close(self) -> None:
        self.closed.set()


def counted(**changes: Any) -> dict[str, Any]:
    """Counts of nothing but `changes`."""
    nothing = {"decided": 0, "same": 0, "differing": {}, "failed": {}, "shadow_failed": {}, "dropped": 0, "waiting": 0}
    return {**nothing, **changes}


def counts(engine: ShadowEngine) -> dict[str, Any]:
    return asdict(engine.counts())


def whole(decision: Any) -> dict[str, Any]:
    return {name: value for name, value in decision.as_json().items() if name != "decision_id"}


# The answer is the engine's


def other_shadows() -> dict[str, Callable[[], Engine]]:
    return {
        "lax": loose,
        "says ALLOW": constant,
        "fails": lambda: Raising(EngineError("no")),
        "exits": lambda: Raising(SystemExit(3)),
        "lies": lambda: Scripted(lambda _: {"verdict": "ALLOW"}),
    }


@pytest.mark.parametrize("name", list(other_shadows()))
def test_every_answer_is_the_bare_engines_byte_for_byte(name: str) -> None:
    bodies, plans = scenario_requests()
    hostile = [b"{}", b"null", b"[1]", b'{"subject":7}']
    assert len(bodies) > 20

    async def both(engine: ShadowEngine) -> list[bytes]:
        answers = [await engine.aevaluate(body) for body in (*bodies, *hostile)]
        return answers + [await engine.aevaluate_plan(plan) for plan in plans]

    bare = usual()
    with ShadowEngine(bare, other_shadows()[name]()) as engine:
        expected = [bare.evaluate(body) for body in (*bodies, *hostile)]
        expected += [bare.evaluate_plan(plan) for plan in plans]
        synchronous = [engine.evaluate(body) for body in (*bodies, *hostile)]
        synchronous += [engine.evaluate_plan(plan) for plan in plans]

        assert synchronous == expected
        assert asyncio.run(both(engine)) == expected
        assert [engine.findings(body) for body in bodies] == [bare.findings(body) for body in bodies]
        assert engine.drain(LONG)
        result = engine.counts()
        compared = result.same + sum(result.differing.values())
        assert result.decided == 2 * len(expected) == compared + sum(result.shadow_failed.values())
        assert engine.name == "embedded"


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
    with pytest.raises(type(error)) as caught:
        engine.evaluate(b"{}")
    with pytest.raises(type(error)) as acaught:
        asyncio.run(engine.aevaluate(b"{}"))
    with pytest.raises(type(error)) as plan:
        engine.evaluate_plan(b"{}")
    with pytest.raises(type(error)) as aplan:
        asyncio.run(engine.aevaluate_plan(b"{}"))
    with pytest.raises(type(error)) as closing:
        engine.close()

    assert all(each.value is error for each in (caught, acaught, plan, aplan, closing))
    assert counts(engine) == counted(decided=4, failed={getattr(error, "code", "engine.unavailable"): 4})
    assert shadow.asked == []


class Endless(Scripted):
    """An engine that answers a task never."""

    def __init__(self) -> None:
        super().__init__(lambda _: answer())
        self.begun = asyncio.Event()

    async def aevaluate(self, body: bytes) -> bytes:
        self.begun.set()
        return await asyncio.Future()

    async def aevaluate_plan(self, body: bytes) -> bytes:
        return await self.aevaluate(body)


@pytest.mark.parametrize("method", ["adecide_body", "adecide_plan", "aevaluate", "aevaluate_plan"])
async def test_a_decision_that_was_cancelled_counts_as_one_without_an_answer(method: str) -> None:
    bare, shadow = Endless(), constant()
    with ShadowEngine(bare, shadow) as engine:
        task = asyncio.create_task(getattr(engine, method)(b"{}"))
        await bare.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        never_ended = getattr(engine, method)(b"{}")
        never_ended.send(None)
        never_ended.close()

        assert counts(engine) == counted(decided=2, failed={"cancelled": 2})
        assert shadow.asked == []


def test_an_invalid_answer_of_the_engine_is_its_failure() -> None:
    class Odd(Scripted):
        def evaluate(self, body: bytes) -> Any:
            return None

    shadow = constant()
    with ShadowEngine(Odd(lambda _: {}), shadow) as engine:
        assert engine.decide_body(b"{}").codes == ("engine.answer_invalid",)
        engine.drain(LONG)
        assert counts(engine) == counted(decided=1, failed={"engine.answer_invalid": 1})
        assert shadow.asked == []


# What is counted and reported


def test_a_difference_is_shown_without_arguments(caplog: pytest.LogCaptureFixture) -> None:
    differences: list[ShadowDifference] = []
    body = wire_body(47500, "hit", 'req "1"\n')
    with usual() as bare, loose() as other, ShadowEngine(usual(), loose(), on_difference=differences.append) as engine:
        engine.evaluate(wire_body(20000))
        engine.evaluate(body)
        engine.drain(LONG)
        ours, theirs = bare.decide_body(body), other.decide_body(body)

    (difference,) = differences
    assert (difference.kind, difference.document, difference.request) == ("DENY -> STEP_UP", "authz/decision", body)
    assert (whole(difference.decision), whole(difference.shadow_decision)) == (whole(ours), whole(theirs))
    assert difference.as_json() == {
        "kind": "DENY -> STEP_UP", "document": "authz/decision", "request_id": 'req "1"\n', "tool": "initiate_wire",
        "verdict": "DENY", "codes": ["sanctions.not_clear"], "obligations": [],
        "revision": ours.bundle_revision, "release": ours.release,
        "shadow_verdict": "STEP_UP", "shadow_codes": ["limits.exceeded"], "shadow_obligations": [],
        "shadow_revision": lax().revision, "shadow_release": lax().release,
    }  # fmt: skip
    assert caplog.records == []


@pytest.mark.parametrize(
    "body",
    [b"null", b"[1]", b'{"action":{"properties":[]},"context":7}', b'{"action":{"properties":{"tool":9}}}', b"{"],
)
def test_a_request_of_any_shape_can_be_shown(body: bytes) -> None:
    decision = constant().decide_body(b"{}")
    shown = ShadowDifference("other codes", "authz/decision", decision, decision, body).as_json()
    assert (shown["tool"], shown["request_id"]) == (None, None)


@pytest.mark.parametrize(
    ("ours", "theirs", "kind"),
    [
        (answer("DENY"), answer("ALLOW"), "DENY -> ALLOW"),
        (answer("ALLOW"), answer("STEP_UP"), "ALLOW -> STEP_UP"),
        (answer("DENY", code="a.b"), answer("DENY", code="a.c"), "other codes"),
        (answer(code="a.b"), {**answer(code="a.c"), "obligations": [{"id": "x", "on": "ALLOW", "parameters": {}}]},
         "other codes"),
        (answer(), answer("ALLOW", duty("redact", fields=["a"])), "other obligations"),
        (answer("ALLOW", duty("redact", fields=["a"])), answer("ALLOW", duty("redact", fields=["b"])),
         "other obligations"),
        (answer("ALLOW", duty("a"), duty("b", n=1)), answer("ALLOW", duty("b", n=1.0), duty("a")), None),
        ({**answer(), "reasons": [{"code": "a.b", "message": "x", "details": {"n": 1}}]},
         {**answer(), "reasons": [{"code": "a.b", "message": "y", "details": {}}] * 2, "bundle": None}, None),
    ],
)  # fmt: skip
def test_classes_of_difference(ours: Any, theirs: Any, kind: str | None) -> None:
    with ShadowEngine(Scripted(lambda _: ours), Scripted(lambda _: theirs)) as engine:
        engine.evaluate(b"{}")
        engine.drain(LONG)
        assert counts(engine) == counted(decided=1, same=int(kind is None), differing={} if kind is None else {kind: 1})


def test_plans_are_shadowed() -> None:
    class Planner(Scripted):
        def evaluate_plan(self, body: bytes) -> bytes:
            return self.evaluate(body)

    differences: list[ShadowDifference] = []
    ours, theirs = Planner(lambda _: answer()), Planner(lambda _: answer("DENY"))
    with ShadowEngine(ours, theirs, on_difference=differences.append) as engine:
        plan = {"steps": [{"tool": "a"}, {"tool": "b"}]}
        decided = (engine.decide_plan(orjson.dumps(plan)), asyncio.run(engine.adecide_plan(orjson.dumps(plan))))
        engine.drain(LONG)

    assert [decision.verdict for decision in decided] == ["ALLOW", "ALLOW"]
    assert theirs.asked == [plan, plan]
    assert [(each.document, each.kind, orjson.loads(each.request)) for each in differences] == [
        ("authz/plan", "ALLOW -> DENY", plan)
    ] * 2


# What the application gives


def test_an_observer_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    observed = []

    def observe(difference: ShadowDifference) -> None:
        observed.append(difference)
        raise SystemExit("the secret")

    with ShadowEngine(constant(), constant(verdict="DENY"), on_difference=observe) as engine:
        for _ in range(3):
            assert engine.decide_body(b"{}").verdict == "ALLOW"
        assert engine.drain(LONG)
        assert counts(engine) == counted(decided=3, differing={"ALLOW -> DENY": 3})

    assert len(observed) == 3
    assert [record.getMessage() for record in caplog.records] == ["on_difference failed: SystemExit"] * 3


async def _asynchronous(_: Any) -> None: ...


SAME = constant()
RANGE = "is out of range (1 to 100000)"


@pytest.mark.parametrize(
    ("sides", "options", "message"),
    [
        ((constant(), constant()), {"waiting": 0}, f"waiting: 0 {RANGE}"),
        ((constant(), constant()), {"waiting": True}, f"waiting: True {RANGE}"),
        ((constant(), constant()), {"waiting": 100_001}, f"waiting: 100001 {RANGE}"),
        ((constant(), constant()), {"waiting": "9"}, f"waiting: '9' {RANGE}"),
        ((constant(), constant()), {"closing": -1}, "closing: -1 is not a number of seconds (0 to 3600)"),
        ((constant(), constant()), {"closing": None}, "closing: None is not a number of seconds (0 to 3600)"),
        ((constant(), constant()), {"on_difference": _asynchronous},
         f"on_difference: {_asynchronous!r:.80} is not a plain function (it takes one argument)"),
        ((SAME, SAME), {}, "shadow: it is the engine itself (open a second one with the other bundle)"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_used(sides: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ShadowEngine(*sides, **options)
    assert str(caught.value) == message


# Shadows that fail


@pytest.mark.parametrize(
    ("shadow", "code"),
    [
        (lambda: Raising(EngineTimeoutError("the secret")), "engine.timeout"),
        (lambda: Raising(BundleError("the secret")), "bundle.invalid"),
        (lambda: Raising(ZeroDivisionError("the secret")), "engine.unavailable"),
        (lambda: Raising(SystemExit("the secret")), "engine.unavailable"),
        (lambda: constant(verdict="MAYBE"), "engine.answer_invalid"),
        (lambda: constant(reasons=[]), "engine.answer_invalid"),
        (
            lambda: constant(obligations=[{"id": "a", "on": "ALLOW", "parameters": {"n": 2**60, "x": 1.0}}]),
            "engine.answer_invalid",
        ),
    ],
)  # fmt: skip
def test_a_shadow_that_fails_is_counted_by_code_and_logged_once(
    shadow: Callable[[], Engine], code: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ShadowEngine(constant(), shadow()) as engine:
        for _ in range(5):
            assert engine.decide_body(b"{}").verdict == "ALLOW"
        assert engine.drain(LONG)
        assert counts(engine) == counted(decided=5, shadow_failed={code: 5})

    assert [record.getMessage() for record in caplog.records if "fails" in record.getMessage()] == [
        f"the shadow fails: {code}"
    ]
    assert "secret" not in caplog.text


def test_a_shadow_that_never_answers_delays_nobody_and_the_rest_is_dropped() -> None:
    stuck = Stuck()
    engine = ShadowEngine(constant(), stuck, waiting=3, closing=0.05)
    engine.evaluate(b"{}")
    assert stuck.asked.wait(LONG)
    for _ in range(100):
        assert engine.decide_body(b"{}").verdict == "ALLOW"

    assert counts(engine) == counted(decided=101, waiting=3, dropped=98)
    assert not engine.drain(0.01)
    engine.close()
    assert counts(engine) == counted(decided=101, waiting=3, dropped=98)
    stuck.go.set()
    assert engine.drain(LONG)
    assert stuck.closed.wait(LONG)
    # What was under way is compared, what waited behind it was given up.
    assert counts(engine) == counted(decided=101, same=1, dropped=100)


# Closing


def test_closing_asks_about_what_waits_and_closes_both() -> None:
    ours, theirs = usual(), tight()
    engine = ShadowEngine(ours, theirs)
    for _ in range(50):
        engine.evaluate(wire_body())
    engine.close()
    engine.close()

    assert counts(engine) == counted(decided=50, differing={"ALLOW -> DENY": 50})
    assert [each.decide_body(wire_body()).codes for each in (engine, ours, theirs)] == [("engine.unavailable",)] * 3
    assert counts(engine) == counted(decided=51, differing={"ALLOW -> DENY": 50}, failed={"engine.unavailable": 1})
    engine._thread.join(LONG)
    assert not engine._thread.is_alive()


def test_decisions_after_closing_are_dropped() -> None:
    shadow = constant()
    engine = ShadowEngine(constant(), shadow)
    engine.close()
    # An engine that decides although it is closed.
    assert engine.decide_body(b"{}").verdict == "ALLOW"
    assert counts(engine) == counted(decided=1, dropped=1)
    assert shadow.asked == []


async def test_closing_in_an_event_loop_lets_it_run() -> None:
    stuck = Stuck()
    engine = ShadowEngine(constant(), stuck, closing=LONG)
    await engine.adecide_body(b"{}")
    closing = asyncio.create_task(engine.aclose())
    done, _ = await asyncio.wait([closing], timeout=0.05)
    assert not done
    stuck.go.set()
    await closing
    assert counts(engine) == counted(decided=1, same=1)
    assert stuck.closed.is_set()


def test_an_observer_may_close_the_engine() -> None:
    closed = threading.Event()

    def observe(_: ShadowDifference) -> None:
        engine.close()
        closed.set()

    engine = ShadowEngine(constant(), constant(verdict="DENY"), on_difference=observe, closing=LONG)
    engine.evaluate(b"{}")
    assert closed.wait(LONG / 3)
    engine._thread.join(LONG)
    assert not engine._thread.is_alive()


def test_a_forked_child_decides_nothing_and_never_hangs() -> None:
    """Also where a thread of the parent held the lock at the fork."""
    with ShadowEngine(usual(), constant()) as engine:
        with engine._changed:
            child = os.fork()
            if child == 0:
                denied = False
                with contextlib.suppress(BaseException):
                    (reason,) = engine.decide_body(wire_body()).reasons
                    denied = reason.message == "the engine was opened before the process was forked"
                os._exit(0 if denied else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert engine.decide_body(wire_body()).verdict == "ALLOW"


# Many at once


def test_counts_are_exact_under_sixteen_threads() -> None:
    kinds = [wire_body(20000), wire_body(47500), wire_body(20000, "hit"), wire_body(47500, "hit")]
    each = 100
    reported: Counter[str] = Counter()
    wrong: list[bytes] = []

    def call() -> None:
        for number in range(each):
            body = kinds[number % len(kinds)]
            if engine.evaluate(body) != expected[body]:
                wrong.append(body)

    with (
        usual() as bare,
        ShadowEngine(
            usual(), loose(), waiting=16 * each, on_difference=lambda difference: reported.update([difference.kind])
        ) as engine,
    ):  # fmt: skip
        expected = {body: bare.evaluate(body) for body in kinds}
        callers = [threading.Thread(target=call) for _ in range(16)]
        for caller in callers:
            caller.start()
        sums = []
        while any(caller.is_alive() for caller in callers):
            now = engine.counts()
            sums.append(now.decided == now.same + sum(now.differing.values()) + now.waiting)
        for caller in callers:
            caller.join()
        assert engine.drain(LONG)
        result = engine.counts()

    assert wrong == []
    assert all(sums)
    assert asdict(result) == counted(decided=1600, same=800, differing={"DENY -> ALLOW": 400, "DENY -> STEP_UP": 400})
    assert reported == result.differing


# Other engines on either side


def sidecar(opa: LocalOpa) -> SidecarEngine:
    return SidecarEngine(opa.url, token=opa.token, timeout=LONG)


@pytest.mark.opa
def test_a_sidecar_as_shadow(opa: Path) -> None:
    bodies, plans = scenario_requests()
    with (
        contextlib.ExitStack() as running,
        ShadowEngine(usual(), sidecar(running.enter_context(LocalOpa(opa, bundle=lax())))) as beside,
        ShadowEngine(usual(), loose()) as within,
    ):
        for engine in (beside, within):
            for body in bodies:
                engine.evaluate(body)
            for plan in plans:
                engine.evaluate_plan(plan)
            assert engine.drain(LONG)
        assert beside.counts() == within.counts()
        assert sum(beside.counts().differing.values()) >= 2
        running.close()
        assert beside.decide_body(wire_body()).verdict == "ALLOW"
        beside.drain(LONG)
        assert beside.counts().shadow_failed == {"engine.unavailable": 1}


def test_a_shadow_may_have_a_shadow() -> None:
    with ShadowEngine(ShadowEngine(usual(), loose()), tight()) as engine:
        assert engine.decide_body(wire_body(20000, "hit")).codes == ("sanctions.not_clear",)
        engine.drain(LONG)
        assert isinstance(engine.engine, ShadowEngine)
        engine.engine.drain(LONG)
        assert (engine.counts().differing, engine.engine.counts().differing) == (
            {"other codes": 1}, {"DENY -> ALLOW": 1},
        )  # fmt: skip


# Enforcement points


def test_an_approval_is_used_once_and_the_shadow_uses_none() -> None:
    def story(engine: Engine) -> tuple[list[Any], list[Any], list[Any]]:
        wires: list[Any] = []

        def initiate_wire(**arguments: Any) -> dict[str, Any]:
            wires.append(arguments)
            return {"wire_id": f"wire-{len(wires)}"}

        approvals = Approvals()
        pep = Pep(payments.effective(), engine, approvals=approvals, tools={"initiate_wire": initiate_wire})
        asked = pep.call(payments.wire(), payments.session()).approval
        assert asked is not None
        boss = {"sub": "boss", "roles": ["payments.approver"]}
        approvals.grant(asked.id, boss, "2026-07-01T10:05:00Z")
        evaluations = [pep.call(payments.wire(), payments.session(time="2026-07-01T10:05:00Z")) for _ in range(2)]
        assert isinstance(pep.audit, MemoryAudit)
        names = ("type", "verdict", "codes", "outcome", "bundle_revision")
        return (
            wires,
            [(done.verdict, done.executed, done.result) for done in evaluations],
            [tuple(event[name] for name in names) for event in pep.audit.events],
        )

    bare = Scripted(until_approved)
    alone = story(bare)
    shadow = Scripted(until_approved)
    with ShadowEngine(Scripted(until_approved), shadow) as engine:
        beside = story(engine)
        engine.drain(LONG)
        assert counts(engine) == counted(decided=3, same=3)

    assert beside == alone
    assert alone[0] == [payments.ARGUMENTS]
    strip = ("id", "call_digest")
    assert [_without(asked, strip) for asked in shadow.asked] == [_without(asked, strip) for asked in bare.asked]


def _without(request: dict[str, Any], names: tuple[str, ...]) -> Any:
    approval = request["context"]["approval"]
    return request["action"], approval and {name: value for name, value in approval.items() if name not in names}
