"""Tools as their source exposes them: an MCP server, an OpenAPI document, or a Python application."""

import asyncio
import inspect
import json
import re
import sys
from contextlib import redirect_stdout
from importlib import import_module
from operator import attrgetter
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from pdp.client.client import secure_url
from pdp.documents import read_document, shown_name
from pdp.errors import FileFaultsError, PdpError, UsageError
from pdp.installed import extra
from pdp.manifest.foreign.dialects import translated
from pdp.manifest.foreign.openapi import operations

_PARTS: Final = ("name", "inputSchema", "description", "annotations")
_HINTS: Final = ("readOnlyHint", "destructiveHint", "openWorldHint")


class ExposedTool(NamedTuple):
    """A tool that can be called; None is what its source, `where`, does not say.

    `reads`: it changes nothing. `destroys`: what it does cannot be taken back. `open_world`: it reaches strangers.
    `notes`: what a reviewer has to know. `denied`: a rule denies it. `read`: what of its schema was read in another
    way or dropped. `fault`: why it cannot be read, and what to do; empty where it can.
    """

    name: str
    where: str
    description: str | None = None
    schema: dict[str, Any] | None = None
    reads: bool | None = None
    destroys: bool | None = None
    open_world: bool | None = None
    notes: tuple[str, ...] = ()
    denied: bool = False
    read: tuple[str, ...] = ()
    fault: str = ""


class Exposure(NamedTuple):
    """What a source exposes. `switches`: where something shows all, and what."""

    tools: list[ExposedTool]
    switches: list[tuple[str, str]]


def mcp_tools(source: str) -> Exposure:
    """Return the tools of a server by its URL or a file with its answer to `tools/list`. UsageError."""
    if source.startswith(("http://", "https://")):
        return asked_tools(source)
    value = read_document(source).value
    for key in ("result", "tools"):
        value = value.get(key, value) if isinstance(value, dict) else value
    return _exposed(source, [_tool(at, source) for at in (value if isinstance(value, list) else [value])])


def openapi_tools(file: str) -> Exposure:
    """Return the operations as tools: `operationId`, or method and path, in snake_case. UsageError: not OpenAPI 3."""
    try:
        found = [*operations(read_document(file).value, headers=True)]
    except UsageError as error:
        raise UsageError(f"{file}: {error.message}", hint=error.hint) from None
    tools = []
    for at in found:
        called, is_read = f"{at.method} {at.path}", at.method in ("GET", "HEAD")
        words = re.sub(r"([a-z0-9])([A-Z])|([A-Z])(?=[A-Z][a-z])", r"\1\3_\2", at.id or called)
        name, destroys = re.sub(r"[^A-Za-z0-9]+", "_", words).strip("_").lower(), at.method == "DELETE" or None
        where, schema = f"{file}: {called}", at.schema
        tools.append(ExposedTool(name, where, at.description, schema, is_read, destroys, read=at.notes, fault=at.fault))
    return _exposed(file, tools)


def _exposed(source: str, tools: list[ExposedTool]) -> Exposure:
    """Return what is exposed. UsageError: none of it can be read."""
    if tools and all(tool.fault for tool in tools):
        fault, _, hint = tools[0].fault.partition("; ")
        raise UsageError(f"{source}: {shown_name(tools[0].name)}: {fault}", hint=hint or None)
    return Exposure(tools, [])


def _tool(value: Any, source: str) -> ExposedTool:
    """Return a tool as of `tools/list`."""
    name, schema, description, said = map((value if isinstance(value, dict) else {}).get, _PARTS)
    if not (isinstance(name, str) and isinstance(schema, dict) and isinstance(description, str | None)):
        fault = "it is not a tool; a tool as of tools/list has a name and an inputSchema"
        return ExposedTool(name if isinstance(name, str) else f"{value!r:.60}", source, fault=fault)
    hints = [said.get(key) if isinstance(said, dict) else None for key in _HINTS]
    reads, destroys, opens = (hint if isinstance(hint, bool) else None for hint in hints)
    made = ExposedTool(name, source, description, None, reads, destroys, opens)
    try:
        read = translated(schema)
    except UsageError as error:
        return made._replace(fault=f"{error.message}; {error.hint}")
    return made._replace(schema=read.schema, read=read.notes)


def asked_tools(*command: str, timeout: float = 120) -> Exposure:
    """Return the tools of an MCP server that `command` starts, or its URL names. UsageError: none in time."""
    with extra("gateway"):
        from pdp.gateway.config import ServerSettings  # noqa: PLC0415 - an optional extra
        from pdp.gateway.upstream import Upstream  # noqa: PLC0415 - likewise

    async def listed() -> list[Any]:
        is_url = command[0].startswith(("http://", "https://"))
        settings = ServerSettings(url=secure_url(command[0])) if is_url else ServerSettings(command=command)
        upstream = Upstream(command[0], settings, timeout)
        try:
            async with asyncio.timeout(timeout):
                return await upstream.listed("tools")
        finally:
            await upstream.close()

    try:
        tools = [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in asyncio.run(listed())]
    except (PdpError, TimeoutError, ValueError, RecursionError) as error:
        message = f"{command[0]}: {str(error) or f'no answer in {timeout:g} seconds'}"
        raise UsageError(message, hint="see that it runs, and lists its tools") from None
    bypasses = [(command[0], f"the option {word}") for word in command if word.startswith("--dangerously")]
    found = []
    for tool in tools:  # each by itself: one at fault is left out alone
        try:
            found.append(_tool(read_document("declared.json", text=json.dumps(tool)).value, command[0]))
        except FileFaultsError as error:
            found.append(ExposedTool(tool["name"], command[0], fault=f"{error.faults[0].message}; ask its author"))
    return Exposure(_exposed(command[0], found).tools, bypasses)


def application_tools(spec: str) -> Exposure:
    """Return the tools of `MODULE:OBJECT`: a list or dict of functions and LangChain's tools, or what has `tools`.

    Importing the module runs it. UsageError: it cannot be imported, or has something else.
    """
    module, _, name = spec.partition(":")
    sys.path.insert(0, "")
    try:
        with redirect_stdout(sys.stderr):
            value = attrgetter(name)(import_module(module))
            found = getattr(value, "tools", value)
            members = found.items() if isinstance(found, dict) else [(None, tool) for tool in found]
            found = _exposed(spec, [_python_tool(at, tool, spec) for at, tool in members])
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        hint = "name MODULE:OBJECT: a list or dict of functions or tools, or what has it as `tools`"
        raise UsageError(f"{spec}: {type(error).__name__}: {error}", hint=hint) from error
    finally:
        sys.path.remove("")
    return Exposure(found.tools, [(spec, "debug is on: it shows its state")] * (getattr(value, "debug", False) is True))


def _python_tool(key: Any, tool: Any, where: str) -> ExposedTool:
    try:
        schema: Any = getattr(tool, "tool_call_schema", None) or getattr(tool, "args_schema", None)
        if schema is None and inspect.isroutine(tool):
            name, description = tool.__name__, inspect.getdoc(tool)
            schema = TypeAdapter(tool).json_schema()
        else:
            name, description = tool.name, tool.description
            schema = schema.model_json_schema() if hasattr(schema, "model_json_schema") else schema
        written = json.dumps({"name": key or name, "description": description, "inputSchema": schema})
        return _tool(read_document(where, text=written.encode()).value, where)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the application's code, and its types
        fault = f"{type(error).__name__}: {error}; see that it is a function or a tool with a schema"
        return ExposedTool(str(key or getattr(tool, "__name__", tool)), where, fault=fault)
