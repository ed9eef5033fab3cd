"""The tools of the effective manifest, one tool, and the matrix of subjects and tools."""

import asyncio
import time
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, Final

import yaml
from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from pdp.clock import to_milliseconds
from pdp.decision import Reason
from pdp.documents import read_document
from pdp.engine.protocol import REQUEST_INVALID
from pdp.errors import PdpError, UsageError
from pdp.flow.drive import drive
from pdp.flow.preview import Preview, Visibility, previews
from pdp.json import thawed
from pdp.request import Entity
from pdp.service.console.page import AnyViewer, ConsoleRoute, MatrixViewer, SentForm, Viewer, render
from pdp.service.console.texts import text
from pdp.service.errors import HttpError
from pdp.service.models import Body
from pdp.service.security.principal import Scope
from pdp.session import Session
from pdp.stores.sql.events import Wanted

router = APIRouter(route_class=ConsoleRoute)

TOOLS: Final = "/console/tools"

_PAGE: Final = 40
_ROWS: Final = 20  # The tools on one page of the matrix.
_COLUMNS: Final = 8  # The subjects on one page of the matrix.
_REASONS: Final = 2  # The reasons in one cell of the matrix.
_DAYS: Final = 7
_SHOWN: Final = frozenset((
    "name", "description", "version", "effect_class", "risk_tier", "scopes", "limits", "approval", "schema_",
    "pdp_action", "purposes", "idempotency", "compensation",
))  # fmt: skip
"""The fields that the page of one tool shows in words. It shows all other fields as JSON."""

Start = Annotated[int, Field(ge=0, le=10**6)]
Text = Annotated[str, Field(max_length=256)]


class ToolsFilter(Body):
    """The tools whose names contain `name`, from the number `start`."""

    name: Text = ""
    start: Start = 0


class MatrixQuery(Body):
    """The subjects of one type in the directory, from the number `subjects`, and the tools from the number `start`."""

    directory: Text = ""
    subjects: Start = 0
    start: Start = 0
    purpose: Text = ""
    agent: Text = ""


@router.get(TOOLS)
async def show_tools(request: Request, viewer: AnyViewer, asked: Annotated[ToolsFilter, Query()]) -> Response:
    """Show the tools of the effective manifest."""
    manifest = viewer.caller.tenant.pep.manifest
    named = [tool for name, tool in manifest.tools.items() if asked.name.lower() in name.lower()]
    page = named[asked.start : asked.start + _PAGE]
    counts = await _counts(viewer)
    following = asked.start + _PAGE if len(named) > asked.start + _PAGE else None
    pages = {"previous": max(asked.start - _PAGE, 0) if asked.start else None, "next": following}
    return render(request, "tools.html", asked=asked, manifest=manifest, tools=page, counts=counts, pages=pages)


@router.get(f"{TOOLS}/matrix")
async def show_directory(request: Request, viewer: MatrixViewer, asked: Annotated[MatrixQuery, Query()]) -> Response:
    """Show the matrix for subjects of the directory, or the empty form for pasted claims.

    Only the scope `audit` shows the directory, because the directory says what other people may do.
    """
    directory: Mapping[str, Any] = {}
    if viewer.caller.may(Scope.AUDIT):
        directory = (await viewer.caller.tenant.pep.engine.adirectory()).get("subjects", {})
    known = directory.get(asked.directory, {})
    names = sorted(known)[asked.subjects : asked.subjects + _COLUMNS]
    columns = [(_session({"sub": name}, asked), Entity(asked.directory, name, known[name])) for name in names]
    more = asked.subjects + _COLUMNS if len(known) > asked.subjects + _COLUMNS else None
    return await _matrix(
        request, viewer, asked, dict(zip(names, columns, strict=True)), kinds=sorted(directory), more_subjects=more
    )


@router.post(f"{TOOLS}/matrix")
async def show_pasted(request: Request, viewer: MatrixViewer, form: SentForm) -> Response:
    """Show the matrix for pasted claims, which are not stored."""
    start = form.get("start", "0")
    asked = MatrixQuery(
        start=int(start) if start.isdecimal() and len(start) <= len(str(10**6)) else 0,
        purpose=form.get("purpose", "")[:256],
        agent=form.get("agent", "")[:256],
    )
    claims = form.get("claims", "")
    try:
        sessions = {name: _session(each, asked) for name, each in _people(claims).items()}
        columns = {name: (each, each.subject) for name, each in sessions.items()}
    except PdpError as error:
        return await _matrix(request, viewer, asked, {}, claims=claims, problem=str(error), status=400)
    return await _matrix(request, viewer, asked, columns, claims=claims)


@router.get(f"{TOOLS}/{{name:path}}")
async def show_tool(request: Request, viewer: AnyViewer, name: str) -> Response:
    """Show one tool with all its fields."""
    entry = viewer.caller.tenant.pep.manifest.tools.get(name)
    if entry is None:
        raise HttpError(404, text("tool.unknown"), hint=text("tool.unknown_hint"))
    rest = entry.model_dump(mode="json", exclude_none=True, exclude=set(_SHOWN))
    return render(request, "tool.html", entry=entry, counts=await _counts(viewer, name), rest=rest)


async def _counts(viewer: Viewer, tool: str | None = None) -> dict[str, dict[str, int]] | None:
    """Return how many decisions of the last days each tool has, by verdict; None without the scope `audit`."""
    if not viewer.caller.may(Scope.AUDIT):
        return None
    since = to_milliseconds(time.time() - _DAYS * 86_400)
    return await asyncio.to_thread(viewer.caller.tenant.stream.counts_of_tools, Wanted(tool=tool, since=since))


def _people(pasted: str) -> dict[str, Any]:
    """Return pasted claims by name: of several people, of one person, or of a session document.

    Raise `UsageError` if they cannot be read or are too many.
    """
    people = read_document("claims", text=pasted).value if pasted.strip() else None
    named = people[:80] if isinstance(people, str) else "ann"
    if isinstance(people, dict):
        people = people["claims"] if isinstance(people.get("claims"), dict) else people
        people = {people["sub"]: people} if isinstance(people.get("sub"), str) else people
    if not isinstance(people, dict) or not 0 < len(people) <= _COLUMNS or not all(map(_is_object, people.values())):
        raise UsageError(text("matrix.no_people"), hint=text("matrix.no_people_hint", name=named, n=_COLUMNS))
    return {name: {"sub": name, **each.get("claims", each)} for name, each in people.items()}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("claims", {}), dict)


def _session(claims: Any, asked: MatrixQuery) -> Session:
    # With a run id, the preview assumes a run that has read anything.
    options = {"purpose": asked.purpose or None, "agent": asked.agent or None, "run_id": "preview"}
    return Session.read({"claims": claims, **options})


async def _matrix(
    request: Request,
    viewer: Viewer,
    asked: MatrixQuery,
    columns: dict[str, tuple[Session, Entity]],
    *,
    status: int = 200,
    **values: Any,
) -> Response:
    tenant = viewer.caller.tenant
    tools = tenant.access.tools.manifest.tools
    names = [*islice(tools, asked.start, asked.start + _ROWS)] if columns else []

    def seen() -> list[dict[str, Preview]]:
        asking = (previews(*each, tenant.access.tools, names, time.time()) for each in columns.values())
        return [drive(questions, tenant.pep.engine) for questions in asking]

    found = await asyncio.to_thread(seen)
    rows = {name: [(_word(each[name]), each[name], _shown(each[name])) for each in found] for name in names}
    own = {viewer.name: thawed(dict(viewer.principal.claims))}
    shared: dict[str, Any] = {
        "rows": rows,
        "reasons": {code: reason for cells in rows.values() for *_, shown in cells for code, reason in shown.items()},
        "example": yaml.safe_dump(own, sort_keys=False, allow_unicode=True),
        "following": asked.start + _ROWS if columns and len(tools) > asked.start + _ROWS else None,
        "purposes": sorted({purpose for tool in tools.values() for purpose in tool.purposes or ()}),
        "agents": sorted(tenant.pep.manifest.document.get("agents", ())),
        "kinds": [], "more_subjects": None, "claims": "", "problem": "", "most": _COLUMNS,
    }  # fmt: skip
    return render(request, "matrix.html", status=status, asked=asked, columns=[*columns], **{**shared, **values})


def _shown(preview: Preview) -> dict[str, Reason]:
    """Return the reasons that a cell shows, by code."""
    return dict(islice({reason.code: reason for reason in preview.reasons}.items(), _REASONS))


def _word(preview: Preview) -> str:
    if preview.visibility is Visibility.NEVER or REQUEST_INVALID in preview.decision.codes:
        return "DENY"
    if preview.visibility is Visibility.DEPENDS:
        return "STEP_UP" if preview.decision.verdict == "STEP_UP" and not preview.depends_on else "DEPENDS"
    return "ALLOW"
