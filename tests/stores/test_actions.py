"""Action stores in memory and in databases: each key has only one action, and only legal state changes are accepted."""

from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from pdp.errors import StoreError, StoreFullError, UsageError
from pdp.stores.actions import Action, ActionConflictError, ActionState, ActionStateError, ActionStore
from pdp.stores.memory import MemoryActions
from pdp.stores.sql.database import Database
from pdp.stores.sql.records import SqlActions
from tests.support import at_once
from tests.support.postgres import made_database

NOW = 1_782_900_000.25
STAGED = {
    "kind": "bind", "target": "policy/7 \x00", "payload_digest": "sha256:a", "decision_id": "decision-1",
    "idempotency_key": "idm-1",
}  # fmt: skip
LEGAL = {
    ("staged", "approved"), ("staged", "denied"), ("approved", "committed"), ("approved", "failed"),
    ("approved", "denied"), ("committed", "compensated"), ("failed", "compensated"),
}  # fmt: skip


def stage(actions: ActionStore, owner: str = "https://id officer-123", **changes: Any) -> Action:
    return actions.stage(Action.staged(**{**STAGED, "now": NOW, **changes}), owner)


def test_staged_action_has_its_fields_and_can_be_read(actions: ActionStore) -> None:
    action = stage(actions)

    assert asdict(action) == {
        **STAGED, "id": action.id, "state": "staged", "approval_id": None, "created_at": "2026-07-01T10:00:00.250Z",
    }  # fmt: skip
    assert actions.get(action.id) == action
    for other in ("another", "", action.id + "\x00", "\ud800"):
        assert actions.get(other) is None


def test_staging_with_a_used_key_returns_the_stored_action_whatever_its_state(actions: ActionStore) -> None:
    first = stage(actions)
    assert stage(actions, decision_id="decision-2", now=NOW + 9) == first
    approved = actions.move(first, ActionState.APPROVED, approval_id="approval-1")

    assert stage(actions) == approved == replace(first, state=ActionState.APPROVED, approval_id="approval-1")
    assert actions.list() == [approved]


def test_staging_with_a_key_that_another_action_has_used_is_a_conflict(actions: ActionStore) -> None:
    first = stage(actions)

    for changed in ("kind", "target", "payload_digest"):
        with pytest.raises(ActionConflictError) as caught:
            stage(actions, **{changed: "another"})
        assert str(caught.value) == (
            f"the idempotency key 'idm-1' belongs to another action, {first.id} "
            "(use a new key for another kind, target or payload)"
        )
    assert actions.list() == [first]


def test_owners_can_use_the_same_key_for_different_actions(actions: ActionStore) -> None:
    staged = [
        stage(actions, owner=owner, idempotency_key=key) for owner, key in (("a", "bc"), ("ab", "c"), ("b", "bc"))
    ]

    assert actions.list() == staged
    assert len({action.id for action in staged}) == len(staged)


def test_staging_without_key_generates_a_key(actions: ActionStore) -> None:
    first, second = (stage(actions, idempotency_key=None) for _ in range(2))

    assert first.id != second.id
    assert first.idempotency_key != second.idempotency_key
    assert stage(actions, idempotency_key=first.idempotency_key) == first


@pytest.mark.parametrize("before", ActionState)
def test_action_accepts_only_the_documented_state_changes(before: ActionState) -> None:
    action = replace(Action.staged(**STAGED, now=NOW), state=before)
    for after in ActionState:
        if (before, after) in LEGAL:
            assert action.moved(after) == replace(action, state=after)
            continue
        with pytest.raises(ActionStateError) as caught:
            action.moved(after)
        assert str(caught.value) == f"action {action.id} is {before} and cannot become {after}"


def test_action_moves_to_its_final_state_and_is_listed_by_state(actions: ActionStore) -> None:
    action = stage(actions)
    for state in (ActionState.APPROVED, ActionState.COMMITTED, ActionState.COMPENSATED):
        action = actions.move(action, state)
        assert action.state is state
        assert actions.list(state=state) == actions.list() == [action]
        assert actions.list(state=ActionState.STAGED) == []
        with pytest.raises(ActionStateError):
            actions.move(action, ActionState.STAGED)


def test_committed_action_keeps_its_approval_id(actions: ActionStore) -> None:
    action = stage(actions)

    committed = actions.move(
        actions.move(action, ActionState.APPROVED, approval_id="approval-1"), ActionState.COMMITTED
    )
    assert committed.approval_id == "approval-1"


def test_state_change_fails_if_the_stored_action_has_changed(actions: ActionStore) -> None:
    action = stage(actions)
    actions.move(action, ActionState.DENIED)

    with pytest.raises(ActionStateError) as caught:
        actions.move(action, ActionState.APPROVED)
    assert str(caught.value) == f"action {action.id} is now denied, not staged (read the action again and decide again)"
    with pytest.raises(ActionStateError) as caught:
        actions.move(replace(action, id="another"), ActionState.APPROVED)
    assert str(caught.value) == "action another does not exist (read the action again and decide again)"
    with pytest.raises(ActionStateError):
        actions.move(replace(action, state=ActionState.APPROVED), ActionState.COMMITTED)


def test_only_one_of_concurrent_state_changes_of_an_action_succeeds(actions: ActionStore) -> None:
    action = stage(actions)

    def move(state: ActionState) -> ActionState | None:
        with suppress(ActionStateError):
            return actions.move(action, state).state
        return None

    states = at_once([partial(move, state) for state in [ActionState.APPROVED, ActionState.DENIED] * 10])

    assert [state for state in states if state] == [stored.state for stored in actions.list()]


def test_concurrent_stagings_with_one_key_create_one_action(actions: ActionStore) -> None:
    assert at_once([lambda: stage(actions)] * 20) == [*actions.list()] * 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"kind": ""}, "kind is empty", id="kind"),
        pytest.param({"idempotency_key": ""}, "idempotency_key is empty", id="key"),
    ],
)
def test_action_with_an_empty_field_is_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Action.staged(**{**STAGED, "now": NOW, **changes})

    assert str(caught.value) == f"an action cannot be staged: {message}"


def test_memory_store_at_its_maximum_size_rejects_new_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdp.stores.memory.CAPACITY", 1)
    actions = MemoryActions()
    first = stage(actions)

    with pytest.raises(StoreFullError) as caught:
        stage(actions, idempotency_key="idm-2")
    assert str(caught.value) == "the store in memory is full: it keeps 1 actions (use a database)"
    assert stage(actions) == first


@pytest.mark.parametrize("state", [ActionState.STAGED, ActionState.DENIED, ActionState.APPROVED])
def test_memory_store_at_its_maximum_size_drops_the_oldest_action_that_is_not_approved(
    monkeypatch: pytest.MonkeyPatch, state: ActionState
) -> None:
    monkeypatch.setattr("pdp.stores.memory.CAPACITY", 2)
    actions = MemoryActions()
    first, second = stage(actions), stage(actions, idempotency_key="idm-2")
    if state is not ActionState.STAGED:
        first = actions.move(first, state)
    third = stage(actions, idempotency_key="idm-3", now=NOW + 86_400)

    assert [*actions.list()] == ([first, third] if state is ActionState.APPROVED else [second, third])
    with pytest.raises(StoreFullError):
        stage(actions, idempotency_key="idm-4")


@pytest.mark.parametrize("record", ["nonsense", "{}"])
def test_damaged_action_record_raises_an_error(tmp_path: Path, record: str) -> None:
    with Database.open(made_database("sqlite", tmp_path)) as store:
        actions = SqlActions(store)
        action = stage(actions)
        with store.write() as connection:
            connection.execute(text("UPDATE pdp_actions SET record = :record"), {"record": record})

        for step in (
            lambda: actions.get(action.id),
            actions.list,
            lambda: stage(actions),
            lambda: actions.move(action, ActionState.APPROVED),
        ):
            with pytest.raises(StoreError) as caught:
                step()
            assert str(caught.value) == (
                "a record of pdp_actions cannot be read (another program changed it, or a newer release wrote it)"
            )
