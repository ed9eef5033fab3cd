"""Fixtures that create enforcement points with in-memory or SQL stores for all tests of the flow."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pdp import Approvals, EmbeddedEngine, MemoryAudit, Pep
from pdp.stores.memory import MemoryActions, MemoryIdempotency
from pdp.stores.sql.database import Database
from tests.support import desk, payments
from tests.support.desk import Desk
from tests.support.payments import Hub


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pep]:
    """An enforcement point that the tests copy, so that the slow creation of an engine happens only once."""
    manifest = desk.effective(tmp_path_factory.mktemp("desk"))
    with desk.engine(manifest) as engine:
        yield Pep(manifest, engine)


@pytest.fixture(scope="session")
def payments_engine() -> Iterator[EmbeddedEngine]:
    with payments.engine() as engine:
        yield engine


@pytest.fixture
def works() -> Desk:
    return Desk()


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path}/pdp.db", upgrade=True) as opened:
        yield opened


@pytest.fixture
def in_memory(base: Pep, works: Desk) -> Pep:
    return base.with_changes(
        audit=MemoryAudit(), tools=works.tools(), approvals=Approvals(), keys=MemoryIdempotency(),
        actions=MemoryActions(),
    )  # fmt: skip


@pytest.fixture
def in_sqlite(base: Pep, works: Desk, store: Database) -> Pep:
    return desk.in_database(base, works, store)


@pytest.fixture(params=["in_memory", "in_sqlite"])
def pep(request: pytest.FixtureRequest) -> Pep:
    """An enforcement point with all its stores in memory, or all its stores in one database."""
    made: Pep = request.getfixturevalue(request.param)
    return made
