"""Fixtures for tests of adapters. `scripts/adapters` runs the tests whose framework is missing in this environment."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pdp import Approvals, Pep
from pdp.testing.conformance.world import World
from tests.adapters.targets import ADAPTERS, is_installed

collect_ignore = [str(Path(__file__).parent / name) for name in ADAPTERS if not is_installed(name)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(World(tmp_path / "world")) as made:
        yield made


@pytest.fixture
def pep() -> Iterator[Pep]:
    """Open an enforcement point with the manifest of the conformance suite."""
    with Pep.from_files("pdp/testing/conformance/manifest.yaml", approvals=Approvals()) as opened:
        yield opened


@pytest.fixture
def ran() -> list[Any]:
    """Return the list into which tools write the arguments that they received."""
    return []
