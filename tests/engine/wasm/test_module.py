"""The machine code of a policy is cached beside Python's byte code. A damaged cache file is compiled again."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

_PROGRAM = """

from pdp.engine.wasm.engine import EmbeddedEngine

with EmbeddedEngine.baseline() as engine:
    print(engine.evaluate(b"{}").decode())
"""


def _opened(prefix: Path, **environment: str) -> str:
    """Open an engine in a new process whose byte code is stored below `prefix`, and return its output."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**variables, "PYTHONPYCACHEPREFIX": str(prefix), **environment},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return result.stdout


def _stored(prefix: Path) -> list[Path]:
    return list(prefix.rglob("policy_*"))


def test_machine_code_of_a_policy_is_cached_and_reused(tmp_path: Path) -> None:
    first = _opened(tmp_path)
    files = {file: file.stat().st_mtime_ns for file in _stored(tmp_path)}
    # The cache has one file for the policy, and one file for the module that the policy imports.
    assert len(files) == 2
    assert _opened(tmp_path) == first
    assert {file: file.stat().st_mtime_ns for file in _stored(tmp_path)} == files


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: b"", id="empty"),
        pytest.param(lambda content: content[:-100], id="cut"),
        pytest.param(lambda content: content[:5000] + b"\0" * 500 + content[5500:], id="overwritten"),
    ],
)
def test_damaged_cache_file_is_rebuilt(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    first = _opened(tmp_path)
    file = max(_stored(tmp_path), key=lambda stored: stored.stat().st_size)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert _opened(tmp_path) == first
    assert len(file.read_bytes()) == len(whole)


def test_machine_code_is_not_cached_if_python_writes_no_byte_code(tmp_path: Path) -> None:
    _opened(tmp_path, PYTHONDONTWRITEBYTECODE="1")
    assert _stored(tmp_path) == []
