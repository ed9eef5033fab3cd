"""Which entry of the manifest a client's built-in tool is, and with which arguments: one manifest for all clients."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from pdp.hooks.call import Kind
from pdp.hooks.shell import is_listed
from pdp.hooks.workspace import Region

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pdp.hooks.call import HookCall
    from pdp.hooks.workspace import Workspace

LISTED: Final = "run_listed_command"
OUTSIDE: Final = "reach_outside"
GUARD_MARKING: Final = "guard.own"
_MARKINGS: Final = {True: (GUARD_MARKING,), False: ()}
_ENTRIES: Final = {
    Kind.READ: "read_file",
    Kind.WRITE: "write_file",
    Kind.SEARCH: "search_files",
    Kind.FETCH: "fetch_url",
    Kind.WEB_SEARCH: "search_web",
    Kind.SHELL: "run_command",
    Kind.DELEGATE: "delegate_task",
    Kind.PLAN: "plan_work",
}
# What else a listed command may come with; anything else may change how, where or with which rights it runs.
_IDLE: Final = {"description": str, "timeout": int, "timeout_ms": int}
_PATCH: Final = "*** Begin Patch"
_PATCHED: Final = re.compile(r"\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)")
_PATCH_LINE: Final = re.compile(_PATCHED.pattern + r"|\*\*\* End of File|(?:@@|[ +-]).*|")
_ALTERNATIVES: Final = re.compile(r"[{},]")
_MOST_TEXTS: Final = 2_000


class Translated(NamedTuple):
    """A proposal. `markings`: of what it touches; `target`: what is touched, for a person to read."""

    tool: str
    arguments: dict[str, Any]
    target: str
    markings: tuple[str, ...] = ()


def translate(call: HookCall, workspace: Workspace, commands: Mapping[str, Collection[str]]) -> Translated:
    """Return the proposal that a call is.

    Arguments of an entry are `{tool, input, target}`; without target, and so refused, where the call does not name one.
    """
    if call.built_in is None:
        texts = _texts(call.arguments)
        if len(texts) > _MOST_TEXTS or any(workspace.place(text, writes=True) is Region.GUARD for text in texts):
            return restricted(call, call.tool, *_MARKINGS[len(texts) <= _MOST_TEXTS])
        return Translated(call.tool, call.arguments, call.tool)
    kind, names = call.built_in
    targets = [*_targets(call, kind, names)]
    if None in targets:
        return Translated(_ENTRIES[kind], {"tool": call.tool, "input": call.arguments}, "")
    target = "\n".join(map(str, targets))
    if kind is Kind.SHELL:
        is_guard = workspace.names_guard(target) or any(
            workspace.place(text) is Region.GUARD for text in _texts(call.arguments)
        )
        is_idle = all(type(call.arguments[name]) is _IDLE.get(name) for name in call.arguments.keys() - set(names))
        listed = is_idle and is_listed(target, commands) and not workspace.has_foreign_repository()
        return _entry(call, LISTED if listed else _ENTRIES[kind], target, *_MARKINGS[is_guard])
    worst = Region.INSIDE
    if kind in (Kind.READ, Kind.WRITE, Kind.SEARCH):
        worst = max(_places(kind, targets, workspace))
    elif kind is Kind.FETCH and not _is_web(target):
        worst = max(Region.OUTSIDE, workspace.place(target, below=True))
    if worst is not Region.INSIDE:
        return restricted(call, target, *_MARKINGS[worst is Region.GUARD])
    return _entry(call, _ENTRIES[kind], target)


def restricted(call: HookCall, target: str, *markings: str) -> Translated:
    """Return the call as one that reaches beyond its workspace; nobody is cleared for what guards the agent."""
    return _entry(call, OUTSIDE, target, *markings)


def entries_of(call: HookCall, translated: Translated) -> frozenset[str]:
    """Return the entries that a call is one of: also the one that it would be within its workspace."""
    inner = call.tool if call.built_in is None else _ENTRIES[call.built_in.kind]
    return frozenset((translated.tool, inner if translated.tool == OUTSIDE else translated.tool))


def _entry(call: HookCall, tool: str, target: str, *markings: str) -> Translated:
    return Translated(tool, {"tool": call.tool, "input": call.arguments, "target": target}, target, markings)


def _targets(call: HookCall, kind: Kind, names: tuple[str, ...]) -> Iterator[str | None]:
    """Yield what the call names; None: it does not name what its tool needs."""
    for name in names:
        value = call.arguments.get(name)
        if value is None and kind is Kind.SEARCH:
            value = call.cwd
        values = value if isinstance(value, list) and value else [value]
        yield from (each if isinstance(each, str) else None for each in values)


def _places(kind: Kind, targets: list[Any], workspace: Workspace) -> Iterator[Region]:
    for target in targets:
        paths = [target]
        if kind is Kind.WRITE and target.strip().startswith(_PATCH):
            found = _patched(target.strip().split("\n"))
            yield Region.INSIDE if found else Region.OUTSIDE
            paths = found
        elif kind is Kind.SEARCH:
            paths = [part for part in _ALTERNATIVES.split(target) if part] or [workspace.cwd]
        for path in paths:
            yield workspace.place(path, writes=kind is Kind.WRITE, below=kind is Kind.SEARCH)


def _patched(lines: list[str]) -> list[str]:
    """Return the files that a patch names; none where a line is not of its grammar: another reader may see others."""
    found = [match[1] for line in lines if (match := _PATCHED.fullmatch(line.strip()))]
    known = all(_PATCH_LINE.fullmatch(line) for line in lines[1:-1])
    return found if known and lines[0] == _PATCH and lines[-1] == "*** End Patch" else []


def _is_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable()
    except ValueError:
        return False


def _texts(value: Any) -> list[str]:
    """Return the texts in a JSON value."""
    found, rest = [], [value]
    while rest:
        each = rest.pop()
        if isinstance(each, str):
            found.append(each)
        elif isinstance(each, list | dict):
            rest += each.values() if isinstance(each, dict) else each
    return found
