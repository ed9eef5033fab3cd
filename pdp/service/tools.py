"""The tools that a subject's model may see, with the condition in words; the manifest."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request

from pdp.json import thawed
from pdp.manifest.exports import export_tools
from pdp.manifest.expressions.expression import compile_expression
from pdp.manifest.model import Tool
from pdp.service.models.operation import ManifestAnswer, ToolList, ToolsQuery, VisibleTool
from pdp.service.models.proposals import SessionBody
from pdp.service.proposals import session_of
from pdp.service.requests import Proposer, ServiceRoute

router = APIRouter(route_class=ServiceRoute, tags=["proposals"])


@router.get("/v1/tools")
async def list_tools(request: Request, who: Proposer, asked: Annotated[ToolsQuery, Query()]) -> ToolList:
    """List the tools that the token's subject may call."""
    return await list_tools_of_session(request, who, asked)


@router.post("/v1/tools")
async def list_tools_of_session(
    request: Request, who: Proposer, asked: Annotated[ToolsQuery, Query()], body: SessionBody | None = None
) -> ToolList:
    """List the tools that a stated session may call."""
    manifest = who.tenant.pep.manifest
    seen = await who.tenant.pep.avisible_tools(session_of(who, body, request))
    entries = [manifest.tools[name] for name, visibility in seen.items() if visibility != "NEVER"]
    shown = [
        VisibleTool(
            name=entry.name,
            visibility=seen[entry.name],
            condition=condition_of(entry) if seen[entry.name] == "DEPENDS" else None,
            definition=definition,
        )
        for entry, definition in zip(entries, export_tools(entries, asked.format), strict=True)
    ]
    return ToolList(tools=shown, manifest_version=manifest.version, manifest_digest=manifest.digest)


@router.get("/v1/manifest")
async def read_manifest(who: Proposer) -> ManifestAnswer:
    """Return the effective manifest: what the manifest and its governance state."""
    manifest = who.tenant.pep.manifest
    tools = {
        name: entry.model_dump(mode="json", by_alias=True, exclude_none=True) for name, entry in manifest.tools.items()
    }
    document = thawed(manifest.document)
    return ManifestAnswer(version=manifest.version, digest=manifest.digest, document=document, tools=tools)


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
