"""What a subject's model may see, with the condition in words; the manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response

from pdp.json import thawed
from pdp.manifest.exports import export_tools
from pdp.manifest.expressions.expression import compile_expression
from pdp.service.proposals import session_of
from pdp.service.requests import caller, known_fields, query, read_object
from pdp.service.routing import Routes
from pdp.service.security.principal import Scope

if TYPE_CHECKING:
    from starlette.requests import Request

    from pdp.manifest.model import Tool

routes = Routes()


@routes.at("/v1/tools", "GET", "POST")
async def tools(request: Request) -> Response:
    """List the tools of which some call could be allowed."""
    who = await caller(request, Scope.PROPOSE)
    body = await read_object(request, optional=True) if request.method == "POST" else {}
    known_fields(body, "session")
    manifest, form = who.tenant.pep.manifest, query(request, "format").get("format", "plain")
    seen = await who.tenant.pep.avisible_tools(session_of(who, body, request))
    entries = [manifest.tools[name] for name, visibility in seen.items() if visibility != "NEVER"]
    shown = [
        {
            "name": entry.name,
            "visibility": seen[entry.name],
            "condition": condition_of(entry) if seen[entry.name] == "DEPENDS" else None,
            "definition": definition,
        }
        for entry, definition in zip(entries, export_tools(entries, form), strict=True)
    ]
    return JSONResponse({"tools": shown, "manifest_version": manifest.version, "manifest_digest": manifest.digest})


@routes.at("/v1/manifest", "GET")
async def effective(request: Request) -> Response:
    """Answer with the effective manifest: `document`, which the digest is of, and its entries whole."""
    manifest = (await caller(request, Scope.PROPOSE)).tenant.pep.manifest
    tools = {
        name: entry.model_dump(mode="json", by_alias=True, exclude_none=True) for name, entry in manifest.tools.items()
    }
    document = thawed(manifest.document)
    return JSONResponse({"version": manifest.version, "digest": manifest.digest, "document": document, "tools": tools})


def condition_of(entry: Tool) -> str:
    """Return in words what decides about a call of the tool, beside who makes it."""
    mappings = (("resource.", entry.resource or {}), ("", entry.context or {}))
    mapped = sorted(
        f"{at}{name}"
        for at, mapping in mappings
        for name, text in mapping.items()
        if compile_expression(text).reads_arguments
    )
    parts = [
        f"{limit.argument or 'each call'} counts towards the limit {limit.limit} of the {limit.per}"
        if limit.per
        else f"{limit.argument} is held to the limit {limit.limit}"
        for limit in entry.limits
    ]
    parts += [f"{name} has to name its sources" for name in entry.provenance.required]
    parts += [f"it counts where {name} ({role}) comes from" for name, role in (entry.roles or {}).items()]
    parts += [f"the policy looks at {', '.join(mapped)}"] if mapped else []
    return f"It depends on the arguments: {'; '.join(parts)}." if parts else "Each call is decided by itself."
