"""Rules of a repository's own file, `.pdp-hook.yaml`: calls that are denied or held, programs that are not listed.

A rule names an entry of the manifest, tools of a server (`mcp__SERVER`, `mcp__SERVER__*`), or paths (`Read(./.env)`).
A rule that can match nothing is a fault of the file, and a faulty file denies every call.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast

from pydantic import BaseModel, BeforeValidator, ValidationError, ValidationInfo

from pdp.documents import FieldError, faults_of, nearest, read_document
from pdp.errors import FileFaultsError, UsageError
from pdp.hooks.workspace import folded

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from pdp.hooks.translation import Touched
    from pdp.hooks.workspace import Workspace

REPOSITORY_FILE: Final = ".pdp-hook.yaml"
_FORMS: Final = "write an entry, mcp__SERVER, mcp__SERVER__TOOL, Read(PATH), Edit(PATH) or Write(PATH)"
_PATH_FORMS: Final = "write a path from this folder (./a), your home (~/a) or the root (//a), with `*`, `**` or `?`"
_PATHS: Final = re.compile(r"(Read|Edit|Write)\((.*)\)", re.DOTALL)
_NO_PATH: Final = re.compile(r"[\[\]{}\\]|^!|^/(?!/)|^~(?!/)|[*?].*/\.\.?(/|$)|^[./ ]*$")


class _Known(NamedTuple):
    """What rules can be about: entries of the manifest, programs of commands.yaml, and the folder of the file."""

    entries: Collection[str]
    programs: Collection[str]
    folder: Path


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule about tools, by their names, or about paths that are read or written.

    Attributes:
        starts: the folder or file that its paths begin with, as `folded`: by its name, and behind links.
        segments: the parts of the path after that; any number of parts may stand between two segments.
    """

    names: re.Pattern[str] | None = None
    reads: bool = False
    starts: tuple[str, ...] = ()
    segments: tuple[tuple[str, ...], ...] = ()

    def matches(self, names: Collection[str], touched: Touched, workspace: Workspace) -> bool:
        """Return whether a call has a name, or touches a path, that the rule is about."""
        if self.names is not None:
            return any(map(self.names.fullmatch, names))
        paths = {each for path in (touched.reads if self.reads else touched.writes) for each in workspace.names(path)}
        return any(
            path.startswith(start) and self._goes_on(path.removeprefix(start).split("/")[:-1])
            for path in paths
            for start in self.starts
        )

    def matches_below(self, touched: Touched, workspace: Workspace) -> bool:
        """Return whether a search reads all of a folder in which the rule may have a file."""
        folders = {each for path in touched.searches for each in workspace.names(path)}
        is_wild = self.segments != ((),)
        pairs = ((each, start) for each in folders for start in self.starts if self.reads)
        return any(start.startswith(each) or (is_wild and each.startswith(start)) for each, start in pairs)

    def _goes_on(self, parts: list[str]) -> bool:
        at = 0
        for number, segment in enumerate(self.segments):
            tries = range(at, len(parts) - len(segment) + 1)[: None if number else 1]
            fits = (each + len(segment) for each in tries if all(map(fnmatchcase, parts[each:], segment)))
            if (at := next(fits, -1)) < 0:
                return False
        return True  # all that lies below is meant as well


def _rule(given: Any, info: ValidationInfo) -> Rule:
    known = cast("_Known", info.context)
    if not isinstance(given, str):
        raise FieldError("must be a string")
    if found := _PATHS.fullmatch(given):
        return _path_rule(found[2], known.folder, reads=found[1] == "Read")
    if given in known.entries:
        return Rule(re.compile(re.escape(given)))
    hint = nearest(given, known.entries) or _FORMS
    if not given.startswith("mcp__"):
        raise FieldError("can match nothing: it is not an entry of the manifest", hint)
    # A client may put a source in front (`project.mcp__...`), or write one underscore for two.
    name = re.escape(given.removesuffix("__*")).replace(r"\*", ".*")
    names = re.compile(rf"(\w+\.)?({name}(__.+)?|{name.replace('__', '_')}(_.+)?)")
    if not any(map(names.fullmatch, known.entries)):
        raise FieldError("can match nothing: the manifest has no such tool", hint)
    return Rule(names)


def _path_rule(pattern: str, folder: Path, *, reads: bool) -> Rule:
    if not pattern.isprintable() or _NO_PATH.search(pattern):
        raise FieldError("can match nothing: it is not a path of a rule", _PATH_FORMS)
    path = pattern[1:] if pattern.startswith("//") else os.path.expanduser(pattern)  # noqa: PTH111 - a text
    # A name without a folder is meant wherever it is, as in .gitignore.
    path = str(folder / path) if "/" in path.rstrip("/") else f"{folder}/**/{path}"
    start = re.split(r"/(?=[^/]*[*?])", path, maxsplit=1)[0]
    rest = folded(path.removeprefix(start)).strip("/")
    segments = [segment.strip("/") for segment in re.split(r"(?:^|(?<=/))\*\*(?=/|$)", rest)]
    starts = {folded(os.path.realpath(start)), folded(os.path.normpath(start))}
    return Rule(None, reads, tuple(starts), tuple(tuple(filter(None, each.split("/"))) for each in segments))


def _program(given: Any, info: ValidationInfo) -> str:
    known = cast("_Known", info.context)
    if given not in known.programs:
        hint = nearest(str(given), known.programs) or f"known there: {', '.join(known.programs)}"
        raise FieldError("can match nothing: it is not a program of commands.yaml", hint)
    return str(given)


class RepositoryRules(BaseModel, frozen=True, extra="forbid", arbitrary_types_allowed=True):
    """What the files of a workspace add. `commands_without`: programs of commands.yaml that are not listed here."""

    deny: tuple[Annotated[Rule, BeforeValidator(_rule)], ...] = ()
    hold: tuple[Annotated[Rule, BeforeValidator(_rule)], ...] = ()
    commands_without: tuple[Annotated[str, BeforeValidator(_program)], ...] = ()


def read_rules(folders: Collection[Path], entries: Collection[str], programs: Collection[str]) -> RepositoryRules:
    """Return what the files of some folders say together. FileFaultsError, UsageError: one is faulty."""
    rules = RepositoryRules()
    for file in (folder / REPOSITORY_FILE for folder in folders):
        if not os.path.lexists(file):
            continue
        if file.is_symlink() or not file.is_file():
            raise UsageError(f"{file}: is not a regular file", hint="write the rules into the file itself")
        document = read_document(file)
        try:
            found = RepositoryRules.model_validate(document.value, context=_Known(entries, programs, file.parent))
        except ValidationError as error:
            raise FileFaultsError(faults_of(error, document, RepositoryRules)) from None
        rules = rules.model_copy(update={name: (*getattr(rules, name), *members) for name, members in found})
    return rules
