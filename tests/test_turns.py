"""Which of the tests that take turns are run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.turns import SUBJECTS

STORY, WRAP = "tests/hooks/install/test_story.py", "tests/gateway/test_wrap.py"


def commit(history: Path, path: str) -> None:
    """Commit a file to a history of its own."""
    (history / path).parent.mkdir(parents=True, exist_ok=True)
    (history / path).touch()
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", path]):
        subprocess.run(
            ["git", "-c", "user.name=one", "-c", "user.email=one@one.example", *words], cwd=history, check=True
        )


def collected(history: Path | None, *options: str) -> set[str]:
    """The tests that a run would have, were this the repository's history."""
    environ = {**os.environ, "GIT_DIR": str(history / ".git")} if history else {**os.environ}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options, STORY, WRAP]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.process
def test_each_has_its_turn_and_what_was_touched_is_run_whole(tmp_path: Path) -> None:
    commit(tmp_path, "pdp/gateway/one.py")
    one = collected(tmp_path, "--by-turns", "2")
    for number in range(5):
        commit(tmp_path, f"docs/{number}.md")
    other = collected(tmp_path, "--by-turns", "2")
    whole = collected(None)

    assert {name for name in whole - one if name.startswith(WRAP)} == set()
    assert [name for name in whole if name.startswith(STORY) and (name in one) == (name in other)] == []
    assert {name for name in whole - other if name.startswith(WRAP)} != set()


def test_what_is_said_to_take_turns_is_there() -> None:
    named = [path for place, subjects in SUBJECTS.items() for path in (place, *subjects) if path != "{}"]

    assert [path for path in named if not (ROOT / path).exists()] == []
