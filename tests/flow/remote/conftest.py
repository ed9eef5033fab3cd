"""An enforcement point whose tools run elsewhere, on each kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pdp import Pep
from pdp.stores.sql.database import Database
from tests.flow.remote.letters import manifest_in, opened
from tests.support.postgres import DATABASES, empty_database


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    address = empty_database(request.param, tmp_path)
    Database.open(address, upgrade=True).close()
    return address


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return manifest_in(tmp_path)


@pytest.fixture
def pep(url: str, manifest: Path) -> Iterator[Pep]:
    with ExitStack() as owned:
        yield opened(manifest, url, owned)
