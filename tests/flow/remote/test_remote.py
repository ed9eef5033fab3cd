"""Calls of tools that run in another process and report their results, for stores in memory and in each database."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from pdp import Pep
from pdp.audit.verify import verify_chain
from pdp.contract.budgets import Spent, Take, Window
from pdp.flow import reserve
from pdp.flow.remote import calls
from pdp.flow.remote.calls import UnknownCallError
from pdp.flow.remote.stored import CallConflictError
from pdp.json import canonical, digest
from pdp.proposal import Execution, Failure, FailureCode
from pdp.stores.actions import ActionState
from pdp.stores.sql.audit import SqlAudit
from tests.flow.remote.letters import PAGES, SENT, approved, begin, call, finish, letter, session
from tests.support.desk import rules

LATER = 10.0 * 86_400


def stream(pep: Pep) -> list[tuple[Any, ...]]:
    """Verify the chain of the audit stream and return its events as `(type, verdict or outcome or status)`."""
    assert isinstance(pep.audit, SqlAudit)
    lines = [row.line.encode() for row in pep.audit.lines(-1, 10_000)]
    assert verify_chain(lines) == len(lines)
    events = [orjson.loads(line) for line in lines]
    return [(event["type"], event["verdict"] or event["outcome"] or event["status"]) for event in events]


def spent(pep: Pep) -> int:
    names = canonical(["", "pages", "subject", ["ann"], "0.01", *Window(86_400.0)]).decode()
    take = Take(digest(names.encode()), names, 0, Window(86_400.0))
    held: Spent = pep._parts.stores.budgets.spent(take, time.time())
    return held.used // 100


def failing(effect: str | None = None, *, started: bool = True) -> Execution:
    details = {} if effect is None else {"effect": effect}
    return Execution(failure=Failure(FailureCode.TOOL_EXECUTION_FAILED, "no: Bob Archer", details), started=started)


def test_repeated_begin_or_finish_of_a_call_returns_the_first_answer(pep: Pep) -> None:
    approval = approved(pep, "one")
    begun = begin(pep, call("one"), letter(), session())
    assert (begun["verdict"], begun["begun"], begun["executed"], begun["arguments"]) == (
        "ALLOW", True, False, {"pages": PAGES, "to": "Bob Archer"},
    )  # fmt: skip
    assert (begun["approval"]["id"], begun["approval"]["state"], begun["action"]["state"]) == (
        approval, "consumed", "approved",
    )  # fmt: skip
    assert time.time() < begun["running_until"] < time.time() + 36
    assert begin(pep, call("one"), letter(), session()) == begun
    assert spent(pep) == PAGES

    done = finish(pep, call("one"), SENT)
    not_there = {name: begun[name] for name in ("arguments", "manifest_digest", "running_until")}
    assert done | not_there == begun | {
        "begun": False, "executed": True, "result": {"number": 7}, "action": {**begun["action"], "state": "committed"},
        "answer": {"text": '{"number":7}', "is_error": False},
    }  # fmt: skip
    assert finish(pep, call("one"), SENT) == begin(pep, call("one"), letter(), session()) == done
    assert pep.actions.get(begun["action"]["id"]).state is ActionState.COMMITTED  # type: ignore[union-attr]

    replay = begin(pep, call("other"), letter(), session())
    assert (replay["begun"], replay["replayed"], replay["result"], spent(pep)) == (False, True, {"number": 7}, PAGES)
    assert stream(pep) == [
        ("approval.opened", "pending"),
        ("tool.send_letter.dispatch", "STEP_UP"),
        ("approval.granted", "granted"),
        ("tool.send_letter.dispatch", "ALLOW"),
        ("approval.consumed", "consumed"),
        ("tool.send_letter.result", "succeeded"),
        ("tool.send_letter.dispatch", "ALLOW"),
        ("tool.send_letter.result", "succeeded"),
    ]


async def test_synchronous_and_asynchronous_begin_and_finish_give_the_same_answers(pep: Pep) -> None:
    begun = await pep.abegin(call("one"), letter("read_letter"), session())
    done = await pep.afinish(call("one"), Execution(["text"]))
    assert (begun["begun"], done["result"]) == (True, ["text"])
    assert finish(pep, call("one"), Execution(["text"])) == done


def test_call_id_reused_with_another_request_owner_or_result_is_rejected(pep: Pep) -> None:
    begin(pep, call("one"), letter("read_letter"), session())
    for other in (call("one")._replace(request_digest="sha256:other"), call("one", "token-2")):
        with pytest.raises(CallConflictError, match="belongs to another call"):
            begin(pep, other, letter("read_letter"), session())
    for unknown in (call("one", "token-2"), call("two"), call("\0"), call("zwölf")):
        with pytest.raises(UnknownCallError, match="the caller has not begun call"):
            finish(pep, unknown, SENT)
    finish(pep, call("one"), SENT)
    with pytest.raises(CallConflictError, match="already reported with another result"):
        finish(pep, call("one"), Execution({"number": 8}))


@pytest.mark.parametrize(
    ("reported", "outcome", "key_is", "held", "action"),
    [
        (failing(started=False), "failed", "free", 0, "failed"),
        (failing("none"), "failed", "free", 0, "failed"),
        (failing("unknown"), "unknown", "Unknown", PAGES, "approved"),
        (failing(), "failed", "Unknown", PAGES, "failed"),
        (failing("done"), "failed", "Stored", PAGES, "failed"),
        (Execution({"number": "seven"}), "failed", "Stored", PAGES, "failed"),
        (SENT, "succeeded", "Stored", PAGES, "committed"),
    ],
)
def test_reported_outcome_settles_key_budget_and_action(
    pep: Pep, reported: Execution, outcome: str, key_is: str, held: int, action: str
) -> None:
    approved(pep, "one")
    assert begin(pep, call("one"), letter(), session())["begun"]
    done = finish(pep, call("one"), reported)
    assert "Bob Archer" not in done["answer"]["text"]
    assert (done["executed"], done["action"]["state"], spent(pep)) == (reported.started, action, held)
    assert stream(pep)[-1] == ("tool.send_letter.result", outcome)
    [key] = [row.key for row in _keys(pep)] if key_is != "free" else [None]
    found = None if key is None else pep._parts.stores.keys.look(key, _arguments_digest(), time.time() + 60)
    assert (type(found).__name__ if found else "free") == key_is
    assert bool(_keys(pep)) == (key_is != "free")


def _keys(pep: Pep) -> list[Any]:
    keys, names = pep._parts.stores.keys, canonical(["", "ann", "send_letter", "1", "key-1"])
    record = keys.read(digest(names))
    return [] if record is None else [record]


def _arguments_digest() -> str:
    return digest(canonical(letter()["arguments"]))


def test_unfinished_call_is_recorded_as_unknown_and_can_still_be_finished(pep: Pep) -> None:
    approved(pep, "one")
    begun = begin(pep, call("one"), letter(), session())
    assert (pep.sweep(begun["running_until"] - 1), pep.sweep(begun["running_until"]), pep.sweep()) == (0, 1, 0)
    asked_again = begin(pep, call("one"), letter(), session())
    assert (asked_again["begun"], asked_again["outcome"]["failure"]["details"]) == (False, {"effect": "unknown"})
    done = finish(pep, call("one"), SENT)
    assert (done["result"], done["action"]["state"], spent(pep)) == ({"number": 7}, "committed", PAGES)
    assert stream(pep)[-2:] == [("tool.send_letter.result", "unknown"), ("tool.send_letter.result", "succeeded")]
    assert pep.sweep(time.time() + LATER) == 0
    with pytest.raises(UnknownCallError):
        finish(pep, call("one"), SENT)


def test_denied_or_rejected_call_stores_nothing(pep: Pep) -> None:
    bad = begin(pep, call("one"), {"tool": "send_letter", "arguments": {}}, session())
    assert (bad["verdict"], bad["begun"], bad["outcome"]["rejection"]["code"]) == (None, False, "INVALID_PAYLOAD")
    with pytest.raises(UnknownCallError):
        finish(pep, call("one"), SENT)
    approval = approved(pep, "one")
    rules(pep).deny(approval, {"sub": "chief-1", "roles": ["chief"]})
    assert begin(pep, call("one"), letter(), session())["verdict"] == "STEP_UP"
    assert (spent(pep), _keys(pep), pep.sweep(time.time() + LATER)) == (0, [], 0)


def test_only_one_of_many_enforcement_points_runs_an_approved_call(pep: Pep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "PATIENCE", 0)
    approved(pep, "first")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: begin(pep, call(f"call {n}"), letter(), session()), range(8)))
    assert sum(answer["begun"] for answer in answers) == 1
    assert (spent(pep), sum(kind == "approval.consumed" for kind, _ in stream(pep))) == (PAGES, 1)


def test_concurrent_requests_with_the_same_call_id_begin_one_call(pep: Pep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PATIENCE", 600)
    approved(pep, "one")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: begin(pep, call("one"), letter(), session()), range(8)))
        assert answers == answers[:1] * 8
        assert (answers[0]["begun"], spent(pep)) == (True, PAGES)
        done = list(pool.map(lambda _: finish(pep, call("one"), SENT), range(8)))
    assert done == done[:1] * 8
    assert sum(kind == "tool.send_letter.result" and outcome == "succeeded" for kind, outcome in stream(pep)) == 1
