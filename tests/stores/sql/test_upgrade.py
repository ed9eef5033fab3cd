"""Data of an older release is used after an upgrade. A release of revision 0003 has written `revision_0003.json`."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import column, table

from pdp import Approvals, Pep
from pdp.audit.chain import chain_hash
from pdp.audit.verify import Chain
from pdp.contract.budgets import Spent
from pdp.ledger.ledger import Origin
from pdp.stores.sql import tables
from pdp.stores.sql.database import Database
from pdp.stores.sql.events import Wanted
from pdp.stores.url import OpenStores
from tests.stores.test_budgets import NOON, take
from tests.support import payments
from tests.support.payments import session, wire
from tests.support.postgres import DATABASES, empty_database
from tests.support.scripted import Scripted, until_approved

KEY = b"k" * 32


@pytest.mark.parametrize("kind", DATABASES)
def test_data_of_revision_0003_is_used_after_an_upgrade(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = empty_database(kind, tmp_path)
    old = json.loads(Path(__file__).with_name("revision_0003.json").read_text())
    with monkeypatch.context() as older:
        older.setattr(tables, "SCHEMA", "0003")
        with Database.open(url, upgrade=True) as database, database.write() as connection:
            for name, rows in old.items():
                filled = table(name, *map(column, rows[0]))
                connection.execute(filled.delete())
                connection.execute(filled.insert(), rows)

    with closing(OpenStores(url, upgrade=True)) as stores, closing(stores.open_audit(KEY)) as log:
        assert stores.check() == tables.SCHEMA
        hub = payments.Hub()
        pep = Pep(
            payments.effective(), Scripted(until_approved), audit=log, tools={"initiate_wire": hub.initiate_wire},
            keys=stores.keys, actions=stores.actions, approvals=Approvals(stores.approvals),
        )  # fmt: skip
        again = pep.call(wire(), session(time=None))
        assert (again.replayed, hub.wires) == (True, [])

        assert len(stores.actions.list()) == 1
        (approval,) = stores.approvals.page(10, tool="initiate_wire")
        assert (approval.state, approval.id) == ("consumed", old["pdp_approvals"][0]["id"])
        seen = stores.ledger.read("run-1", ["value-1"], 1.782e9)
        assert seen.sources == {"value-1": Origin("untrusted", "read_page", "call-1")}
        assert stores.budgets.spent(take(0), NOON) == Spent(30, NOON + 3600)
        assert [one.id for one in stores.budgets.unknown(2e9)] == ["r"]
        assert [call.id for call in stores.remote_calls.overdue(2e9)] == ["c-1"]
        assert [token.name for token in stores.tokens.list("default")] == ["ann"]
        assert stores.webhooks.hold("sha256:hook", 0, 30, 20, 0) == 2

        chain = Chain(chain_hash(KEY))
        list(log.stored(chain.check, {}))
        assert (chain.first["seq"], chain.last["seq"]) == (0, len(old["pdp_audit"]) + 1)
        assert len(log.search(Wanted(tool="initiate_wire", verdict="STEP_UP"), 10).rows) == 1
        assert [part.last for part in log.rotate(tmp_path)] == [chain.last["seq"] - 1]
