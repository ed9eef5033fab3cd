"""Pinned tool declarations. A tool whose declaration has changed is hidden and denied until it is pinned again."""

import difflib
import getpass
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import mcp_types as types
import orjson
from pydantic import RootModel

from pdp.audit.file import replace_file
from pdp.decision import Decision
from pdp.documents import read_document, read_record, written_value
from pdp.engine.protocol import DECISION, Engine
from pdp.errors import EngineError, FileFaultsError, UsageError
from pdp.gateway.config import GatewaySettings
from pdp.gateway.methods import GET_PROMPT, READ_RESOURCE
from pdp.gateway.upstream import ASKING, Upstream
from pdp.json import canonical
from pdp.manifest.foreign.dialects import ASK_AUTHOR, translated
from pdp.manifest.load import load_effective

Pins = dict[str, dict[str, dict[str, Any]]]
"""The declaration of each tool, by server and by the server's name for the tool."""

INSTRUCTIONS: Final = "(instructions)"
"""The key of a server's instructions for the model. No tool can have this name."""

_PINNED: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
_STARTER: Final = Path(__file__).parent / "starter"


class ToolChangedError(EngineError):
    """A server now declares a tool differently from its pinned declaration, or no longer declares the tool."""

    code = "gateway.tool_changed"


class PinnedEngine(Engine):
    """Denies calls of tools that are not in `unchanged`. `engine` decides the calls of all other tools."""

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self.unchanged = {READ_RESOURCE, GET_PROMPT}
        self._engine = engine

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a document. Raise `ToolChangedError` if the tool changed; errors of the engine are passed on."""
        self._check(body, document)
        return self._engine.evaluate(body, document)

    async def aevaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Async variant of `evaluate`."""
        self._check(body, document)
        return await self._engine.aevaluate(body, document)

    async def adecide_body(self, body: bytes, document: str = DECISION) -> Decision:
        """Decide a request. If the decision has obligations, mark the client's request as `quiet`; see `Asking`."""
        decision = await super().adecide_body(body, document)
        if (asking := ASKING.get()) is not None:
            asking.quiet |= bool(decision.obligations)
        return decision

    def _check(self, body: bytes, document: str) -> None:
        if document == DECISION and orjson.loads(body)["action"]["properties"]["tool"] not in self.unchanged:
            raise ToolChangedError("the tool differs from its pinned declaration; review it with pdp mcp-gateway pin")


def declarations(tools: Iterable[types.Tool]) -> dict[str, dict[str, Any]]:
    """Return the fields to pin of each tool's declaration, by tool name. Names that two tools share are left out."""
    whole = [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in tools]
    times = Counter(tool["name"] for tool in whole)
    for tool in whole:
        if tool.get("outputSchema", {}).get("type") != "object":
            tool.pop("outputSchema", None)  # Clients of the older protocol revision accept no other schema.
    return {at["name"]: {key: at[key] for key in _PINNED if key in at} for at in whole if times[at["name"]] == 1}


def unchanged(pinned: Mapping[str, Any], tools: Iterable[types.Tool]) -> set[str]:
    """Return the names of the tools whose declaration equals the pinned declaration."""
    now = declarations(tools)
    return {name for name in now.keys() & pinned.keys() if canonical(now[name]) == canonical(pinned[name])}


def read_pinned(settings: GatewaySettings) -> Pins:
    """Return the pinned declarations. Raise `UsageError` if the file is missing, or has the pins of other servers."""
    if not settings.pins.exists():
        raise UsageError(
            f"{settings.pins}: no tool is pinned yet", hint="review and pin the tools: pdp mcp-gateway pin"
        )
    pins = read_record(settings.pins, RootModel[Pins]).root
    if pins.keys() != settings.servers.keys():
        raise UsageError(f"{settings.pins}: pinned for other servers", hint="pin the tools again: pdp mcp-gateway pin")
    return pins


async def survey(settings: GatewaySettings) -> tuple[Pins, list[str]]:
    """Return the declarations of all servers that can be pinned, and a message for each tool that cannot be pinned.

    Raise `UpstreamError` or `UnreachableError` if a server fails, `UsageError` if no tool of a server can be pinned.
    """
    pins, refused = Pins(), []
    for server, stated in settings.servers.items():
        upstream = Upstream(server, stated, settings.timeout)
        try:
            tools, instructions = await upstream.listed("tools"), (await upstream.connected()).instructions
        finally:
            await upstream.close()
        declared = declarations(tools)
        faults = {tool.name: left_out(declared.get(tool.name)) for tool in tools}
        refused += [f"{server}: tool {name} is left out: {fault}" for name, fault in faults.items() if fault]
        if faults and all(faults.values()):
            message = "\n".join((*refused, f"{server}: none of its {len(faults)} tools can be pinned"))
            raise UsageError(message, hint="see the messages above; remove the server, or use another version")
        pins[server] = {name: at for name, at in declared.items() if not faults[name]}
        if instructions:
            pins[server][INSTRUCTIONS] = {"text": instructions}
    return pins, refused


def readings(pins: Pins) -> list[str]:
    """Return a message for each part of a schema that the gateway drops or changes, with the tools concerned."""
    names: dict[tuple[str, str], list[str]] = {}
    for server, name, tool in ((server, *each) for server, tools in pins.items() for each in tools.items()):
        for note in translated(tool["inputSchema"]).notes:
            names.setdefault((server, note), []).append(name)
    return [f"{server}: {note}: {', '.join(tools)}" for (server, note), tools in names.items()]


def pins_difference(old: Pins, new: Pins) -> list[str]:
    """Return the diff of two sets of pins as lines, which may contain unprintable characters."""
    before, after = (_text(pins).splitlines() for pins in (old, new))
    return list(difflib.unified_diff(before, after, "pinned", "declared", lineterm="", n=6))


def install(settings: GatewaySettings, pins: Pins) -> None:
    """Write the pins, the manifest unless a person wrote it, and without a project the starter, which holds calls."""
    folder, public = settings.project.parent, settings.public
    every = ((public(server, name), at) for server, each in pins.items() for name, at in each.items())
    tools = [{**at, "name": name} for name, at in every if "name" in at]
    files = {}
    if not settings.project.exists():
        # The project file and then the pins are written last, so that after a crash all files are written again.
        for path in sorted(_STARTER.glob("*.yaml"), key=lambda path: (path.name == settings.project.name, path)):
            files[folder / path.name] = _starter(path.name).replace("$USER", written_value(getpass.getuser()))
        files[folder / "governance.yaml"] += "".join(f"  {written_value(tool['name'])}: *held\n" for tool in tools)
    generated, manifest = _starter("manifest.yaml"), folder / "manifest.yaml"
    if not manifest.exists() or manifest.read_text(encoding="utf-8").startswith(generated):
        files[manifest] = _manifest(tools)
    write_private({**files, settings.pins: _text(pins)})


def write_private(files: Mapping[Path, str]) -> None:
    """Write files atomically, readable by their owner only. Create missing folders."""
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(path, text.encode(), mode=0o600)


def left_out(tool: Mapping[str, Any] | None) -> str | None:
    """Return why a manifest cannot contain a tool as declared, and how to fix the declaration; None if it can."""
    if tool is None:
        return "two tools have this name; ask the author of the server to rename one"
    rules = f"{_starter('governance.yaml')}  {written_value(tool['name'])}: *held\n"
    try:
        # A declaration that cannot be read back would make the whole pins.json unreadable.
        read_document("declared.json", text=json.dumps([[tool]]))
        load_effective("declared", "held", manifest_text=_manifest([tool]).encode(), governance_text=rules.encode())
    except FileFaultsError as error:
        return f"{error.faults[0].message}; {error.faults[0].hint or ASK_AUTHOR}"
    except UsageError as error:
        return f"{error.message}; {error.hint}"
    return None


def _manifest(tools: Iterable[Mapping[str, Any]]) -> str:
    text = _starter("manifest.yaml")
    for tool in tools:
        stated = {key: tool[key] for key in ("name", "description") if key in tool}
        text += f"- {written_value(stated | {'schema': translated(tool['inputSchema']).schema})}\n"
    return text


def _starter(name: str) -> str:
    return (_STARTER / name).read_text(encoding="utf-8")


def _text(pins: Pins) -> str:
    return json.dumps(pins, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
