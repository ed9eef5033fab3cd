"""A repository's own rules in `.pdp-hook.yaml`, which deny calls, hold calls, or exclude programs of commands.yaml.

A rule that can match no call is a fault in the file, and a faulty file denies every call.
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
_NOTHING: Final = "matches nothing, because the manifest has no such entry or tool"
_FORMS: Final = "write an entry's name, mcp__SERVER, mcp__SERVER__TOOL, Read(PATH), Edit(PATH) or Write(PATH)"
_PATH_FORMS: Final = "write a path from this folder (./a), your home (~/a) or the root (//a), with few wildcards"
_PATHS: Final = re.compile(r"(Read|Edit|Write)\(\s*(.*?)\s*\)", re.DOTALL)
# Patterns with more wildcards are rejected, because matching them would take long.
_NO_PATH: Final = re.compile(
    r"[\[\]{}\\]|^!|^/(?!/)|^~(?!/)|[*?].*/\.\.?(/|$)|^[./ ]*$|(\*\*.*){3}|(\*[^/*]+){2}\*|\*{3}"
)
_WILD: Final = {"**/": "([^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class HookRule(NamedTuple):
    """A pattern for a call's names, reads or writes, as `about` says. All matching paths begin with `start`.

    `place` is where the rule is written.
    """

    about: str
    pattern: re.Pattern[str]
    start: str = ""
    place: str = ""

    def matches(self, targets: Mapping[str, Collection[str]]) -> bool:
        """Return whether the rule matches one of a call's names or `folded` paths."""
        return any(map(self.pattern.fullmatch, targets[self.about]))

    def may_match_below(self, targets: Mapping[str, Collection[str]]) -> bool:
        """Return whether the call searches a folder that may contain a file matched by this rule."""
        folders = targets["searches"] if self.about == "reads" else ()
        return any(self.start.startswith(each) or each.startswith(self.start) for each in folders)


def _rule(given: Any, info: ValidationInfo) -> HookRule:
    entries, _, folder = cast("_Known", info.context)
    if not isinstance(given, str):
        raise FieldError("must be a string")
    if match := _PATHS.fullmatch(given):
        return _path_rule("reads" if match[1] == "Read" else "writes", match[2], folder)
    # A client may add a source as a prefix (`project.mcp__...`), or write one underscore instead of two.
    name = re.escape(given.removesuffix("__*")).replace(r"\*", ".*")
    tools = re.compile(rf"(\w+\.)?({name}(__.+)?|{name.replace('__', '_')}(_.+)?)")
    pattern = tools if given.startswith("mcp__") else re.compile(re.escape(given))
    if given.count("*") > 3:  # noqa: PLR2004 - the message names the limit
        raise FieldError("has more than 3 `*`, which take long to match", "write several rules")
    if not any(map(pattern.fullmatch, entries)):
        raise FieldError(_NOTHING, nearest(given, entries) or _FORMS)
    return HookRule("names", pattern)


def _path_rule(about: str, given: str, folder: Path) -> HookRule:
    if not given.isprintable() or _NO_PATH.search(given):
        raise FieldError("matches nothing, because it is not a path for rules", _PATH_FORMS)
    path = given[1:] if given.startswith("//") else os.path.expanduser(given)  # noqa: PTH111 - this is a text
    # A name without a folder matches in every folder, as in .gitignore. A path covers all files below it.
    path = str(folder / path) if "/" in path.rstrip("/") else f"{folder}/**/{path}"
    start = re.split(r"/(?=[^/]*[*?])", path, maxsplit=1)[0]
    rest = "".join(
        _WILD.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*\*|\*|\?)", folded(path[len(start) + 1 :]))
    )
    start_pattern = re.escape(real := folded(os.path.realpath(start)))
    return HookRule(about, re.compile(f"{start_pattern}{rest if path != start else ''}.*", re.DOTALL), real)


def _program(given: Any, info: ValidationInfo) -> str:
    if given not in (programs := cast("_Known", info.context)[1]):
        hint = nearest(str(given), programs) or f"listed there: {', '.join(programs)}"
        raise FieldError("matches nothing, because commands.yaml does not list the program", hint)
    return str(given)


class RepositoryRules(BaseModel, frozen=True, extra="forbid"):
    """The rules of a workspace. `commands_without` are programs of commands.yaml that may not run in this workspace."""

    deny: tuple[Annotated[HookRule, PlainValidator(_rule)], ...] = ()
    hold: tuple[Annotated[HookRule, PlainValidator(_rule)], ...] = ()
    commands_without: tuple[Annotated[str, PlainValidator(_program)], ...] = ()


def repository_rules(folders: Iterable[Path], entries: Collection[str], programs: Collection[str]) -> RepositoryRules:
    """Return the combined rules of the files in these folders. Raise `UsageError` or `FileFaultsError` for faults."""
    rules = RepositoryRules()
    for file in filter(os.path.lexists, (folder / REPOSITORY_FILE for folder in folders)):
        if file.is_symlink() or not file.is_file():
            raise UsageError(f"{file}: is not a regular file", hint="write the rules into the file itself")
        document = read_document(file)
        try:
            stated = RepositoryRules.model_validate(document.value, context=(entries, programs, file.parent))
        except ValidationError as error:
            raise FileFaultsError(faults_of(error, document, RepositoryRules)) from None
        placed = {
            name: [
                rule._replace(place=str(document.place((name, at)))) for at, rule in enumerate(getattr(stated, name))
            ]
            for name in ("deny", "hold")
        }
        added = {**dict(stated), **placed}
        rules = rules.model_copy(update={name: (*getattr(rules, name), *added[name]) for name in added})
    return rules
