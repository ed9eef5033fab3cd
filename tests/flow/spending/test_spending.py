"""Cumulative limits at an enforcement point: amounts are shown to the policy, reserved before a call and settled after
it.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pdp import Approvals, EmbeddedEngine, Evaluation, MemoryAudit, Pep, Session, Verdict
from pdp.contract.budgets import Spent
from pdp.execution.failures import ToolError
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.load import load_effective
from pdp.stores.budgets import MemoryBudgets
from pdp.stores.memory import MemoryActions, MemoryIdempotency
from pdp.stores.sql.budgets import SqlBudgets
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency
from tests.support import desk
from tests.support.desk import both_ways, events
from tests.support.scripted import Scripted, answer, duty

MANIFEST = """
manifest_version: 2026.1.0
$defs:
  payment: &payment
    type: object
    required: [amount]
    properties: {amount: {type: number}, fee: {type: number}, currency: {type: string, maxLength: 9}}
tools:
  - {name: send_wire, risk_tier: low, scopes: [desk], schema: {$ref: "#/$defs/payment"},
     approval: {approvers: [chief]}, limits: [&daily {limit: wire.daily, argument: amount, currency: currency,
     per: subject, window: {days: 1, from: midnight}}, {limit: wire.one, argument: amount}]}
  - {name: send_fast, risk_tier: low, scopes: [desk], schema: {$ref: "#/$defs/payment"},
     approval: {approvers: [chief]}, limits: [*daily, {limit: wire.daily, argument: fee, currency: currency,
     per: subject, window: {days: 1, from: midnight}}]}
  - {name: send_once, risk_tier: low, scopes: [desk], schema: {$ref: "#/$defs/payment"},
     idempotency: {required: true, ttl: PT1H}, limits: [*daily]}
  - {name: post, risk_tier: low, scopes: [desk], schema: {$ref: "#/$defs/payment"},
     limits: [{limit: posts, count: true, per: agent, window: PT1H}, {limit: posts.run, count: true, per: run}]}
  - {name: read, effect_class: read-internal, scopes: [desk], schema: {$ref: "#/$defs/payment"},
     resource: {type: file, id: $arguments.currency}, limits: [{limit: reads, count: true, per: resource, window: P1D}]}
  - {name: stage, version: 1.0.0, pattern: action-staging, risk_tier: low, scopes: [desk], commits: [commit],
     idempotency: {required: true, key: derive(args)}, result_schema: {$ref: Action},
     schema: {type: object, required: [action], properties: {idempotencyKey: {type: string, maxLength: 60},
     action: {type: object, required: [kind, targetSor, payload], properties: {kind: {const: commit},
     targetSor: {type: string, maxLength: 9}, payload: {$ref: "#/$defs/payment"}}}}}}
  - {name: commit, version: 1.0.0, effect_class: commit-high, risk_tier: medium, scopes: [desk],
     compensation: send_once, approval: {approvers: [chief], unless_within_limits: true},
     schema: {$ref: "#/$defs/payment"}, limits: [*daily]}
"""
NOW, NEXT_DAY = "2026-07-01T10:00:00Z", "2026-07-02T00:00:00Z"
CHIEF = {"sub": "chief-1", "roles": ["chief"]}
LIMITS = {"wire.daily": 50000, "wire.one": 25000, "posts": 2, "posts.run": 9, "reads": 1}


@pytest.fixture(scope="module")
def deciding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EffectiveManifest, EmbeddedEngine]]:
    file = tmp_path_factory.mktemp("spending") / "manifest.yaml"
    file.write_text(MANIFEST)
    manifest = load_effective(file)
    with desk.engine(manifest) as engine:
        yield manifest, engine


class Bank:
    """A function that stands for all tools and records the amounts that it sends."""

    def __init__(self) -> None:
        self.sent: list[float] = []
        self.fails: BaseException | None = None
        self.while_running: Callable[[], object] = lambda: None

    def run(self, amount: float, fee: float | None = None, currency: str | None = None) -> str | None:
        self.while_running()
        if self.fails is not None:
            raise self.fails
        self.sent.append(amount)
        return currency


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture(params=["memory", "sqlite"])
def pep(request: pytest.FixtureRequest, deciding: Any, bank: Bank, tmp_path: Path) -> Iterator[Pep]:
    tools = dict.fromkeys(("send_wire", "send_fast", "send_once", "post", "read", "commit"), bank.run)
    if request.param == "memory":
        yield Pep(*deciding, tools=tools, approvals=Approvals(), audit=MemoryAudit())
        return
    with Database.open(f"sqlite:///{tmp_path}/pdp.db", upgrade=True) as database:
        keys, budgets = SqlIdempotency(database), SqlBudgets(database)
        yield Pep(*deciding, tools=tools, approvals=Approvals(), audit=MemoryAudit(), keys=keys, budgets=budgets)


def session(claims: dict[str, Any] | None = None, **changes: Any) -> Session:
    whole = Session(
        claims={"sub": "ann", "emts": {"desk": True}, "limits": LIMITS, **(claims or {})},
        run_id="run-1", request_id="req-1", time=NOW,
    )  # fmt: skip
    return whole.with_changes(**changes)


def wire(amount: Any, tool: str = "send_wire", **arguments: Any) -> dict[str, Any]:
    return {"tool": tool, "arguments": {"amount": amount, "currency": "EUR", **arguments}}


def shown(pep: Pep, proposal: Any, asked: Session | None = None) -> list[Any]:
    """Return the parameters of the `reserve` obligations in the decision on a proposal."""
    decided = pep.decide(proposal, asked or session())
    duties = decided.decision.obligations if decided.decision else ()
    return [duty.parameters for duty in duties if duty.id == "reserve"]


def used(pep: Pep, proposal: Any = None, asked: Session | None = None) -> list[str]:
    """Return how much of each limit is spent, as recorded in the event of a decision."""
    pep.decide(proposal or wire(0), asked or session())
    return [sum_["used"] for sum_ in events(pep)[-1]["spent"]]


def reason(evaluation: Evaluation, code: str) -> dict[str, Any]:
    assert evaluation.decision is not None
    assert evaluation.decision.codes == (code,)
    return evaluation.decision.reasons[0].as_json()


@both_ways
def test_call_that_exceeds_a_spending_limit_needs_approval(pep: Pep, bank: Bank, call: Any) -> None:
    assert [call(pep, wire(amount), session()).verdict for amount in (20000, 20000, 10000.01)] == [
        Verdict.ALLOW, Verdict.ALLOW, Verdict.STEP_UP,
    ]  # fmt: skip
    refused = reason(call(pep, wire(20000), session()), "limits.cumulative_exceeded")
    approval = refused["details"].pop("approval")
    assert approval["approvers"] == ["chief"]
    assert refused["details"] == {
        "limit": "wire.daily", "used": 40000, "amount": 20000, "held": 50000, "left": 10000, "window_ends": NEXT_DAY,
    }  # fmt: skip
    assert refused["explanation"] == "Spent: 40000 of 50000; left: 10000 until 2026-07-02T00:00:00Z."
    assert call(pep, wire(10000), session()).executed
    assert bank.sent == [20000, 20000, 10000]


def test_approved_call_may_exceed_the_spending_limit_and_its_amount_counts_as_spent(pep: Pep, bank: Bank) -> None:
    assert pep.call(wire(25000), session()).executed
    assert pep.call(wire(25000), session()).executed
    asked = pep.call(wire(10), session())
    desk.rules(pep).grant(desk.asked(asked).id, CHIEF, NOW)
    # An approved call has no cap, so spending by other calls does not invalidate its approval.
    assert shown(pep, wire(10))[0]["cap"] is None
    assert pep.call(wire(10), session()).executed
    assert used(pep) == ["50010"]
    assert pep.call(wire(10), session()).verdict is Verdict.STEP_UP
    assert bank.sent == [25000, 25000, 10]


def test_fractional_spent_amounts_are_added_exactly(pep: Pep) -> None:
    asked = session({"limits": {**LIMITS, "wire.daily": 0.3}})
    assert [pep.call(wire(amount), asked).verdict for amount in (0.1, 0.2, 0.01)] == ["ALLOW", "ALLOW", "STEP_UP"]
    assert used(pep) == ["0.3"]


def test_amounts_of_several_tools_count_towards_one_limit(pep: Pep) -> None:
    assert pep.call(wire(20000), session()).executed
    assert pep.call(wire(20000, "send_fast", fee=1.5), session()).executed
    assert used(pep) == ["40001.5"]
    assert reason(pep.call(wire(9999, "send_fast", fee=0.5), session()), "limits.cumulative_exceeded")["details"][
        "amount"
    ] == 9999.5  # fmt: skip


@pytest.mark.parametrize(
    ("proposal", "problem"),
    [
        (wire(-1), "amount is not a number of at least zero"),
        (wire(0.001), "amount is not a multiple of 0.01"),
        (wire(10_000_000_000_001), "amount exceeds the largest amount that a limit can count"),
        (wire(1, currency=""), "currency must be 1 to 64 printable characters"),
        (wire(1, currency="a\0b"), "currency must be 1 to 64 printable characters"),
        ({"tool": "send_wire", "arguments": {"amount": 1}}, "currency must be 1 to 64 printable characters"),
        (wire(1, "send_fast"), "fee is not a number of at least zero"),
        (
            wire(1, currency="USD"),
            "the amounts counted so far are in EUR, and a limit cannot add up several currencies",
        ),
        (
            wire(1, currency="eur"),
            "the amounts counted so far are in EUR, and a limit cannot add up several currencies",
        ),
        (wire(9_999_999_999_999.99), "the total would exceed the largest amount that a limit can count"),
    ],
)
def test_amount_that_cannot_be_counted_is_denied(pep: Pep, bank: Bank, proposal: Any, problem: str) -> None:
    assert pep.call(wire(100), session()).executed
    refused = pep.call(proposal, session())
    assert refused.decision is not None
    assert refused.verdict is Verdict.DENY
    problems = [reason.details.get("problem") for reason in refused.decision.reasons if reason.code == "limits.invalid"]
    assert problem in problems
    assert (bank.sent, used(pep)) == ([100], ["100"])


def test_call_with_amount_zero_spends_nothing(pep: Pep, bank: Bank) -> None:
    asked = session({"limits": {**LIMITS, "wire.daily": 0}})
    assert pep.call(wire(0), asked).executed
    assert pep.call(wire(0.01), asked).verdict is Verdict.STEP_UP
    assert bank.sent == [0]


def test_subject_without_a_limit_in_its_claims_needs_approval(pep: Pep) -> None:
    refused = reason(pep.call(wire(1), session({"limits": {"wire.one": 9}})), "limits.cumulative_exceeded")
    assert (refused["details"]["held"], refused["details"]["left"]) == (None, 0)
    assert refused["explanation"] == "Spent: 0 of 0; left: 0 until 2026-07-02T00:00:00Z."


def test_spending_is_counted_by_subject_tenant_agent_run_and_resource(pep: Pep) -> None:
    assert pep.call(wire(100), session()).executed
    for other in (session({"sub": "bob"}), session({"iss": "https://id.example"})):
        assert used(pep, wire(0), other) == ["0"]
    post = wire(1, "post")
    for asked in (session(agent="a"), session(agent="a"), session({"sub": "bob"}, agent="a"), session(agent="b")):
        pep.call(post, asked)
    # All calls of an agent count together, whoever the subject is. But a run belongs to one caller, so bob's call
    # counts in another run.
    assert used(pep, post, session(agent="a")) == ["2", "3"]
    assert used(pep, post, session({"act": {"sub": "a", "scopes": ["desk"], "limits": LIMITS}})) == ["2", "3"]
    assert used(pep, post, session(agent="c", run_id="run-2")) == ["0", "0"]
    assert used(pep, post, session({"sub": "a"}, run_id="run-2")) == ["0", "0"]
    assert pep.call(wire(1, "read"), session()).executed
    assert pep.call(wire(1, "read"), session({"sub": "bob"})).verdict is Verdict.STEP_UP
    assert pep.call(wire(1, "read", currency="other"), session()).executed


def test_call_without_run_id_is_denied_if_its_limit_is_per_run(pep: Pep) -> None:
    refused = pep.call(wire(1, "post"), session(run_id=None))
    assert reason(refused, "limits.invalid")["details"]["problem"] == "the session has no run_id"


def test_spent_amount_is_zero_after_the_window_ends(pep: Pep) -> None:
    assert pep.call(wire(20000), session(time="2026-07-01T23:59:59Z")).executed
    assert used(pep, wire(0), session(time="2026-07-01T23:59:59Z")) == ["20000"]
    assert used(pep, wire(0), session(time=NEXT_DAY)) == ["0"]
    for time in ("10:00:00", "10:30:00"):
        assert pep.call(wire(1, "post"), session(time=f"2026-07-03T{time}Z")).executed
    refused = reason(pep.call(wire(1, "post"), session(time="2026-07-03T10:59:59Z")), "limits.cumulative_exceeded")
    assert refused["details"]["window_ends"] == "2026-07-03T11:00:00Z"
    assert pep.call(wire(1, "post"), session(time="2026-07-03T11:00:00Z")).executed


def test_window_end_is_not_shown_if_it_is_later_than_the_maximum_time(pep: Pep) -> None:
    late, post = session(time="9999-12-31T23:59:59Z"), wire(20000, "post")
    assert [pep.call(post, late).verdict for _ in range(3)] == [Verdict.ALLOW, Verdict.ALLOW, Verdict.STEP_UP]
    assert [pep.call(wire(20000), late).executed for _ in range(2)] == [True, True]
    refused = (pep.call(post, late), pep.call(wire(20000), late))
    ends = [reason(evaluation, "limits.cumulative_exceeded")["details"]["window_ends"] for evaluation in refused]
    assert ends == ["9999-12-31T23:59:59Z"] * 2


def test_amount_counts_only_in_the_window_of_its_reservation_even_if_the_call_ends_later(pep: Pep, bank: Bank) -> None:
    bank.while_running = lambda: used(pep, wire(0), session(time=NEXT_DAY))
    assert pep.call(wire(20000), session(time="2026-07-01T23:59:59Z")).executed
    assert used(pep, wire(0), session(time=NEXT_DAY)) == ["0"]


@pytest.mark.parametrize(
    ("fails", "tool", "counts"),
    [
        pytest.param(None, "send_wire", "1", id="succeeded"),
        pytest.param(ToolError("not today", details={"effect": "none"}), "send_wire", "0", id="no effect"),
        pytest.param(ToolError("half of it", details={"effect": "done"}), "send_wire", "1", id="failed with effect"),
        pytest.param(RuntimeError("who knows"), "send_wire", "1", id="unknown effect"),
        pytest.param(RuntimeError("who knows"), "read", "1", id="failed read"),
        pytest.param(KeyboardInterrupt(), "send_wire", "1", id="interrupted"),
    ],
)
def test_reserved_amount_is_freed_only_if_the_call_had_no_effect(
    pep: Pep, bank: Bank, fails: BaseException | None, tool: str, counts: str
) -> None:
    bank.fails = fails
    proposal = wire(1, tool)
    if isinstance(fails, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            pep.call(proposal, session())
    else:
        assert pep.call(proposal, session()).allowed
    decision_id = next(event["decision_id"] for event in events(pep) if event["decision_id"])
    assert used(pep, proposal) == [counts]
    listed = pep._parts.stores.budgets.unknown(1e12)
    unknown = tool == "send_wire" and isinstance(fails, RuntimeError | KeyboardInterrupt)
    # The id of a reservation is the decision id in the audit event, so the event of the call can be found.
    assert [(entry.id, entry.amount) for entry in listed] == ([(decision_id, 100)] if unknown else [])


def test_reserved_amount_counts_while_the_tool_runs(pep: Pep, bank: Bank) -> None:
    seen: list[list[str]] = []
    bank.while_running = lambda: seen.append(used(pep))
    assert pep.call(wire(7), session()).executed
    assert seen == [["7"]]


def test_call_answered_with_a_stored_result_spends_nothing(pep: Pep, bank: Bank) -> None:
    asked = session(idempotency_key="k")
    once = wire(40000, "send_once")
    assert pep.call(once, asked).executed
    assert pep.call(wire(10000), session()).executed
    again = pep.call(once, asked)
    assert (again.verdict, events(pep)[-1]["replayed"]) == (Verdict.ALLOW, True)
    assert (used(pep), bank.sent) == (["50000"], [40000, 10000])
    assert pep.call(once, session(idempotency_key="other")).verdict is Verdict.STEP_UP


def test_call_with_a_conflicting_key_spends_nothing(pep: Pep) -> None:
    asked = session(idempotency_key="k")
    assert pep.call(wire(1, "send_once"), asked).executed
    assert pep.call(wire(2, "send_once"), asked).verdict is Verdict.DENY
    assert used(pep) == ["1"]


class Forgetful(MemoryIdempotency):
    """A key store that forgets each key after the key was read once, as if the stored outcome had expired."""

    def look(self, key: Any, arguments_digest: str, now: float) -> Any:
        found = super().look(key, arguments_digest, now)
        if found is not None:
            with self.transaction() as rows:
                rows.put(key.id, None)
        return found


def test_repeated_call_whose_stored_outcome_has_expired_is_decided_again(deciding: Any, bank: Bank) -> None:
    asked, once = session(idempotency_key="k"), wire(30000, "send_once")
    pep = Pep(*deciding, tools={"send_once": bank.run}, keys=Forgetful(), audit=MemoryAudit())
    assert pep.call(once, asked).executed
    assert pep.call(once, asked).verdict is Verdict.STEP_UP
    assert bank.sent == [30000]
    # If the limit allows the second call, the tool runs again and the amount counts again.
    bank.sent.clear()
    pep.call(wire(10000, "send_once"), session({"sub": "bob"}, idempotency_key="j"))
    assert pep.call(wire(10000, "send_once"), session({"sub": "bob"}, idempotency_key="j")).executed
    assert used(pep, wire(0), session({"sub": "bob"})) == ["20000"]


def test_commit_spends_the_amount_of_an_action_but_staging_the_action_does_not(pep: Pep, bank: Bank) -> None:
    payload = {"amount": 20000, "currency": "EUR"}
    action = {"kind": "commit", "targetSor": "bank", "payload": payload}
    assert pep.call({"tool": "stage", "arguments": {"action": action}}, session()).executed
    assert used(pep) == ["0"]
    assert pep.call({"tool": "commit", "arguments": payload}, session()).executed
    assert used(pep) == ["20000"]
    # A compensation is a call with its own amount, so a compensation spends the budget instead of restoring it.
    committed = pep.actions.list()[-1]
    asked = session({"limits": {**LIMITS, "wire.daily": 90000}})
    assert pep.compensate(committed.id, payload, asked).executed
    assert used(pep) == ["40000"]


def test_concurrent_callers_never_exceed_the_limit(pep: Pep, bank: Bank) -> None:
    """All calls are first decided with nothing spent. If a reservation fails, the next decision needs an approval."""
    gate = threading.Barrier(8)
    started = threading.local()

    def call(_: int) -> Verdict | None:
        if not hasattr(started, "once"):
            started.once = gate.wait()
        return pep.call(wire(20000), session()).verdict

    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(call, range(8)))
    assert sorted(map(str, verdicts)) == ["ALLOW"] * 2 + ["STEP_UP"] * 6
    assert (bank.sent, used(pep)) == ([20000, 20000], ["40000"])


class Contended(MemoryBudgets):
    """A budget store that reports an unspent budget to each decision but rejects every reservation."""

    def spent(self, take: Any, now: float) -> Spent:
        return Spent(0)

    def reserve(self, *_: Any, **__: Any) -> bool:
        return False


def test_call_is_denied_if_every_reservation_fails(deciding: Any, bank: Bank) -> None:
    keys = MemoryIdempotency()
    pep = Pep(*deciding, tools={"send_once": bank.run}, budgets=Contended(), audit=MemoryAudit(), keys=keys)
    refused = pep.call(wire(1, "send_once"), session(idempotency_key="k"))
    assert refused.verdict is Verdict.DENY
    assert reason(refused, "limits.cumulative_exceeded")["message"].startswith(
        "after each decision, other calls used up the limit"
    )
    assert [event["verdict"] for event in events(pep)] == ["ALLOW"] * 4 + ["DENY"]
    assert {event["request_id"] for event in events(pep)} == {"req-1"}
    assert bank.sent == []
    # The denied call has released its key, so another call can use this key.
    assert pep.with_changes(budgets=MemoryBudgets()).call(wire(2, "send_once"), session(idempotency_key="k")).executed


RESERVED = {"limit": "wire.daily", "amount": 1, "cap": 9, "window": None}


@pytest.mark.parametrize(
    ("obligations", "message"),
    [
        pytest.param([], "reserves no amount of the limit wire.daily", id="no obligation"),
        pytest.param([{**RESERVED, "amount": 2}], "reserves no amount of the limit wire.daily", id="another amount"),
        pytest.param(
            [RESERVED, {**RESERVED, "limit": "x"}], "does not reserve the amount 1 of the limit x", id="another limit"
        ),
        pytest.param([{**RESERVED, "cap": "9"}], "the obligation's parameters are not valid", id="wrong type"),
    ],
)
def test_call_is_denied_if_its_obligations_do_not_reserve_its_amount(
    deciding: Any, bank: Bank, obligations: list[dict[str, Any]], message: str
) -> None:
    engine = Scripted(lambda _: answer("ALLOW", *(duty("reserve", **parameters) for parameters in obligations)))
    pep = Pep(deciding[0], engine, tools={"send_wire": bank.run}, audit=MemoryAudit())
    refused = pep.call(wire(1), session())
    assert refused.verdict is Verdict.DENY
    assert message in reason(refused, "obligations.unfulfillable")["message"]
    assert (bank.sent, used(pep)) == ([], ["0"])


def test_lowest_spending_cap_of_several_obligations_applies(deciding: Any, bank: Bank) -> None:
    caps = [None, 5, 3]
    duties = [duty("reserve", **{**RESERVED, "amount": 2, "cap": cap}) for cap in caps]
    pep = Pep(deciding[0], Scripted(lambda _: answer("ALLOW", *duties)), tools={"send_wire": bank.run})
    assert pep.call(wire(2), session()).executed
    assert pep.call(wire(2), session()).verdict is Verdict.DENY
    assert bank.sent == [2]


def test_call_digest_does_not_depend_on_spent_amounts(pep: Pep) -> None:
    over = session({"limits": {**LIMITS, "wire.daily": 5}})
    first = desk.asked(pep.call(wire(10), over))
    assert pep.call(wire(3), over).executed
    assert desk.asked(pep.call(wire(10), over)).id == first.id


def test_call_is_denied_if_the_budget_store_fails(deciding: Any, bank: Bank, tmp_path: Path) -> None:
    with Database.open(f"sqlite:///{tmp_path}/pdp.db", upgrade=True) as database:
        pep = Pep(*deciding, tools={"send_wire": bank.run}, budgets=SqlBudgets(database), actions=MemoryActions())
        with database.write() as connection:
            connection.exec_driver_sql("DROP TABLE pdp_reservations")
        assert pep.call(wire(1), session()).decision.codes == ("store.unavailable",)  # type: ignore[union-attr]
        assert bank.sent == []
