"""Which of several slow parts a run of CI tests: those that were changed lately, and a few that take turns."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_DAY: Final = 86400


def chosen(root: Path, files: Mapping[str, Sequence[str]], rotating: int) -> list[str]:
    """Return the parts that one of the last day's commits touches, and `rotating` others, in the order of `files`.

    `files`: of each part the paths below `root` that it is made of; a folder ends in `/`. The day ends with HEAD's
    commit, and the others are by the number of commits up to it: the same for the same HEAD, and all of them in turn.
    Without git, no part was changed, and the first ones are the others.
    """
    since = int(_git(root, "log", "-1", "--format=%ct") or 0) - _DAY
    changed = touched(root, files, f"--since={since}")
    begin = commits(root) * rotating % max(len(files), 1)
    turn = [*list(files)[begin:], *list(files)[:begin]]
    others = [part for part in turn if part not in changed][:rotating]
    return [part for part in files if part in changed or part in others]


def touched(root: Path, files: Mapping[str, Sequence[str]], which: str) -> set[str]:
    """Return the parts that a commit touches, of those that an option of `git log` selects."""
    paths = _git(root, "log", which, "--format=", "--name-only", "--no-renames", "-z").split("\0")
    return {part for part, own in files.items() if any(_is_of(own, path) for path in {*paths})}


def commits(root: Path) -> int:
    """Return the number of commits up to HEAD; 0 without git."""
    return int(_git(root, "rev-list", "--count", "HEAD") or 0)


def _is_of(paths: Sequence[str], path: str) -> bool:
    return any(path == each or (each.endswith("/") and path.startswith(each)) for each in paths)


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)  # noqa: S603, S607 - git
    except FileNotFoundError:
        return ""
    return "" if done.returncode else done.stdout.strip()
