"""Fixtures that run each store test in memory and with each database of `pdp.stores.url.STORES`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdp.errors import UsageError
from pdp.stores.sql.database import Database
from tests.support.postgres import DATABASES, SCHEMES, made_database, new_stores


@pytest.fixture(params=["memory", *SCHEMES])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with new_stores(request.param, tmp_path) as opened:
        yield opened


def _store(kind: str) -> Any:
    def store(stores: Any) -> Any:
        try:
            return getattr(stores, kind)
        except UsageError as error:
            pytest.skip(str(error))

    return pytest.fixture(name=kind)(store)


keys, actions, approvals, budgets, ledger = map(_store, ("keys", "actions", "approvals", "budgets", "ledger"))


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with Database.open(made_database(request.param, tmp_path)) as opened:
        yield opened
