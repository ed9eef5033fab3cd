"""Where a path lies: in the workspace, beyond it, in what guards the agent; and what the repository's own file adds."""

from __future__ import annotations

import os
import re
import sys
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unicodedata import category, normalize
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, StrictStr

from pdp.documents import read_record
from pdp.errors import UsageError
from pdp.hooks.home import default_home

if TYPE_CHECKING:
    from collections.abc import Collection

REPOSITORY_FILE: Final = ".pdp-hook.yaml"
_MOST: Final = 4096  # letters of a path; words of a line that are looked at
# From these a client, or git, learns which programs to start.
_NAMES: Final = (
    r"\.(claude(.json|(?!/worktrees/))|codex|copilot|cursor|gemini|github/+(hooks|copilot|lsp.json|mcp.json)|vscode"
    r"|mcp.json|pdp-hook.yaml|gitconfig|git{})"
)
_STARTING: Final = re.compile("/" + _NAMES.format("") + "/")
_NAMED: Final = re.compile(r"(?<![\w.-])(-\w*m)?(pdp|" + _NAMES.format("/+(hooks|config)") + r")(?![\w-])")
_CONTROL: Final = re.compile(r"[\0-\x1f\x7f]")


class Region(IntEnum):
    """Where a path lies, the worst last. GUARD: what protects the agent's person, or says which programs start."""

    INSIDE = 0
    OUTSIDE = 1
    GUARD = 2


class RepositoryRules(BaseModel, frozen=True, extra="forbid"):
    """What a repository adds: entries that are denied, or held for a person; programs that are not listed."""

    deny: frozenset[StrictStr] = frozenset()
    hold: frozenset[StrictStr] = frozenset()
    commands_without: frozenset[StrictStr] = frozenset()


class Workspace:
    """The folder in which a client works, and what lies around it. `cwd`: absolute; `home`: of the policy."""

    def __init__(self, cwd: str, home: Path) -> None:
        folder, person = Path(os.path.realpath(cwd)), Path.home().resolve()
        self._cwd, self._folders = cwd, [folder, *folder.parents]
        # Policies of the gateway lie beside the usual one of hooks.
        self._policies = tuple(_folded(os.path.realpath(each)) for each in (home, default_home().parent))
        # A folder that is gone is no workspace, and neither is one that holds all of the person's files.
        own = [each for each in self._folders if folder.is_dir() and not person.is_relative_to(each)]
        self._root = next((each for each in own if _is_own(each / ".git")), own[0] if own else None)

    def region(self, path: str, *, writes: bool = False, below: bool = False) -> Region:
        """Return where a path lies. `below`: what lies below it is meant as well."""
        trimmed = path.strip(" " + "".join(letter for letter in path if not letter.isprintable()))
        if trimmed != path.strip(" \t\r\n"):  # some programs take away more at the ends than others, such as U+FEFF
            return max(Region.OUTSIDE, self.region(trimmed, writes=writes, below=below))
        if not path or len(path) > _MOST or _CONTROL.search(trimmed):
            return Region.OUTSIDE
        paths = self._readings(path)
        if writes and any(map(_is_repository, {folder for each in paths for folder in Path(each).parents})):
            return Region.GUARD
        for each in map(_folded, (*paths, os.path.normpath(Path(self._cwd, path)))):
            is_above = below and any(policy.startswith(each) for policy in self._policies)
            is_written = writes and (_STARTING.search(each) or each.startswith(_INSTALLED))
            if each.startswith(self._policies) or is_above or is_written:
                return Region.GUARD
        is_inside = all(self._root in (each, *each.parents) for each in map(Path, paths))
        return Region.INSIDE if is_inside else Region.OUTSIDE

    def names_guard(self, line: str) -> bool:
        """Return whether a command line names what guards the agent, other than in words made when it runs."""
        plain = re.sub(r"\\\n|['\"\\]|\$(?=['\"])", "", re.sub(r"\$HOME\b|\$\{HOME\}", "~", line))
        words = {word[:_MOST] for word in re.split(r"[\s;|&<>(){}=,:`\0]+", plain)}
        words = {word for word in words if "/" in word or word[:1] == "~" or os.path.lexists(f"{self._cwd}/{word}")}
        if _NAMED.search(_folded(plain)) or len(words) > _MOST:
            return True
        guarded = (*self._policies, *_INSTALLED)
        return any(_folded(path).startswith(guarded) for word in words for path in self._readings(word))

    def has_foreign_repository(self) -> bool:
        """Return whether git may take a folder for a repository whose settings the agent can have written."""
        return any(os.path.lexists(each / "HEAD") for each in self._folders if self._root in (each, *each.parents))

    def rules(self, entries: Collection[str]) -> RepositoryRules:
        """Return what the files of this and the outer folders say; FileFaultsError, UsageError: one is faulty."""
        rules = RepositoryRules()
        for file in (folder / REPOSITORY_FILE for folder in self._folders):
            if os.path.lexists(file):
                if file.is_symlink() or not file.is_file():
                    raise UsageError(f"{file}: is not a regular file", hint="write the rules into the file itself")
                found = read_record(file, RepositoryRules)
                for name in sorted(found.deny | found.hold):
                    if name not in entries and not name.startswith("mcp__"):
                        raise UsageError(f"{file}: {name!r:.60} is not an entry", hint="name entries of the manifest")
                rules = RepositoryRules(**{field: names | getattr(rules, field) for field, names in found})
        return rules

    def _readings(self, path: str) -> list[str]:
        # Clients and tools read one text as different paths; the worst one counts.
        texts = {path, path.strip()}
        texts |= {os.path.expanduser(text) for text in texts}  # noqa: PTH111 - without errors
        if path.strip()[:5].lower() == "file:":
            texts |= {unquote(urlsplit(path).path), unquote(path.strip()[5:])}
        joined = [os.path.join(self._cwd, text) for text in texts]  # noqa: PTH118 - `Path` takes parts away
        # Some programs take `..` away before they follow links, others after.
        return [os.path.realpath(each) for path in joined for each in (path, os.path.normpath(path))]


def _is_own(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _is_repository(folder: Path) -> bool:
    """Return whether git keeps its settings in a folder, whatever that is called."""
    return os.path.lexists(folder / "HEAD") and os.path.lexists(folder / "objects")


def _folded(path: str) -> str:
    """Return what a file system that tells fewer names apart may take a path for, with a slash at the end."""
    return (
        "".join(letter for letter in normalize("NFKC", path) if category(letter) != "Cf").casefold().rstrip("/") + "/"
    )


_PLACES: Final = [str(Path(__file__).parents[1]), *([sys.prefix] if sys.prefix != sys.base_prefix else [])]
_INSTALLED: Final = tuple(_folded(os.path.realpath(place)) for place in _PLACES)
