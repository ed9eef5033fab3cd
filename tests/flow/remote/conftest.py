"""Fixture with an enforcement point whose tools run in other processes, for stores in memory and in each database."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pdp import Pep
from tests.flow.remote.letters import manifest_in, opened
from tests.support.postgres import DATABASES, made_database


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return made_database(request.param, tmp_path)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return manifest_in(tmp_path)


@pytest.fixture
def pep(url: str, manifest: Path) -> Iterator[Pep]:
    with ExitStack() as owned:
        yield opened(manifest, url, owned)
