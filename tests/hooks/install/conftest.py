from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hooks.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    machine.program("claude", "echo '2.1.330 (Claude Code)'")
    try:
        yield machine
    finally:
        machine.end()
