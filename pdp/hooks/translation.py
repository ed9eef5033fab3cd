"""Which entry of the manifest a client's built-in tool is, and with which arguments: one manifest for all clients."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pdp.hooks.call import HookLimitError, Kind
from pdp.hooks.shell import is_listed, runs_as_listed
from pdp.hooks.workspace import Region

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pdp.hooks.call import HookCall
    from pdp.hooks.workspace import Workspace

OUTSIDE: Final = "reach_outside"
GUARD_MARKING: Final = "guard.own"
_LISTED: Final = "run_listed_command"
# What else a listed command may come with; anything else may change how, where or with which rights it runs.
_IDLE: Final = {"description": str, "timeout": int, "timeout_ms": int}
_WEB: Final = re.compile(r"https?://[\w.-]+(:[0-9]+)?([/?#][!-~]*)?", re.ASCII | re.IGNORECASE)
_PATCH: Final = "*** Begin Patch"
_PATCHED: Final = re.compile(r"\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)")
_PATCH_LINE: Final = re.compile(_PATCHED.pattern + r"|\*\*\* End of File|(?:@@|[ +-]).*|")
_MOST_PATHS: Final = 1_000
_LONGEST_COMMAND: Final = 64 * 1024


class Translated(NamedTuple):
    """A proposal. `target`: what it touches, for a person to read; `markings`: of that."""

    tool: str
    arguments: dict[str, Any]
    target: str
    markings: tuple[str, ...] = ()


class Touched(NamedTuple):
    """The paths that a call names: what it reads, what it writes, and folders that it reads all of."""

    reads: Collection[str] = ()
    writes: Collection[str] = ()
    searches: Collection[str] = ()


def translate(call: HookCall, workspace: Workspace, commands: Mapping[str, Collection[str]]) -> Translated:
    """Return the proposal that a call is. An entry's target is null, and so refused, where a call does not say it.

    HookLimitError: it names more, or longer, paths and commands than are looked at.
    """
    if call.built_in is None:
        if any(workspace.region(path, writes=True) is Region.GUARD for path in touched(call, workspace).writes):
            return as_entry(call, OUTSIDE, call.tool, GUARD_MARKING)
        # Somebody else's tool may have the name of an entry.
        prefix = f"{call.client}." if call.tool in (*Kind, _LISTED, OUTSIDE) else ""
        return Translated(f"{prefix}{call.tool}", call.arguments, call.tool)
    kind, names = call.built_in
    if (targets := _targets(call)) is None:
        return as_entry(call, kind.value, None)
    target, region, tool = "\n".join(targets) or call.tool, Region.INSIDE, kind.value
    if kind is Kind.SHELL:
        is_idle = all(type(call.arguments[name]) is _IDLE.get(name) for name in call.arguments.keys() - set(names))
        if is_idle and is_listed(target, commands) and not workspace.has_foreign_repository():
            tool = _LISTED if runs_as_listed(target, call.cwd) else tool
        region = Region.GUARD if workspace.names_guard(_line(call)) else Region.INSIDE
    elif kind in (Kind.READ, Kind.WRITE, Kind.SEARCH):
        region = max(_regions(kind, [*targets, *_filters(call)], workspace))
    elif kind is Kind.FETCH and not _WEB.fullmatch(target):
        region = max(Region.OUTSIDE, workspace.region(target, below=True))
    markings = (GUARD_MARKING,) if region is Region.GUARD else ()
    return as_entry(call, tool if region is Region.INSIDE else OUTSIDE, target, *markings)


def touched(call: HookCall, workspace: Workspace) -> Touched:
    """Return the paths that a call names. HookLimitError: they are too many."""
    if call.built_in is None:
        paths = {text for text in _texts(call.arguments) if "/" in text or text.startswith(("~", "."))}
        if len(paths) > _MOST_PATHS:
            raise HookLimitError(f"{call.tool} has more than {_MOST_PATHS:,} paths")
        return Touched(paths, paths)
    kind, targets = call.built_in.kind, _targets(call) or []
    if kind is Kind.SHELL:
        words = workspace.words(_line(call))
        return Touched(words, words)
    if kind is Kind.WRITE:
        return Touched(writes=[path for target in targets for path in _written(target)])
    if kind is Kind.SEARCH:
        # A search for names reads no file: its pattern is one of its targets, or it has none.
        is_of_names = "pattern" in call.built_in.arguments or "pattern" not in call.arguments
        return Touched([*targets, *_filters(call)], searches=() if is_of_names else targets)
    is_file = kind is Kind.READ or (kind is Kind.FETCH and not _WEB.fullmatch("".join(targets)))
    return Touched(targets if is_file else ())


def _targets(call: HookCall) -> list[str] | None:
    """Return what the call's arguments name as its targets; None: one is absent or malformed."""
    kind, names = call.built_in or (None, ())
    named = [call.arguments.get(name) or (call.cwd if kind is Kind.SEARCH else None) for name in names]
    given = [each for value in named for each in (value if isinstance(value, list) else [value])]
    if len(given) > _MOST_PATHS:
        raise HookLimitError(f"{call.tool} has more than {_MOST_PATHS:,} paths")
    targets = [each for each in given if isinstance(each, str)]
    return targets if targets == given else None


def _filters(call: HookCall) -> list[str]:
    """Return the other texts of a search but what it looks for: a filter such as `glob` may name the file it reads."""
    if call.built_in is None or call.built_in.kind is not Kind.SEARCH:
        return []
    return _texts(
        {name: call.arguments[name] for name in call.arguments.keys() - {*call.built_in.arguments, "pattern"}}
    )


def _line(call: HookCall) -> str:
    """Return all texts of a command's call: a folder to run in may stand beside the command."""
    line = "\n".join(_texts(call.arguments))
    if len(line) > _LONGEST_COMMAND:
        raise HookLimitError(f"the command has {len(line):,} characters, at most {_LONGEST_COMMAND:,}")
    return line


def as_entry(call: HookCall, tool: str, target: str | None, *markings: str) -> Translated:
    """Return the call as the proposal of an entry."""
    return Translated(tool, {"tool": call.tool, "input": call.arguments, "target": target}, target or "", markings)


def shown(call: HookCall, translated: Translated, workspace: Workspace) -> str:
    """Return what a person is asked about: the entry, all of the target and other arguments, and where it runs."""
    names = call.built_in.arguments if call.built_in else ()
    # What the model says about its own call is left out.
    rest = {name: call.arguments[name] for name in call.arguments if name not in (*names, "description")}
    text = f"{translated.tool}: {_whole(translated.target, 2_000)}"
    text += f" with {_whole(json.dumps(rest, ensure_ascii=False), 1_000)}" * bool(rest)
    return text + f" in {_whole(call.cwd, 200)}" * (call.cwd != str(workspace.root))


def _whole(text: str, most: int) -> str:
    """Return a text with escapes for what does not print. Of a long one, head and tail and how much is left out."""
    printed = [each if each.isprintable() else each.encode("unicode_escape").decode() for each in text]
    escaped = "".join(printed)
    if len(escaped) <= most:
        return escaped
    head, tail = escaped[: most * 2 // 3], escaped[-most // 3 :]
    return f"{head} [... {len(escaped) - len(head) - len(tail):,} characters left out ...] {tail}"


def _regions(kind: Kind, targets: list[str], workspace: Workspace) -> Iterator[Region]:
    for target in targets:
        paths = [target]
        if kind is Kind.SEARCH:
            paths = [target.partition("{")[0] or "."]
            escapes = ".." in re.split(r"[/{},]", target) or re.search(r"[{,][/~]", target)
            yield Region.OUTSIDE if escapes else Region.INSIDE  # from wherever its pattern begins
        elif kind is Kind.WRITE:
            paths = _written(target)
        for path in paths:
            yield workspace.region(path, writes=kind is Kind.WRITE, below=kind is Kind.SEARCH)


def _written(target: str) -> list[str]:
    return (_patched(target.strip().split("\n")) or [""]) if _PATCH in target else [target]


def _patched(lines: list[str]) -> list[str]:
    """Return the files that a patch names; none where a line is not of its grammar: another reader may see others."""
    found = [match[1] for line in lines if (match := _PATCHED.fullmatch(line.strip()))]
    known = all(_PATCH_LINE.fullmatch(line) for line in lines[1:-1])
    known = known and lines[0] == _PATCH and lines[-1] == "*** End Patch" and len(found) <= _MOST_PATHS
    return found if known else []


def _texts(value: Any) -> list[str]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] if isinstance(value, str) else [text for each in inner for text in _texts(each)]
