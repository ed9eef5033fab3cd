"""Where a path lies: in the workspace, beyond it, in what guards it; and what the repository's own file says.

Clients spell paths in more than one way, and a tool may read one as another does not. So a path is read in every way
that is known, and counts as the worst of them.
"""

from __future__ import annotations

import os
import re
import sys
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, StrictStr, ValidationError

from pdp.documents import faults_of, read_document
from pdp.errors import FileFaultsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

REPOSITORY_FILE: Final = ".pdp-hook.yaml"
_LONGEST: Final = 4096
# A folder of these names, wherever it is, or a file: from them a client or git learns which programs to start.
_STARTERS: Final = frozenset((
    ".claude", ".claude.json", ".codex", ".copilot", ".cursor", ".gemini", ".git", ".mcp.json", REPOSITORY_FILE,
))  # fmt: skip
_GITHUB_HOOKS: Final = (".github", "hooks")
_NAMED: Final = re.compile(
    r"(?<![\w.-])(?:pdp|\.claude(?:\.json)?|\.codex|\.copilot|\.cursor|\.gemini|\.git/+(?:hooks|config)|\.github/+hooks"
    r"|\.mcp\.json|\.pdp-hook\.yaml)(?![\w-])",
    re.IGNORECASE,
)


class Region(IntEnum):
    """Where a path lies, the worst last. GUARD: what protects the agent's person, or starts programs unasked."""

    INSIDE = 0
    OUTSIDE = 1
    GUARD = 2


class RepositoryRules(BaseModel):
    """What a repository's file adds: entries that are denied, or held for a person; programs that are not listed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deny: frozenset[StrictStr] = frozenset()
    hold: frozenset[StrictStr] = frozenset()
    commands_without: frozenset[StrictStr] = frozenset()


class Workspace:
    """The folder in which a client works, and what lies around it.

    Args:
        cwd: where the client works, absolute.
        home: the folder of the policy.
    """

    def __init__(self, cwd: str, home: Path) -> None:
        self.cwd = cwd
        self._secret = (_folded(os.path.realpath(home)),)
        self._installed = tuple(_folded(os.path.realpath(path)) for path in (Path(__file__).parents[1], sys.prefix))
        self.root = _root(cwd)

    def place(self, path: str, *, writes: bool = False, below: bool = False) -> Region:
        """Return where a path lies. `below`: what lies below it is meant as well."""
        if not path or "\0" in path or len(path) > _LONGEST:
            return Region.OUTSIDE
        return max(self._place(each, writes=writes, below=below) for each in self._readings(path))

    def names_guard(self, text: str) -> bool:
        """Return whether a command line names what guards the agent, other than in words made at run time."""
        plain = re.sub(r"\\\n", "", text)
        plain = re.sub(r"['\"\\]|\$(?=['\"])", "", plain)
        words = re.split(r"[\s;|&<>(){}=,:`]+", re.sub(r"\$HOME\b|\$\{HOME\}", "~", plain))
        return _NAMED.search(plain) is not None or any(
            self.place(word, below=True) is Region.GUARD for word in words if word
        )

    def has_foreign_repository(self) -> bool:
        """Return whether git may take a folder of the workspace for a repository, with settings that anybody wrote."""
        folder = Path(os.path.realpath(self.cwd))
        folders = (folder, *folder.parents)
        return any((each / "HEAD").exists() for each in folders if self.root and each.is_relative_to(self.root))

    def rules(self, entries: Collection[str]) -> RepositoryRules:
        """Return what the files of the working folder and of those above it say together.

        `entries`: the names that they may use, beside those of MCP tools. FileFaultsError, UsageError: a faulty file.
        """
        found = [RepositoryRules()]
        for folder in (Path(self.cwd), *Path(self.cwd).parents):
            file = folder / REPOSITORY_FILE
            if not os.path.lexists(file):
                continue
            if not file.is_file() or file.is_symlink():
                raise UsageError(f"{file}: is not a regular file", hint="write the rules into the file itself")
            document = read_document(file)
            try:
                rules = RepositoryRules.model_validate(document.value)
            except ValidationError as error:
                raise FileFaultsError(faults_of(error, document, RepositoryRules)) from None
            unknown = [name for name in rules.deny | rules.hold if name not in entries and not name.startswith("mcp__")]
            if unknown:
                raise UsageError(f"{file}: {min(unknown)!r:.60} is not an entry", hint="name entries of the manifest")
            found.append(rules)
        return RepositoryRules(
            **{
                name: frozenset().union(*(getattr(each, name) for each in found))
                for name in RepositoryRules.model_fields
            }
        )

    def _readings(self, path: str) -> Iterator[str]:
        """Yield the absolute paths, symlinks resolved, that a client may mean."""
        for text in {path, path.strip()}:
            texts = {text, os.path.expanduser(text)}  # noqa: PTH111 - without an error where there is no such user
            if text[:5].lower() == "file:":
                texts |= {unquote(urlsplit(text).path), unquote(text[5:])}
            for each in texts:
                joined = os.path.join(self.cwd, each)  # noqa: PTH118 - `Path` takes parts away
                # Some programs take `..` away before they follow links, others after.
                yield os.path.realpath(joined)
                yield os.path.realpath(os.path.normpath(joined))

    def _place(self, path: str, *, writes: bool, below: bool) -> Region:
        folded = _folded(path)
        guarded = (*self._secret, *(self._installed if writes else ()))
        if any(_is_in(folded, each) or (below and _is_in(each, folded)) for each in guarded):
            return Region.GUARD
        parts = folded.split("/")
        if writes and (not _STARTERS.isdisjoint(parts) or _GITHUB_HOOKS in pairwise(parts)):
            return Region.GUARD
        if self.root is None or not _is_in(path, self.root) or _is_in(path, "/proc") or _is_in(path, "/dev"):
            return Region.OUTSIDE
        return Region.INSIDE


def _root(cwd: str) -> str | None:
    """Return the repository's folder, else the working folder; None: it is gone, or has all of the person's files."""
    try:
        folder = Path(cwd).resolve(strict=True)
        home = Path.home().resolve()
    except (OSError, RuntimeError, ValueError):
        return None
    own = [each for each in (folder, *folder.parents) if not home.is_relative_to(each)]
    if not folder.is_dir() or folder not in own:
        return None
    return str(next((each for each in own if os.path.lexists(each / ".git")), folder))


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _folded(path: str) -> str:
    return path.casefold()
