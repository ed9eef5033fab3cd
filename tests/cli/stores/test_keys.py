"""`pdp keys`: calls of which nobody knows what came are listed and settled, and what that means for the next call."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from pdp import Approvals, Evaluation, Pep
from pdp.stores.actions import ActionState
from pdp.stores.url import OpenStores
from tests.support import payments
from tests.support.command_line import pdp, written
from tests.support.payments import Hub, session, wire
from tests.support.scripted import Scripted, until_approved

URL = "sqlite:///agent.db"
BOSS = {"sub": "boss", "roles": ["payments.approver"]}


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenStores]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PDP_DATABASE_URL", URL)
    with closing(OpenStores(URL, upgrade=True)) as opened:
        yield opened


def called(stores: OpenStores, tool: Callable[..., Any] | None = None) -> Evaluation:
    """A wire that a person approves where that is needed."""
    approvals = Approvals(stores.approvals)
    pep = Pep(
        payments.effective(), Scripted(until_approved), keys=stores.keys, actions=stores.actions, approvals=approvals,
        tools={"initiate_wire": tool or Hub().initiate_wire},
    )  # fmt: skip
    asked = pep.call(wire(), session(time=None))
    if asked.verdict == "STEP_UP" and asked.approval is not None:
        approvals.grant(asked.approval.id, BOSS)
        asked = pep.call(wire(), session(time=None))
    return asked


def interrupted(stores: OpenStores) -> dict[str, Any]:
    """The key of a wire whose caller was interrupted: nobody knows how far it got."""

    def hangs(**_: object) -> None:
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        called(stores, hangs)
    (key,) = unknown()
    return key


def unknown() -> list[dict[str, Any]]:
    keys: list[dict[str, Any]] = pdp("keys", "list", "--json").json
    return keys


def test_what_nobody_knows_is_listed(stores: OpenStores) -> None:
    assert pdp("keys", "list").out == "no key has an unknown outcome\n"

    key = interrupted(stores)

    assert {name: key[name] for name in ("subject", "tool", "key", "state")} == {
        "subject": "officer-123", "tool": "initiate_wire", "key": "idm-4a2b", "state": "unknown",
    }  # fmt: skip
    assert pdp("keys", "list").out == (
        f"{key['id']}  initiate_wire  key idm-4a2b of officer-123, begun {key['started_at']}: "
        "the caller was cancelled or interrupted while the tool ran\n"
    )


@pytest.mark.parametrize(
    ("options", "result", "effect", "state"),
    [
        (["done", "--result", "result.json"], {"wire_id": "w-7"}, None, ActionState.COMMITTED),
        (["done"], None, "done", ActionState.COMMITTED),
        (["not-done"], {"wire_id": "wire-1"}, None, ActionState.FAILED),
    ],
)
def test_a_key_is_settled_with_its_action_and_recorded(
    stores: OpenStores, options: list[str], result: object, effect: str | None, state: ActionState
) -> None:
    key = interrupted(stores)
    written(Path("result.json"), {"wire_id": "w-7"})

    recorded = ("--by", "ann", "--audit", "audit.jsonl")
    done = pdp("keys", "settle", key["id"], "--outcome", *options, *recorded, "--json")

    assert (done.code, done.err, done.json) == (0, "", {**key, "outcome": options[0]})
    assert unknown() == []
    assert [action.state for action in stores.actions.list()] == [state]
    (event,) = map(json.loads, Path("audit.jsonl").read_bytes().splitlines())
    facts = ("type", "subject", "tool_name", "idempotency_key", "approval_id", "status", "outcome")
    assert [event[name] for name in facts] == [
        "key.settled", "ann", "initiate_wire", "idm-4a2b", key["approval_id"], options[0], None,
    ]  # fmt: skip
    again = called(stores)
    assert (again.executed, again.result) == (options[0] == "not-done", result)
    failure = again.outcome.failure
    assert effect == (None if failure is None else failure.details["effect"])


def test_a_key_is_settled_once(stores: OpenStores) -> None:
    key = interrupted(stores)
    pdp("keys", "settle", key["id"], "--outcome", "not-done", "--by", "ann")

    again = pdp("keys", "settle", key["id"], "--outcome", "done")
    assert (again.code, again.out) == (2, "")
    assert f"error: {key['id']}: no key of unknown outcome has that id\n    hint: see: pdp keys list\n" in again.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([""], "no key of unknown outcome has that id"),
        (["ff", "--result", "r.json"], "--result says nothing with --outcome not-done"),
    ],
)
def test_what_cannot_be_settled_is_named(line: list[str], message: str) -> None:
    done = pdp("keys", "settle", *line, "--outcome", "not-done")

    assert (done.code, done.out) == (2, "")
    assert message in done.err
