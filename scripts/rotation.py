"""Choose the adapters that a run of CI tests: those that changed lately, and a few by turns."""

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
    paths = {*_git(root, "log", f"--since={since}", "--format=", "--name-only", "--no-renames", "-z").split("\0")}
    changed = {part for part, own in files.items() if any(_is_of(own, path) for path in paths)}
    begin = int(_git(root, "rev-list", "--count", "HEAD") or 0) * rotating % max(len(files), 1)
    turn = [*list(files)[begin:], *list(files)[:begin]]
    others = [part for part in turn if part not in changed][:rotating]
    return [part for part in files if part in changed or part in others]


def _is_of(paths: Sequence[str], path: str) -> bool:
    return any(path == each or (each.endswith("/") and path.startswith(each)) for each in paths)


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)  # noqa: S603, S607 - git
    except FileNotFoundError:
        return ""
    return "" if done.returncode else done.stdout.strip()
