"""Read the tools that an MCP server, an OpenAPI document, a Python application or a configuration exposes."""

import asyncio
import inspect
import json
import re
import sys
from contextlib import redirect_stdout
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from pdp.client.client import secure_url
from pdp.documents import read_document, shown_name
from pdp.errors import FileFaultsError, PdpError, UsageError
from pdp.hooks.dialects import DIALECTS
from pdp.hooks.install.check import SWITCHES, settings_files
from pdp.hooks.install.clients import CLIENTS
from pdp.hooks.install.installation import read_configuration
from pdp.installed import extra
from pdp.manifest.foreign.dialects import ASK_AUTHOR, translated
from pdp.manifest.foreign.openapi import operations

# The last two settings let calls or whole servers run without a prompt (read in the program of Claude Code 2.1.330).
_SHOWING: Final = (*SWITCHES, "enableAllProjectMcpServers", "skipDangerousModePermissionPrompt")
_PARTS: Final = ("name", "inputSchema", "description", "annotations")
_HINTS: Final = ("readOnlyHint", "destructiveHint", "openWorldHint")


class ExposedTool(NamedTuple):
    """A tool that the source `where` exposes. Fields are None if the source does not mention them.

    `destroys`: effects cannot be undone. `denied`: a permission rule denies the tool. `notes` are for the reviewer, and
    `read` are notes on translated or dropped schema keywords. `fault` says why the tool cannot be read.
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
    """The tools that a source exposes. `switches` lists settings that disable protection, as (file, description)."""

    tools: list[ExposedTool]
    switches: list[tuple[str, str]]


def mcp_tools(source: str) -> Exposure:
    """Return the tools of an MCP server. `source` is the server's URL, or a file with the answer to `tools/list`."""
    if source.startswith(("http://", "https://")):
        return asked_tools(source)
    value = read_document(source).value
    for key in ("result", "tools"):
        value = value.get(key, value) if isinstance(value, dict) else value
    return _exposed(source, [_tool(item, source) for item in (value if isinstance(value, list) else [value])])


def openapi_tools(file: str) -> Exposure:
    """Return the operations of an OpenAPI 3 document as tools, named after `operationId` or path in snake_case."""
    try:
        declared = [*operations(read_document(file).value, headers=True)]
    except UsageError as error:
        raise UsageError(f"{file}: {error.message}", hint=error.hint) from None
    tools = []
    for method, path, operation_id, description, schema, notes, fault in declared:
        called, is_read = f"{method} {path}", method in ("GET", "HEAD")
        words = re.sub(r"([a-z0-9])([A-Z])|([A-Z])(?=[A-Z][a-z])", r"\1\3_\2", operation_id or called)
        name, destroys = re.sub(r"[^A-Za-z0-9]+", "_", words).strip("_").lower(), method == "DELETE" or None
        where = f"{file}: {called}"
        tools.append(ExposedTool(name, where, description, schema, is_read, destroys, read=notes, fault=fault))
    return _exposed(file, tools)


def _exposed(source: str, tools: list[ExposedTool]) -> Exposure:
    if tools and all(tool.fault for tool in tools):
        fault, _, hint = tools[0].fault.partition("; ")
        raise UsageError(f"{source}: {shown_name(tools[0].name)}: {fault}", hint=hint or None)
    return Exposure(tools, [])


def _tool(value: Any, source: str) -> ExposedTool:
    name, schema, description, annotations = map((value if isinstance(value, dict) else {}).get, _PARTS)
    if not (isinstance(name, str) and isinstance(schema, dict) and isinstance(description, str | None)):
        fault = "not a tool; a tool of `tools/list` has a name and an inputSchema"
        return ExposedTool(name if isinstance(name, str) else f"{value!r:.60}", source, fault=fault)
    hints = [annotations.get(key) if isinstance(annotations, dict) else None for key in _HINTS]
    reads, destroys, opens = (hint if isinstance(hint, bool) else None for hint in hints)
    tool = ExposedTool(name, source, description, None, reads, destroys, opens)
    try:
        read = translated(schema)
    except UsageError as error:
        return tool._replace(fault=f"{error.message}; {error.hint}")
    return tool._replace(schema=read.schema, read=read.notes)


def asked_tools(*command: str, timeout: float = 120) -> Exposure:
    """Ask an MCP server, given by its command or URL, for its tools. Raise `UsageError` after `timeout` seconds."""
    with extra("gateway"):
        from pdp.gateway.config import ServerSettings  # noqa: PLC0415 - an optional extra
        from pdp.gateway.upstream import Upstream  # noqa: PLC0415 - an optional extra

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
        raise UsageError(message, hint="check that the server starts and answers tools/list") from None
    bypasses = [(command[0], f"the option {word}") for word in command if word.startswith("--dangerously")]
    readable = []
    for tool in tools:  # Each tool is read separately, so that a faulty tool does not affect the others.
        try:
            readable.append(_tool(read_document("declared.json", text=json.dumps(tool)).value, command[0]))
        except FileFaultsError as error:
            readable.append(ExposedTool(tool["name"], command[0], fault=f"{error.faults[0].message}; {ASK_AUTHOR}"))
    return Exposure(_exposed(command[0], readable).tools, bypasses)


def application_tools(spec: str) -> Exposure:
    """Import `MODULE:OBJECT` and return its tools. Raise `UsageError` if that fails or the object has no tools."""
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
        hint = "pass MODULE:OBJECT: a list or dict of functions or tools, or an object with `tools`"
        raise UsageError(f"{spec}: {type(error).__name__}: {error}", hint=hint) from error
    finally:
        sys.path.remove("")
    return Exposure(found.tools, [(spec, "`debug` is on")] * (getattr(value, "debug", False) is True))


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
    except (Exception, SystemExit) as error:  # noqa: BLE001 - application code may raise anything
        fault = f"{type(error).__name__}: {error}; pass a function, or a tool with a schema"
        return ExposedTool(str(key or getattr(tool, "__name__", tool)), where, fault=fault)


def configured_tools(client: str) -> Exposure:
    """Return the tools in a client's permission rules for the working folder (only Claude Code is supported).

    A tool counts as denied only if a rule denies it with any arguments. Rules about certain arguments become notes.
    """
    if client not in CLIENTS:
        raise UsageError(f"{client}: unknown client", hint=f"known: {', '.join(CLIENTS)}")
    exposure, built_in = Exposure([], []), DIALECTS[client].built_in
    # For each rule: its text, the client's tool name, and whether the rule denies the whole tool.
    rules: dict[str, list[tuple[str, str, bool]]] = {}
    for file in settings_files(CLIENTS[client]):
        _, _, value = read_configuration(Path(file))
        try:
            stated = value.get("permissions", {})
            switches = [f"{name} is on" for name in _SHOWING if value.get(name, False) is not False]
            switches += ["bypassPermissions is the defaultMode"] * (stated.get("defaultMode") == "bypassPermissions")
            exposure.switches.extend((file, switch) for switch in switches)
            for kind in ("deny", "ask", "allow"):
                for rule in list.copy(stated.get(kind, [])):
                    name = rule.partition("(")[0].strip()
                    entry = built_in[name].kind.value if name in built_in else name
                    is_denied = kind == "deny" and rule in (name, f"{name}(*)")
                    rules.setdefault(entry, []).append((f"{kind} {rule} in {file}", name, is_denied))
        except (AttributeError, TypeError) as error:
            raise UsageError(f"{file}: not settings of {client}: {error}", hint="correct the file") from None
    for entry, found in rules.items():
        is_denied = {name for _, name, _ in found} == {name for _, name, all_denied in found if all_denied}
        notes = tuple(rule for rule, _, _ in found)
        exposure.tools.append(ExposedTool(entry, f"rules of {client}", notes=notes, denied=is_denied))
    return exposure


def toolkit_tools(file: str) -> Exposure:
    """Return the tools of a manifest of Microsoft's Agent Governance Toolkit. The manifest's policies are not read.

    Source: Agent Control Specification 0.3 to 0.4 (`policy-engine/spec/SPECIFICATION.md` of
        microsoft/agent-governance-toolkit; `tools` in 9, `clearance` and `security_labels` in 11) and AGT-MANIFEST-1.0.
    """
    value = read_document(file).value
    tools = value.get("tools", {}) if isinstance(value, dict) else None
    if not isinstance(tools, dict) or "agent_control_specification_version" not in value or value.get("extends"):
        message = f"{file}: not a manifest of the Agent Governance Toolkit, or it `extends` others"
        raise UsageError(message, hint="pass the merged manifest that the toolkit's engine loads")
    if "tools" not in value:
        raise UsageError(f"{file}: has no `tools` to import", hint="list the tools under `tools`, keyed by name")
    return Exposure([ExposedTool(name, file, notes=(f"declared with {value}",)) for name, value in tools.items()], [])
