"""Choose the adapters that a run of CI tests: those that changed lately, and some others in turn."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_DAY: Final = 86400


def chosen(root: Path, files: Mapping[str, Sequence[str]], rotating: int) -> list[str]:
    """Return the parts that a commit of the last day touches, and `rotating` others, in the order of `files`.

    `files` has the paths of each part, relative to `root`; a folder ends in `/`. The day ends with the commit of HEAD.
    The
    number of commits up to HEAD selects the others, so each part is selected in turn, and always the same for one HEAD.
    Without git, no part counts as changed, and the first ones are selected.
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
