"""Rules of `.pdp-hook.yaml`, a repository's own file: it denies or holds calls, and takes programs off the list.

A rule that can match nothing is a fault of the file, and a faulty file denies every call.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast

from pydantic import BaseModel, PlainValidator, ValidationError, ValidationInfo

from pdp.documents import FieldError, faults_of, nearest, read_document
from pdp.errors import FileFaultsError, UsageError
from pdp.hooks.workspace import folded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    _Known = tuple[Collection[str], Collection[str], Path]

REPOSITORY_FILE: Final = ".pdp-hook.yaml"
_NOTHING: Final = "can match nothing: it is not an entry or a tool of the manifest"
_FORMS: Final = "write an entry, mcp__SERVER, mcp__SERVER__TOOL, Read(PATH), Edit(PATH) or Write(PATH)"
_PATH_FORMS: Final = "write a path from this folder (./a), your home (~/a) or the root (//a), with few wildcards"
_PATHS: Final = re.compile(r"(Read|Edit|Write)\(\s*(.*?)\s*\)", re.DOTALL)
# More wildcards than these would take long to match.
_NO_PATH: Final = re.compile(
    r"[\[\]{}\\]|^!|^/(?!/)|^~(?!/)|[*?].*/\.\.?(/|$)|^[./ ]*$|(\*\*.*){3}|(\*[^/*]+){2}\*|\*{3}"
)
_WILD: Final = {"**/": "([^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class HookRule(NamedTuple):
    """A pattern of names, or of paths that a call reads or writes. `start`: the prefix of all these paths."""

    about: str
    pattern: re.Pattern[str]
    start: str = ""

    def matches(self, found: Mapping[str, Collection[str]]) -> bool:
        """Return whether the rule matches a call with these names and `folded` paths."""
        return any(map(self.pattern.fullmatch, found[self.about]))

    def may_match_below(self, found: Mapping[str, Collection[str]]) -> bool:
        """Return whether a call searches a folder that may contain a file of this rule."""
        folders = found["searches"] if self.about == "reads" else ()
        return any(self.start.startswith(each) or each.startswith(self.start) for each in folders)


def _rule(given: Any, info: ValidationInfo) -> HookRule:
    entries, _, folder = cast("_Known", info.context)
    if not isinstance(given, str):
        raise FieldError("must be a string")
    if found := _PATHS.fullmatch(given):
        return _path_rule("reads" if found[1] == "Read" else "writes", found[2], folder)
    # A client may put a source in front (`project.mcp__...`), or write one underscore for two.
    name = re.escape(given.removesuffix("__*")).replace(r"\*", ".*")
    tools = re.compile(rf"(\w+\.)?({name}(__.+)?|{name.replace('__', '_')}(_.+)?)")
    pattern = tools if given.startswith("mcp__") else re.compile(re.escape(given))
    if given.count("*") > 3:  # noqa: PLR2004 - the message says it
        raise FieldError("has more than 3 `*`, which take long to match", "write several rules")
    if not any(map(pattern.fullmatch, entries)):
        raise FieldError(_NOTHING, nearest(given, entries) or _FORMS)
    return HookRule("names", pattern)


def _path_rule(about: str, given: str, folder: Path) -> HookRule:
    if not given.isprintable() or _NO_PATH.search(given):
        raise FieldError("can match nothing: it is not a path of a rule", _PATH_FORMS)
    path = given[1:] if given.startswith("//") else os.path.expanduser(given)  # noqa: PTH111 - a text
    # A name without a folder counts in every folder, as in .gitignore. A path covers all files below it.
    path = str(folder / path) if "/" in path.rstrip("/") else f"{folder}/**/{path}"
    start = re.split(r"/(?=[^/]*[*?])", path, maxsplit=1)[0]
    rest = "".join(
        _WILD.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*\*|\*|\?)", folded(path[len(start) + 1 :]))
    )
    start_pattern = re.escape(real := folded(os.path.realpath(start)))
    return HookRule(about, re.compile(f"{start_pattern}{rest if path != start else ''}.*", re.DOTALL), real)


def _program(given: Any, info: ValidationInfo) -> str:
    if given not in (programs := cast("_Known", info.context)[1]):
        hint = nearest(str(given), programs) or f"known there: {', '.join(programs)}"
        raise FieldError("can match nothing: it is not a program of commands.yaml", hint)
    return str(given)


class RepositoryRules(BaseModel, frozen=True, extra="forbid"):
    """The rules of a workspace. `commands_without`: programs that commands.yaml lists and this workspace does not."""

    deny: tuple[Annotated[HookRule, PlainValidator(_rule)], ...] = ()
    hold: tuple[Annotated[HookRule, PlainValidator(_rule)], ...] = ()
    commands_without: tuple[Annotated[str, PlainValidator(_program)], ...] = ()


def repository_rules(folders: Iterable[Path], entries: Collection[str], programs: Collection[str]) -> RepositoryRules:
    """Return the rules of the files in some folders, joined. FileFaultsError, UsageError: a file is faulty."""
    rules = RepositoryRules()
    for file in filter(os.path.lexists, (folder / REPOSITORY_FILE for folder in folders)):
        if file.is_symlink() or not file.is_file():
            raise UsageError(f"{file}: is not a regular file", hint="write the rules into the file itself")
        document = read_document(file)
        try:
            found = RepositoryRules.model_validate(document.value, context=(entries, programs, file.parent))
        except ValidationError as error:
            raise FileFaultsError(faults_of(error, document, RepositoryRules)) from None
        rules = rules.model_copy(update={name: (*getattr(rules, name), *members) for name, members in found})
    return rules
