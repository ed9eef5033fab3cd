"""Calls that a remote enforcement point runs: begun with all that they need, and finished, on each kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pdp import Approvals, MemoryAudit, Pep
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.proposal import Execution
from pdp.stores.remote_calls import CallName
from pdp.stores.url import open_stores
from tests.support import payments
from tests.support.desk import rules
from tests.support.payments import session, wire
from tests.support.postgres import DATABASES, empty_database

SOON = "2026-07-01T10:05:00Z"
BOSS = {"sub": "boss", "roles": ["payments.approver"]}
CALL = CallName("call-0123456789abcdef", "token-1", "sha256:asked")
DONE = Execution({"wire_id": "wire-1"})


def in_database(url: str, engine: EmbeddedEngine, owned: ExitStack) -> Pep:
    stores = open_stores(url, upgrade=True)
    owned.callback(stores.close)
    audit = stores.open_audit(None)
    owned.callback(audit.close)
    return Pep(
        payments.effective(), engine, audit=audit, approvals=Approvals(stores.approvals), keys=stores.keys,
        actions=stores.actions, ledger=stores.ledger, budgets=stores.budgets, remote_calls=stores.remote_calls,
    )  # fmt: skip


@pytest.fixture(params=["memory", *DATABASES])
def pep(request: pytest.FixtureRequest, tmp_path: Path, payments_engine: EmbeddedEngine) -> Iterator[Pep]:
    if request.param == "memory":
        yield Pep(payments.effective(), payments_engine, audit=MemoryAudit(), approvals=Approvals())
        return
    with ExitStack() as owned:
        yield in_database(empty_database(request.param, tmp_path), payments_engine, owned)


def granted(pep: Pep) -> str:
    asked = pep.begin(CALL, wire(), session())
    rules(pep).grant(asked["approval"]["id"], BOSS, SOON)
    return str(asked["approval"]["id"])


def test_a_wire_is_begun_and_finished_once(pep: Pep) -> None:
    granted(pep)
    begun = pep.begin(CALL, wire(), session(time=SOON))
    again = pep.begin(CALL, wire(), session(time=SOON))
    done = pep.finish(CALL, DONE)
    assert begun == again
    assert pep.finish(CALL, DONE) == done
    assert pep.begin(CALL, wire(), session(time=SOON)) == done
    replay = pep.begin(CALL._replace(id="call-2"), wire(), session(time=SOON))
    assert (replay["begun"], replay["replayed"], replay["result"]) == (False, True, DONE.result)
