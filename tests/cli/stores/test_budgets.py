"""`pdp budgets` lists and settles the amounts that calls with an unknown outcome have reserved."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pdp.contract.budgets import Spent, Take, Window
from pdp.json import canonical, digest
from pdp.stores.url import OpenStores
from tests.support.command_line import pdp

URL = "sqlite:///agent.db"
NOON = 1_782_907_200.0  # 2026-07-01T12:00:00Z
NAMES = canonical(["https://id.example", "wire.daily", "subject", ["officer-123"], "0.01", 86_400.0, False])
HELD: dict[str, Any] = {
    "id": "decision-1", "amount": "40000.00", "limit": "wire.daily", "per": "subject", "holder": ["officer-123"],
    "tenant": "https://id.example",
}  # fmt: skip


def take(units: int) -> Take:
    return Take(digest(NAMES), NAMES.decode(), units, Window(86_400.0), "EUR")


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenStores]:
    """Create a database with one interrupted call and one running call, and return its stores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PDP_DATABASE_URL", URL)
    with closing(OpenStores(URL, upgrade=True)) as opened:
        opened.budgets.reserve("decision-1", [take(4_000_000)], now=NOON, running_until=NOON + 60)
        opened.budgets.reserve("decision-2", [take(10)], now=NOON, running_until=1e12)
        yield opened


def test_reservations_with_unknown_outcome_are_listed() -> None:
    assert pdp("budgets", "list", "--json").json == [HELD]
    assert pdp("budgets", "list").out == "decision-1  40000.00 of wire.daily, subject officer-123\n"


@pytest.mark.parametrize(("outcome", "used"), [("spent", 4_000_010), ("released", 10)])
def test_reservation_is_settled_once_and_recorded(stores: OpenStores, outcome: str, used: int) -> None:
    settle = ("budgets", "settle", "decision-1", "--outcome")
    done = pdp(*settle, outcome, "--by", "ann", "--audit", "audit.jsonl", "--json")

    assert (done.code, done.err, done.json) == (0, "", {"id": "decision-1", "outcome": outcome, "held": [HELD]})
    assert stores.budgets.spent(take(0), NOON) == Spent(used, NOON + 86_400, "EUR")
    assert pdp("budgets", "list").out == "no amounts are reserved by calls with an unknown outcome\n"
    for other in ("spent", "released"):
        again = pdp(*settle, other, "--audit", "audit.jsonl")
        assert (again.code, again.out) == (2, "")
        assert again.err == (
            "error: decision-1: no call with an unknown outcome has this id\n    hint: see: pdp budgets list\n"
        )
    assert stores.budgets.spent(take(0), NOON).used == used
    (event,) = map(json.loads, Path("audit.jsonl").read_bytes().splitlines())
    facts = ("type", "subject", "decision_id", "status", "spent", "outcome", "tool_name")
    spent = [{"limit": "wire.daily", "used": "40000.00", "window_ends": None}]
    assert [event[name] for name in facts] == ["budget.settled", "ann", "decision-1", outcome, spent, None, None]


@pytest.mark.parametrize("reservation", ["decision-2", "", "\x1b[2J"])
def test_budgets_settle_rejects_calls_with_a_known_outcome(stores: OpenStores, reservation: str) -> None:
    done = pdp("budgets", "settle", reservation, "--outcome", "released")

    assert (done.code, done.out) == (2, "")
    assert "no call with an unknown outcome has this id" in done.err
    assert "\x1b" not in done.err
    assert stores.budgets.spent(take(0), NOON).used == 4_000_010
