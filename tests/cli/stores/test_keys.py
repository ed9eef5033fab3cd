"""`pdp keys` lists and settles calls with an unknown outcome. The same call then returns the settled outcome."""

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
    """Propose a wire, and approve the wire if needed. Return the enforcement point."""
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
    """Return the key of a wire that was interrupted while it ran, so that its outcome is unknown."""

    def hangs(**_: object) -> None:
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        called(stores, hangs)
    (key,) = unknown()
    return key


def unknown() -> list[dict[str, Any]]:
    keys: list[dict[str, Any]] = pdp("keys", "list", "--json").json
    return keys


def test_calls_with_unknown_outcome_are_listed(stores: OpenStores) -> None:
    assert pdp("keys", "list").out == "no calls with an unknown outcome\n"

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
def test_settling_a_key_also_settles_its_action_and_is_recorded(
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


def test_idempotency_key_with_unknown_outcome_can_be_settled_only_once(stores: OpenStores) -> None:
    key = interrupted(stores)
    pdp("keys", "settle", key["id"], "--outcome", "not-done", "--by", "ann")

    again = pdp("keys", "settle", key["id"], "--outcome", "done")
    assert (again.code, again.out) == (2, "")
    assert (
        f"error: {key['id']}: no call with an unknown outcome has this id\n    hint: see: pdp keys list\n" in again.err
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([""], "no call with an unknown outcome has this id"),
        (["ff", "--result", "r.json"], "--result has no effect with --outcome not-done"),
    ],
)
def test_keys_settle_rejects_invalid_arguments(line: list[str], message: str) -> None:
    done = pdp("keys", "settle", *line, "--outcome", "not-done")

    assert (done.code, done.out) == (2, "")
    assert message in done.err
