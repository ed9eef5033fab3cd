"""Translate a client's call into a proposal for a tool of the manifest, so that all clients share one manifest."""

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pdp.hooks.call import HookCall, HookLimitError, Kind
from pdp.hooks.shapes import CommandShape
from pdp.hooks.shell import listed
from pdp.hooks.workspace import Region, Workspace

OUTSIDE: Final = "reach_outside"
GUARD_MARKING: Final = "guard.own"
_LISTED: Final = "run_listed_command"
_SESSION: Final = "run_session_command"
_DESCRIPTION: Final = "description"  # In this argument the model describes its command, so the argument has no effect.
# Arguments that do not change how, where or with which rights a listed command runs.
_IDLE: Final = {_DESCRIPTION: str, "timeout": int, "timeout_ms": int}
_WEB: Final = re.compile(r"https?://[\w.-]+(:[0-9]+)?([/?#][!-~]*)?", re.ASCII | re.IGNORECASE)
_PATCH: Final = "*** Begin Patch"
_PATCHED: Final = re.compile(r"\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)")
_PATCH_LINE: Final = re.compile(_PATCHED.pattern + r"|\*\*\* End of File|(?:@@|[ +-]).*|")
_BLANK: Final = "\u115f\u1160\u2800\u3164\uffa0"  # Letters and signs that are displayed like spaces.
_PATCHES: Final = ("command", "input")  # The names of arguments that can contain a patch.


class Touched(NamedTuple):
    """The paths in a call: files to read, files to write, and folders to search as a whole."""

    reads: Collection[str] = ()
    writes: Collection[str] = ()
    searches: Collection[str] = ()


class Translated(NamedTuple):
    """A proposal for a call. `target` is the path, URL or command, for a person to read. `markings` classify it.

    `place` is the file and line of the rule by which the proposal is for this tool. `shape` is the text of a command's
    shape. Both are empty if there is no rule or shape.
    """

    tool: str
    arguments: dict[str, Any]
    target: str
    markings: tuple[str, ...] = ()
    touched: Touched = Touched()
    place: str = ""
    shape: str = ""


def translate(call: HookCall, workspace: Workspace, commands: Mapping[str, tuple[CommandShape, ...]]) -> Translated:
    """Return the proposal for a call. Without a target, the proposal fails the schema. Raises `HookLimitError`."""
    kind, names = call.built_in or (None, ())
    absent = call.cwd if kind is Kind.SEARCH else None
    named: list[tuple[str, Any]] = [(name, call.arguments.get(name) or absent) for name in names]
    given = [(name, each) for name, value in named for each in (value if isinstance(value, list) else [value])]
    texts = _texts([*call.arguments.values()])
    lines = {text for text in texts if "\n" not in text.strip()}
    if kind is None:
        paths = {text for text in lines if re.search("^[~.]|/", text) or os.path.lexists(f"{call.cwd}/{text}")}
        if any(workspace.region(path, writes=True) is Region.GUARD for path in paths):
            return as_entry(call, OUTSIDE, call.tool, GUARD_MARKING)
        # An MCP server's tool may have the same name as a manifest entry, so the client's name is put in front.
        prefix = f"{call.client}." if call.tool in (*Kind, _LISTED, _SESSION, OUTSIDE) else ""
        return Translated(f"{prefix}{call.tool}", call.arguments, call.tool, (), Touched(lines, lines))
    targets = [each for _, each in given if isinstance(each, str)]
    if len(targets) < len(given):
        return as_entry(call, kind.value, None)
    target, region, tool, touched = "\n".join(targets) or call.tool, Region.INSIDE, kind.value, Touched()
    added: dict[str, Any] = {}
    decisive = ""
    rest = {name: value for name, value in call.arguments.items() if name not in names}
    if kind is Kind.SHELL:
        touched, region = _run("\n".join(texts), rest, workspace)
        is_idle = all(type(value) is _IDLE.get(name) for name, value in rest.items())
        match = listed(target, commands, workspace, call.cwd) if is_idle and len(targets) == 1 else None
        if match is not None:
            tool, added = _SESSION if match.once else _LISTED, {"shape": match.shape, "folder": call.cwd}
            decisive = match.decisive
            touched = Touched({*touched.reads, *match.paths}, {*touched.writes, *match.paths}, match.searches)
    elif kind is Kind.WRITE:
        written = [path for name, each in given for path in (_patched(each) if name in _PATCHES else [each])]
        # After a patch moves a file, the file can be read under its new name.
        touched = Touched(written if "*** Move to: " in target else (), written)
        regions = [workspace.region(path, writes=True) for path in touched.writes]
        region = max(*regions, *map(workspace.region, touched.reads), Region.INSIDE)
    elif kind is Kind.SEARCH:
        # A filter such as `glob` may name the file that is read, so it counts as a path. The pattern does not name
        # files.
        filters = _texts([rest[name] for name in rest if name != "pattern"])
        region = max(_searched(path, workspace) for path in (*targets, *filters))
        touched = Touched([*targets, *filters], searches=targets if rest and "pattern" not in names else ())
    elif kind is Kind.READ or (kind is Kind.FETCH and not _WEB.fullmatch(target)):
        region = max(workspace.region(path, below=kind is Kind.FETCH) for path in targets)
        touched, region = Touched(targets), region if kind is Kind.READ else max(Region.OUTSIDE, region)
    markings = (GUARD_MARKING,) if region is Region.GUARD else ()
    tool = tool if region is Region.INSIDE else OUTSIDE
    done = as_entry(call, tool, target, *markings)
    arguments = {**done.arguments, **(added if tool == _SESSION else {})}
    return done._replace(arguments=arguments, touched=touched, shape=decisive)


def acting(call: HookCall) -> HookCall:
    """Return a call without the model's description of a command, which has no effect."""
    is_described = call.built_in is not None and call.built_in.kind is Kind.SHELL
    if not is_described or not isinstance(call.arguments.get(_DESCRIPTION), str):
        return call
    return replace(call, arguments={name: call.arguments[name] for name in call.arguments if name != _DESCRIPTION})


def as_entry(call: HookCall, tool: str, target: str | None, *markings: str) -> Translated:
    """Return a proposal for the manifest tool `tool` that contains the client's call."""
    return Translated(tool, {"tool": call.tool, "input": call.arguments, "target": target}, target or "", markings)


def shown(call: HookCall, translated: Translated, workspace: Workspace) -> str:
    """Return the text that a person approves: tool, target, other arguments, and the folder if it is not the root.

    The text ends with the model's description of a command.
    """
    names = call.built_in.arguments if call.built_in is not None else ()
    arguments = acting(call).arguments
    rest = {name: arguments[name] for name in arguments if name not in names}
    # Short arguments are shown first, so that a long one cannot push the others out of the text.
    rest = dict(sorted(rest.items(), key=lambda item: len(str(item[1]))))
    text = f"{translated.tool}: {_whole(translated.target, 2_000)}"
    text += f" with {_whole(json.dumps(rest, ensure_ascii=False), 1_000)}" if rest else ""
    # A call through the service comes from another machine, so the policy and the call share no folder.
    where = "a folder that is not shared" if call.cwd.startswith(os.devnull) else _whole(call.cwd, 200)
    text += f" in {where}" if call.cwd != str(workspace.root) else ""
    said = call.arguments[_DESCRIPTION] if arguments is not call.arguments else ""
    return text + (f" (the agent says: {json.dumps(_whole(said, 200), ensure_ascii=False)})" if said else "")


def _whole(text: str, most: int) -> str:
    """Return a text with invisible characters escaped. A long text is cut in the middle, with a mark."""
    text = "".join(each if each.isprintable() and each not in _BLANK else ascii(each)[1:-1] for each in text)
    cut = len(text) - most
    return text if cut <= 0 else f"{text[: most // 2]} [... {cut:,} characters left out ...] {text[-most // 2 :]}"


def _run(line: str, rest: dict[str, Any], workspace: Workspace) -> tuple[Touched, Region]:
    """Return the paths in a command line, and their region. An argument in `rest` may name the command's folder."""
    words = workspace.words(line)
    beside = {name: value for name, value in rest.items() if name != _DESCRIPTION}
    folders = _texts([*beside.values()])
    if len(folders) > 8 or len(json.dumps(beside)) > 1_000:  # noqa: PLR2004 - the message names the limit
        raise HookLimitError("the arguments beside the command have more than 8 texts, or more than 1,000 characters")
    paths = words | {os.path.join(folder, word) for folder in folders for word in words}  # noqa: PTH118 - texts
    return Touched(paths, paths), Region.GUARD if workspace.names_guard(line, words) else Region.INSIDE


def _searched(target: str, workspace: Workspace) -> Region:
    # Each alternative in braces may name a file, so each is checked.
    start, _, rest = target.partition("{")
    pieces = [start, *(start + piece.lstrip("/") for piece in re.split("[{},]", rest))]
    # With these parts, the pattern can match files outside of its folder.
    escapes = ".." in re.split(r"[/{},]", target) or re.search(r"[{,][/~]", target)
    region = max(workspace.region(piece or ".", below=True) for piece in pieces)
    return max(region, Region.OUTSIDE) if escapes else region


def _patched(patch: str) -> list[str]:
    """Return the files that a patch names, or one empty name if the patch is not understood."""
    lines = patch.strip().split("\n")
    paths = [match[1] for line in lines if (match := _PATCHED.fullmatch(line.strip()))]
    known = all(_PATCH_LINE.fullmatch(line) for line in lines[1:-1])
    known = known and lines[0] == _PATCH and lines[-1] == "*** End Patch"
    return paths if known and paths else [""]


def _texts(value: Any) -> list[str]:
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] if isinstance(value, str) else [text for each in inner for text in _texts(each)]
