"""The policy to begin with: every tool that servers declare, as strictly as it can be said, for somebody to review."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, Any, Final

import yaml

from pdp.documents import read_document
from pdp.errors import FileFaultsError
from pdp.gateway.pins import declarations, pins_text
from pdp.gateway.upstream import Upstream
from pdp.manifest.fields import SUBJECT, NotATool
from pdp.manifest.load import load_effective
from pdp.project.file import read_project

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import mcp_types as types

    from pdp.gateway.config import GatewaySettings
    from pdp.gateway.pins import Pins
    from pdp.project.file import Project

READ_RESOURCE: Final = "mcp_read_resource"
GET_PROMPT: Final = "mcp_get_prompt"
"""The tools of the manifest that stand for `resources/read` and `prompts/get`; no server's tool has these names."""

AGENT: Final = "agent:mcp-client"

_GENERATED: Final = "# Made by `pdp mcp-gateway`: what servers declare. What holds for it stands in governance.yaml.\n"
_HEAD: Final = (
    "# To be reviewed, line by line: a tool that may run without a person has the line\n"
    "#   NAME: {risk_tier: low, scopes: [mcp.use]}\n"
    "actions:\n"
)
_SCOPE: Final = "mcp.use"
_STRICTEST: Final = {
    "risk_tier": "high",
    "scopes": [_SCOPE],
    "approval": {"approvers": [SUBJECT], "expires": "PT1H"},
    "idempotency": {"required": True, "key": "derive(args)", "ttl": "PT5M"},
    "accepts": dict.fromkeys((NotATool.UNTYPED, NotATool.FREE_TEXT), "as its server declares it; not reviewed yet"),
}
_TEXT: Final = {"type": "string"}
_OWN: Final[dict[str, dict[str, Any]]] = {
    READ_RESOURCE: {
        "description": "Read a resource of an MCP server.",
        "schema": {"type": "object", "properties": {"server": _TEXT, "uri": _TEXT}, "required": ["server", "uri"]},
    },
    GET_PROMPT: {
        "description": "Get a prompt of an MCP server, which the client's user chose.",
        "schema": {
            "type": "object",
            "properties": {
                "server": _TEXT,
                "name": _TEXT,
                "arguments": {"type": "object", "additionalProperties": _TEXT},
            },
            "required": ["server", "name", "arguments"],
        },
    },
}


def admitted(tools: Iterable[types.Tool]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return what is pinned of a server's tools, and why others are not: a name that is taken, an unusable schema."""
    declared, twice = declarations(tools)
    refused = dict.fromkeys(twice, "two tools have this name")
    for name, stated in declared.items():
        fault = "the name is the gateway's own" if name in _OWN else _fault(name, stated)
        if fault is not None:
            refused[name] = fault
    return {name: stated for name, stated in declared.items() if name not in refused}, refused


async def surveyed(settings: GatewaySettings) -> tuple[Pins, list[str]]:
    """Ask each server what it declares; return what can be pinned, and in lines what is left out and why.

    UpstreamError, UnreachableError: a server does not say.
    """
    pins: Pins = {}
    left_out = []
    for name, server in settings.servers.items():
        upstream = Upstream(name, server, settings.timeout)
        try:
            pins[name], refused = admitted(await upstream.listed("tools"))
        finally:
            await upstream.close()
        left_out += [f"{name}: {tool} is left out: {why}" for tool, why in refused.items()]
    return pins, left_out


def install(settings: GatewaySettings, pins: Pins, store: str) -> list[str]:
    """Pin tools, and have the policy name each: new ones as strictly as it can be said. Return what was done, in lines.

    Where there is no project, it is drafted, with `store`. A manifest that is not of this module stays as it is.
    FileFaultsError: manifest and governance would not go together; nothing is written.
    """
    folder = settings.project.parent
    declared = {settings.public(server, tool): at for server, tools in pins.items() for tool, at in tools.items()}
    said = []
    if settings.project.exists():
        project = read_project(settings.project)
        files = _renewed(project, declared)
    else:
        files = _policy(folder, declared, store)
        said.append(f"{folder}: a policy to begin with; each call is held for you until governance.yaml says otherwise")
    write_private({**files, settings.pins: pins_text(pins)})
    return said


def write_private(files: Mapping[Path, str]) -> None:
    """Write files that nobody else reads; their folders are made."""
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")


def _policy(folder: Path, declared: Mapping[str, Any], store: str) -> dict[Path, str]:
    """Return the files of a policy for tools by their public names: each is high tier, and held for a person.

    The person is the user of this process, whose agent calls; `approver.yaml` is the session to grant with.
    """
    user = getpass.getuser()
    person = {"claims": {"sub": user, "azp": "terminal"}}
    agent = {"sub": AGENT, "scopes": [_SCOPE]}
    session = {"claims": {"sub": user, "azp": "mcp-gateway", "emts": {_SCOPE: True}, "act": agent}}
    project = {"manifest": "manifest.yaml", "governance": "governance.yaml", "session": "session.yaml", "store": store}
    files = {
        "manifest.yaml": _manifest(declared),
        "governance.yaml": _HEAD + _rules([*declared, *_OWN]),
        "session.yaml": "# Who calls: you, through an agent.\n" + _yaml(session),
        "approver.yaml": "# Who grants: you, in a terminal of your own. Keep it from the agent.\n" + _yaml(person),
        "pdp.yaml": _yaml(project),
    }
    return {folder / name: text for name, text in files.items()}


def _renewed(project: Project, declared: Mapping[str, Any]) -> dict[Path, str]:
    """Return manifest and governance with what is declared now; of the governance, lines for new tools are added."""
    manifest, governance = project.manifest, project.governance
    if manifest is None or governance is None or not manifest.read_text(encoding="utf-8").startswith(_GENERATED):
        return {}
    known = read_document(governance).value
    actions = known.get("actions") if isinstance(known, dict) else None
    rules = governance.read_text(encoding="utf-8").rstrip() + "\n"
    rules += _rules(name for name in declared if name not in (actions or ()))
    files = {manifest: _manifest(declared), governance: rules}
    load_effective(manifest, governance, manifest_text=files[manifest].encode(), governance_text=rules.encode())
    return files


def _manifest(declared: Mapping[str, Any]) -> str:
    """Return the text of a manifest of tools; nothing that a server says of their effects is in it."""
    own = [{"name": name, **stated} for name, stated in _OWN.items()]
    return _GENERATED + _yaml(
        {"manifest_version": "1", "tools": [*(_entry(name, stated) for name, stated in declared.items()), *own]}
    )


def _rules(names: Iterable[str]) -> str:
    """Return lines of a governance file that hold every call of these tools for a person, one tool a line."""
    return "".join(f"  {json.dumps(name)}: {json.dumps(_STRICTEST)}\n" for name in names)


def _entry(name: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    text = stated.get("description") or stated.get("title")
    return {"name": name, **({"description": text} if text else {}), "schema": stated["inputSchema"]}


def _fault(name: str, stated: Mapping[str, Any]) -> str | None:
    """Return why a manifest cannot have a tool as it is declared, such as a schema that leads elsewhere."""
    text = _yaml({"manifest_version": "1", "tools": [_entry(name, stated)]}).encode()
    try:
        load_effective(name, "governance", manifest_text=text, governance_text=(_HEAD + _rules([name])).encode())
    except FileFaultsError as error:
        return "; ".join(fault.message for fault in error.faults[:3])
    return None


def _yaml(value: Any) -> str:
    # Without aliases; what does not print is escaped.
    return yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False, width=120)
