"""Counts are exact whatever is logged; lines, groups and pairs are bounded."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from pdp.decision import Decision, Verdict
from pdp.engine.shadow.difference import Difference, difference_of, kind_of, loosening, read_answer
from pdp.engine.shadow.record import FIRST_LINES, GROUPS, LINES, PAIRS, ShadowRecord
from pdp.errors import AnswerInvalidError
from tests.support.scripted import answer


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def record(clock: Clock) -> ShadowRecord:
    return ShadowRecord(clock)


def differs(record: ShadowRecord, tool: str = "t", verdict: str = "ALLOW", shadow: str = "DENY") -> int | None:
    ours, theirs = (read_answer(orjson.dumps(answer(one))) for one in (verdict, shadow))
    kind = kind_of(ours, theirs)
    assert kind is not None
    body = orjson.dumps({"action": {"properties": {"tool": tool}}})
    found = difference_of(kind, ours, theirs, document="authz/decision", body=body, input_digest="d")
    return record.compared(ours.decision, theirs.decision, found)


def agrees(record: ShadowRecord, release: int = 1) -> None:
    said = {**answer(), "bundle": {"revision": f"sha256:{release}", "release": release}}
    decision = read_answer(orjson.dumps(said)).decision
    assert record.compared(decision, decision, None) is None


def test_a_shadow_that_always_differs_logs_sixty_lines_a_minute(record: ShadowRecord, clock: Clock) -> None:
    lines = [differs(record) for _ in range(1000)]
    clock.now += 59.9
    still = differs(record)
    clock.now += 0.1
    after = [differs(record) for _ in range(1000)]

    # The first of its group is beside the sixty.
    assert lines == [0] * (1 + LINES) + [None] * (999 - LINES)
    assert still is None
    assert after == [1000 - LINES, *[0] * (LINES - 1), *[None] * (1000 - LINES)]
    counts = record.counts(0)
    assert (counts.decided, counts.compared, counts.differing) == (2001, 2001, {"ALLOW -> DENY": 2001})
    assert [group.count for group in counts.pairs[0].groups] == [2001]


def test_a_flood_hides_no_new_kind_of_difference(record: ShadowRecord) -> None:
    for _ in range(1000):
        differs(record)
    assert (differs(record, "other"), differs(record, "other")) == (1000 - 1 - LINES, None)
    assert differs(record, "t", "DENY", "ALLOW") == 1
    assert [(one.tool, one.kind, one.count) for one in record.counts(0).pairs[0].groups] == [
        ("t", "DENY -> ALLOW", 1), ("t", "ALLOW -> DENY", 1000), ("other", "ALLOW -> DENY", 2),
    ]  # fmt: skip


def test_groups_are_bounded_and_counts_are_not(record: ShadowRecord) -> None:
    lines = [differs(record, f"tool-{number}") for number in range(GROUPS + 500)]
    differs(record, "tool-0")
    counts = record.counts(0)
    pair = counts.pairs[0]

    assert (len(pair.groups), pair.ungrouped, counts.differing) == (GROUPS, 500, {"ALLOW -> DENY": GROUPS + 501})
    assert (pair.compared, pair.differing) == (GROUPS + 501, GROUPS + 501)
    assert sum(group.count for group in pair.groups) + pair.ungrouped == GROUPS + 501
    # New groups are told first, and even they are bounded.
    assert lines == [0] * FIRST_LINES + [None] * (GROUPS - FIRST_LINES) + [GROUPS - FIRST_LINES] + [0] * (LINES - 1) + [
        None
    ] * (500 - LINES)


def test_pairs_of_bundles_are_bounded_and_the_last_ones_last(record: ShadowRecord) -> None:
    for release in range(1, PAIRS + 4):
        agrees(record, release)
    agrees(record, 6)
    assert [(one.release, one.shadow_release, one.compared, one.differing) for one in record.counts(0).pairs] == [
        (release, release, 1 + (release == 6), 0) for release in (4, 5, 7, 8, 9, 10, 11, 6)
    ]


def test_each_pair_of_bundles_has_groups_of_its_own(record: ShadowRecord) -> None:
    differs(record)
    agrees(record, 2)
    differs(record, "other")
    agrees(record, 3)
    assert [[(one.tool, one.count) for one in pair.groups] for pair in record.counts(0).pairs] == [
        [], [("other", 1), ("t", 1)], [],
    ]  # fmt: skip


def test_a_failing_shadow_is_said_when_it_begins_and_when_it_changes(record: ShadowRecord) -> None:
    said: list[Any] = [record.shadow_failed(code) for code in ("a", "a", "b", "b", "a")]
    agrees(record)
    said.append(record.shadow_failed("a"))
    assert said == [0, None, 0, None, 0, 0]
    assert record.counts(0).shadow_failed == {"a": 4, "b": 2}


def test_a_shadow_that_fails_now_and_then_does_not_flood_either(record: ShadowRecord) -> None:
    lines = []
    for _ in range(1000):
        lines.append(record.shadow_failed("engine.timeout"))
        agrees(record)
    assert lines == [0] * LINES + [None] * (1000 - LINES)


def test_what_was_counted_does_not_change_any_more(record: ShadowRecord) -> None:
    differs(record)
    before = record.counts(3)
    differs(record)
    assert (before.decided, before.waiting, before.differing, before.pairs[0].groups[0].count) == (
        4,
        3,
        {"ALLOW -> DENY": 1},
        1,
    )
    with pytest.raises(TypeError):
        before.differing["x"] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("verdict", "shadow", "steps"),
    [("DENY", "ALLOW", 2), ("DENY", "STEP_UP", 1), ("ALLOW", "ALLOW", 0), ("ALLOW", "DENY", -2)],
)
def test_steps_towards_allow(verdict: str, shadow: str, steps: int) -> None:
    assert loosening(Verdict(verdict), Verdict(shadow)) == steps


@pytest.mark.parametrize("document", [b"", b"null", b"[]", b"{}", b'{"verdict":"ALLOW"}', b"\xff"])
def test_what_is_no_decision_is_an_error_with_a_code(document: bytes) -> None:
    with pytest.raises(AnswerInvalidError):
        read_answer(document)


def test_a_difference_as_json() -> None:
    decision = Decision(Verdict.DENY, (), (), "id", None, None)
    found = Difference(
        kind="ALLOW -> DENY", document="authz/plan", input_digest=None, request_id=None, tool=None,
        verdict=Verdict.ALLOW, shadow_verdict=decision.verdict, codes=("a.b",), shadow_codes=(), obligations=("x",),
        shadow_obligations=(), revision="sha256:1", release=1, shadow_revision=None, shadow_release=None,
    )  # fmt: skip
    assert orjson.loads(orjson.dumps(found.as_json())) == {
        "kind": "ALLOW -> DENY", "document": "authz/plan", "input_digest": None, "request_id": None, "tool": None,
        "verdict": "ALLOW", "shadow_verdict": "DENY", "codes": ["a.b"], "shadow_codes": [], "obligations": ["x"],
        "shadow_obligations": [], "revision": "sha256:1", "release": 1, "shadow_revision": None,
        "shadow_release": None,
    }  # fmt: skip
