"""Which entry of the manifest a client's built-in tool is, and with which arguments: one manifest for all clients."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pdp.hooks.call import Kind
from pdp.hooks.shell import is_listed
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


class Translated(NamedTuple):
    """A proposal. `target`: what it touches, for a person to read; `markings`: of that."""

    tool: str
    arguments: dict[str, Any]
    target: str
    markings: tuple[str, ...] = ()


def translate(call: HookCall, workspace: Workspace, commands: Mapping[str, Collection[str]]) -> Translated:
    """Return the proposal that a call is. An entry's target is null, and so refused, where a call does not say it."""
    texts = _texts(call.arguments)
    if call.built_in is None:
        paths = {text for text in texts if "/" in text or text.startswith(("~", "."))}
        if len(paths) > _MOST_PATHS or any(workspace.region(path, writes=True) is Region.GUARD for path in paths):
            return as_entry(call, OUTSIDE, call.tool, GUARD_MARKING)
        # Somebody else's tool may have the name of an entry.
        prefix = f"{call.client}." if call.tool in (*Kind, _LISTED, OUTSIDE) else ""
        return Translated(f"{prefix}{call.tool}", call.arguments, call.tool)
    kind, names = call.built_in
    named = [call.arguments.get(name) or (call.cwd if kind is Kind.SEARCH else None) for name in names]
    given = [each for value in named for each in (value if isinstance(value, list) else [value])]
    targets = [each for each in given if isinstance(each, str)]
    if targets != given or len(targets) > _MOST_PATHS:
        return as_entry(call, kind.value, None)
    target, region, tool = "\n".join(targets) or call.tool, Region.INSIDE, kind.value
    if kind is Kind.SHELL:
        is_idle = all(type(call.arguments[name]) is _IDLE.get(name) for name in call.arguments.keys() - set(names))
        if is_idle and is_listed(target, commands) and not workspace.has_foreign_repository():
            tool = _LISTED
        region = Region.GUARD if workspace.names_guard("\n".join(texts)) else Region.INSIDE
    elif kind in (Kind.READ, Kind.WRITE, Kind.SEARCH):
        region = max(_regions(kind, targets, workspace))
    elif kind is Kind.FETCH and not _WEB.fullmatch(target):
        region = max(Region.OUTSIDE, workspace.region(target, below=True))
    markings = (GUARD_MARKING,) if region is Region.GUARD else ()
    return as_entry(call, tool if region is Region.INSIDE else OUTSIDE, target, *markings)


def as_entry(call: HookCall, tool: str, target: str | None, *markings: str) -> Translated:
    """Return the call as the proposal of an entry."""
    return Translated(tool, {"tool": call.tool, "input": call.arguments, "target": target}, target or "", markings)


def _regions(kind: Kind, targets: list[str], workspace: Workspace) -> Iterator[Region]:
    for target in targets:
        paths = [target]
        if kind is Kind.SEARCH:
            paths = [target.partition("{")[0] or "."]
            escapes = ".." in re.split(r"[/{},]", target) or re.search(r"[{,][/~]", target)
            yield Region.OUTSIDE if escapes else Region.INSIDE  # from wherever its pattern begins
        elif kind is Kind.WRITE and _PATCH in target:
            paths = _patched(target.strip().split("\n")) or [""]
        for path in paths:
            yield workspace.region(path, writes=kind is Kind.WRITE, below=kind is Kind.SEARCH)


def _patched(lines: list[str]) -> list[str]:
    """Return the files that a patch names; none where a line is not of its grammar: another reader may see others."""
    found = [match[1] for line in lines if (match := _PATCHED.fullmatch(line.strip()))]
    known = all(_PATCH_LINE.fullmatch(line) for line in lines[1:-1])
    known = known and lines[0] == _PATCH and lines[-1] == "*** End Patch" and len(found) <= _MOST_PATHS
    return found if known else []


def _texts(value: Any) -> list[str]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] if isinstance(value, str) else [text for each in inner for text in _texts(each)]
