"""Tools as their source exposes them: what an MCP server lists, and what a Python application has."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from contextlib import redirect_stdout
from importlib import import_module
from operator import attrgetter
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from pdp.client.client import secure_url
from pdp.documents import read_document, shown_name
from pdp.errors import PdpError, UsageError
from pdp.installed import extra
from pdp.manifest.schema.faults import FORMATS, KEYWORDS, REFUSED_KEYWORDS
from pdp.manifest.schema.references import with_parts

_KEPT: Final = KEYWORDS.union(REFUSED_KEYWORDS) - {"$schema", "$id"}
_HINTS: Final = ("readOnlyHint", "destructiveHint", "openWorldHint")


class ExposedTool(NamedTuple):
    """A tool that can be called; None is what its source, `where`, does not say.

    `reads`: it changes nothing. `destroys`: what it does cannot be taken back. `open_world`: it reaches strangers.
    `notes`: what a reviewer has to know. `denied`: a rule denies it.
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


class Exposure(NamedTuple):
    """What a source exposes. `switches`: where something shows all, and what."""

    tools: list[ExposedTool]
    switches: list[tuple[str, str]]


def plain_schema(schema: Any) -> Any:
    """Return a schema without what checks nothing: its dialect, and keywords and formats that nobody knows."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: at for key, at in schema.items() if key in _KEPT and (key != "format" or at in [*FORMATS])}
    return with_parts(kept, lambda part, _: plain_schema(part))


def mcp_tools(source: str, content: bytes | None = None) -> Exposure:
    """Return the tools of a server by its URL or its answer to `tools/list`: a file, or `content`. UsageError."""
    if content is None and source.startswith(("http://", "https://")):
        return asked_tools(source)
    value = read_document(source, text=content).value
    for key in ("result", "tools"):
        value = value.get(key, value) if isinstance(value, dict) else value
    tools = []
    for tool in [at if isinstance(at, dict) else {} for at in (value if isinstance(value, list) else [value])]:
        name, schema, description, said = map(tool.get, ("name", "inputSchema", "description", "annotations"))
        if not (isinstance(name, str) and isinstance(schema, dict) and isinstance(description, str | None)):
            hint = "a tool as of tools/list has a name and an inputSchema"
            raise UsageError(f"{source}: {shown_name(name)} is not a tool", hint=hint)
        hints = [said.get(key) if isinstance(said, dict) else None for key in _HINTS]
        reads, destroys, opens = (hint if isinstance(hint, bool) else None for hint in hints)
        tools.append(ExposedTool(name, source, description, plain_schema(schema), reads, destroys, opens))
    return Exposure(tools, [])


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
        content = json.dumps(tools).encode()
    except (PdpError, TimeoutError, ValueError, RecursionError) as error:
        message = f"{command[0]}: {str(error) or f'no answer in {timeout:g} seconds'}"
        raise UsageError(message, hint="see that it runs, and lists its tools") from None
    bypasses = [(command[0], f"the option {word}") for word in command if word.startswith("--dangerously")]
    return Exposure(mcp_tools(command[0], content).tools, bypasses)


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
            tools = [_python_tool(at, tool, spec) for at, tool in members]
    except (Exception, SystemExit) as error:
        hint = "name MODULE:OBJECT: a list or dict of functions or tools, or what has it as `tools`"
        raise UsageError(f"{spec}: {type(error).__name__}: {error}", hint=hint) from error
    finally:
        sys.path.remove("")
    return Exposure(tools, [(spec, "debug is on: it shows its state")] * (getattr(value, "debug", False) is True))


def _python_tool(key: Any, tool: Any, where: str) -> ExposedTool:
    schema: Any = getattr(tool, "tool_call_schema", None) or getattr(tool, "args_schema", None)
    if schema is None and inspect.isroutine(tool):
        declared = {"name": tool.__name__, "description": inspect.getdoc(tool)}
        schema = TypeAdapter(tool).json_schema()
    else:
        declared = {"name": tool.name, "description": tool.description}
        schema = schema.model_json_schema() if hasattr(schema, "model_json_schema") else schema
    content = json.dumps({**declared, "name": key or declared["name"], "inputSchema": schema})
    return mcp_tools(where, content.encode()).tools[0]
