"""What servers declare of their tools, pinned: one declared otherwise is neither shown nor called until pinned anew."""

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
from pdp.gateway.mapping import GET_PROMPT, READ_RESOURCE
from pdp.gateway.upstream import ASKING, Upstream
from pdp.json import canonical
from pdp.manifest.foreign.dialects import translated
from pdp.manifest.load import load_effective

Pins = dict[str, dict[str, dict[str, Any]]]
"""By server and tool, as the server names it: its declaration."""

INSTRUCTIONS: Final = "(instructions)"
"""Key of a server's instructions for the model, beside its tools: no tool can have this name."""

_PINNED: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
_STARTER: Final = Path(__file__).parent / "starter"


class ToolChangedError(EngineError):
    """A server declares a tool otherwise than it is pinned, or not at all."""

    code = "gateway.tool_changed"


class PinnedEngine(Engine):
    """Denies what is asked of a tool that is not in `unchanged`; of all else, `engine` decides."""

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self.unchanged = {READ_RESOURCE, GET_PROMPT}
        self._engine = engine

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a document; errors as of the engine, and ToolChangedError."""
        self._check(body, document)
        return self._engine.evaluate(body, document)

    async def aevaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Async variant of `evaluate`."""
        self._check(body, document)
        return await self._engine.aevaluate(body, document)

    async def adecide_body(self, body: bytes, document: str = DECISION) -> Decision:
        """Decide, and keep quiet about a call that has obligations; see `Asking`."""
        decision = await super().adecide_body(body, document)
        if (asking := ASKING.get()) is not None:
            asking.quiet |= bool(decision.obligations)
        return decision

    def _check(self, body: bytes, document: str) -> None:
        if document == DECISION and orjson.loads(body)["action"]["properties"]["tool"] not in self.unchanged:
            raise ToolChangedError("its server does not declare this tool as it is pinned; see pdp mcp-gateway pin")


def declarations(tools: Iterable[types.Tool]) -> dict[str, dict[str, Any]]:
    """Return what is pinned of tools, by name; none of a name that two have."""
    whole = [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in tools]
    times = Counter(tool["name"] for tool in whole)
    for tool in whole:
        if tool.get("outputSchema", {}).get("type") != "object":
            tool.pop("outputSchema", None)  # clients of the older revision take no other: nobody is shown it
    return {at["name"]: {key: at[key] for key in _PINNED if key in at} for at in whole if times[at["name"]] == 1}


def unchanged(pinned: Mapping[str, Any], tools: Iterable[types.Tool]) -> set[str]:
    """Return the names of the tools that are declared as they are pinned."""
    now = declarations(tools)
    return {name for name in now.keys() & pinned.keys() if canonical(now[name]) == canonical(pinned[name])}


def read_pinned(settings: GatewaySettings) -> Pins:
    """Return what is pinned; UsageError: nothing is, or the file cannot be used."""
    if not settings.pins.exists():
        raise UsageError(f"{settings.pins}: no tool is pinned yet", hint="see what is declared: pdp mcp-gateway pin")
    pins = read_record(settings.pins, RootModel[Pins]).root
    if pins.keys() != settings.servers.keys():
        raise UsageError(f"{settings.pins}: is of other servers", hint="pin anew: pdp mcp-gateway pin")
    return pins


async def survey(settings: GatewaySettings) -> tuple[Pins, list[str]]:
    """Ask each server what it declares; return what can be pinned, and in lines what cannot, and why.

    UpstreamError, UnreachableError: a server does not say. UsageError: one has tools, and none can be pinned.
    """
    pins, refused = Pins(), []
    for server, stated in settings.servers.items():
        upstream = Upstream(server, stated, settings.timeout)
        try:
            tools, instructions = await upstream.listed("tools"), (await upstream.connected()).instructions
        finally:
            await upstream.close()
        found = declarations(tools)
        faults = {tool.name: left_out(found.get(tool.name)) for tool in tools}
        refused += [f"{server}: tool {name} is left out: {fault}" for name, fault in faults.items() if fault]
        if faults and all(faults.values()):
            message = "\n".join((*refused, f"{server}: none of its {len(faults)} tools can be pinned"))
            raise UsageError(message, hint="the lines above say why; take the server out, or use another version of it")
        pins[server] = {name: at for name, at in found.items() if not faults[name]}
        if instructions:
            pins[server][INSTRUCTIONS] = {"text": instructions}
    return pins, refused


def readings(pins: Pins) -> list[str]:
    """Return what of schemas is read in another way or dropped, and of which tools, as lines."""
    names: dict[tuple[str, str], list[str]] = {}
    for server, name, tool in ((server, *each) for server, tools in pins.items() for each in tools.items()):
        for note in translated(tool["inputSchema"]).notes:
            names.setdefault((server, note), []).append(name)
    return [f"{server}: {note}: {', '.join(tools)}" for (server, note), tools in names.items()]


def pins_difference(old: Pins, new: Pins) -> list[str]:
    """Return what changes from one to the other, as lines of a diff; what does not print is for the reader to show."""
    before, after = (_text(pins).splitlines() for pins in (old, new))
    return list(difflib.unified_diff(before, after, "pinned", "declared", lineterm="", n=6))


def install(settings: GatewaySettings, pins: Pins) -> None:
    """Write the pins, and the manifest where it is made of them; where there is no project, the one to begin with.

    In that each call waits for the user of this process, whose agent calls: `approver.yaml` is the session to grant by.
    """
    folder, public = settings.project.parent, settings.public
    every = ((public(server, name), at) for server, each in pins.items() for name, at in each.items())
    tools = [{**at, "name": name} for name, at in every if "name" in at]
    files = {}
    if not settings.project.exists():
        # The project, and then the pins, come last: without them all of it is written anew after a crash.
        for path in sorted(_STARTER.glob("*.yaml"), key=lambda path: (path.name == settings.project.name, path)):
            files[folder / path.name] = _starter(path.name).replace("$USER", written_value(getpass.getuser()))
        files[folder / "governance.yaml"] += "".join(f"  {written_value(tool['name'])}: *held\n" for tool in tools)
    generated, manifest = _starter("manifest.yaml"), folder / "manifest.yaml"
    if not manifest.exists() or manifest.read_text(encoding="utf-8").startswith(generated):
        files[manifest] = _manifest(tools)
    write_private({**files, settings.pins: _text(pins)})


def write_private(files: Mapping[Path, str]) -> None:
    """Write files that nobody else reads, each as a whole or not at all; their folders are made."""
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(path, text.encode(), mode=0o600)


def left_out(tool: Mapping[str, Any] | None) -> str | None:
    """Return why a manifest cannot have a tool as it is declared, and what to do; None: it can."""
    if tool is None:
        return "two tools have this name; ask its author to rename one"
    rules = f"{_starter('governance.yaml')}  {written_value(tool['name'])}: *held\n"
    try:
        read_document("declared.json", text=json.dumps([[tool]]))  # a fault would make the file of pins unreadable
        load_effective("declared", "held", manifest_text=_manifest([tool]).encode(), governance_text=rules.encode())
    except FileFaultsError as error:
        return f"{error.faults[0].message}; {error.faults[0].hint or 'ask its author to change it'}"
    except UsageError as error:
        return f"{error.message}; {error.hint}"
    return None


def _manifest(tools: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a manifest: of what servers say of their tools, nothing about effects."""
    text = _starter("manifest.yaml")
    for tool in tools:
        stated = {key: tool[key] for key in ("name", "description") if key in tool}
        text += f"- {written_value(stated | {'schema': translated(tool['inputSchema']).schema})}\n"
    return text


def _starter(name: str) -> str:
    return (_STARTER / name).read_text(encoding="utf-8")


def _text(pins: Pins) -> str:
    return json.dumps(pins, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
