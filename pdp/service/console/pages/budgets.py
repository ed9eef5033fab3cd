"""The budgets of cumulative limits: all, or those of one subject with the limits in their claims."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from pdp.clock import to_seconds
from pdp.contract.budgets import nothing_of
from pdp.documents import read_document
from pdp.errors import UsageError
from pdp.service.console.page import ApprovalViewer, ConsoleRoute, SentForm, Viewer, render
from pdp.service.models import Body
from pdp.service.security.principal import Scope
from pdp.session import Session
from pdp.stores.budgets import BudgetSums

router = APIRouter(route_class=ConsoleRoute)

BUDGETS: Final = "/console/budgets"

_PAGE: Final = 40


class BudgetsQuery(Body):
    """The end of the earlier page."""

    after: Annotated[str, Field(pattern="^[0-9a-z:]*$", max_length=80)] = ""


@router.get(BUDGETS)
async def show_budgets(request: Request, viewer: ApprovalViewer, asked: Annotated[BudgetsQuery, Query()]) -> Response:
    """Show all budgets in which amounts count. Without the scope `approve`, show those of the viewer."""
    if not viewer.caller.may(Scope.APPROVE):
        return await _own(request, viewer, {**viewer.principal.claims})
    store = viewer.caller.tenant.stores.budgets
    found = await asyncio.to_thread(store.sums, time.time(), _PAGE + 1, after=asked.after)
    following = found[_PAGE - 1].budget if len(found) > _PAGE else None
    return _page(request, viewer, found[:_PAGE], following=following)


@router.post(BUDGETS)
async def show_budgets_of(request: Request, viewer: ApprovalViewer, form: SentForm) -> Response:
    """Show the budgets of one subject by pasted claims, which are not stored. Without `approve`, use the viewer's."""
    claims, run_id = form.get("claims", ""), form.get("run_id", "")
    if not viewer.caller.may(Scope.APPROVE):
        return await _own(request, viewer, {**viewer.principal.claims}, run_id)
    try:
        read = read_document("claims", text=claims).value if claims.strip() else None
        return await _own(request, viewer, read, run_id, pasted=claims)
    except UsageError as error:
        return _page(request, viewer, [], pasted=claims, run_id=run_id, problem=str(error), status=400)


async def _own(request: Request, viewer: Viewer, claims: Any, run_id: str = "", **values: Any) -> Response:
    """Return the page with the budgets from which calls of a subject take. Raise `UsageError` for unusable claims."""
    tenant = viewer.caller.tenant
    session = Session.read({"claims": claims, "run_id": run_id or None})
    subject = session.subject.id
    names: dict[str, str] = {}
    for tool in tenant.pep.manifest.tools.values():
        for limit in filter(lambda limit: limit.per is not None, tool.limits):
            with suppress(ValueError):  # Only a call names the resource, and there may be no run.
                take = nothing_of(limit, tool.name, session, None, session.issuer)
                names[take.budget] = take.names
    found = await asyncio.to_thread(tenant.stores.budgets.sums, time.time(), len(names), of=[*names])
    unused = names.keys() - {sums.budget for sums in found}
    empty = [BudgetSums(each, names[each], 0, 0, 0, None, None) for each in unused]
    return _page(request, viewer, [*found, *empty], session, subject=subject, run_id=run_id, **values)


def _page(
    request: Request, viewer: Viewer, found: Sequence[BudgetSums], session: Session | None = None, **values: Any
) -> Response:
    tools = viewer.caller.tenant.pep.manifest.tools.values()
    limits = {limit.limit: limit for tool in tools for limit in tool.limits if limit.per}
    rows = sorted((_row(sums, session) for sums in found), key=lambda row: f"{row['limit']} {row['holder']}")
    shared = {"following": None, "pasted": "", "run_id": "", "subject": None, "problem": ""}
    page = {**shared, **values, "has_form": viewer.caller.may(Scope.APPROVE), "limits": limits}
    return render(request, "budgets.html", rows=rows[:_PAGE], **page)


def _row(sums: BudgetSums, session: Session | None) -> dict[str, Any]:
    named = sums.named()
    cap = None if session is None else _limit(session.claims, named["limit"])
    used = named["spent"] + named["reserved"] + named["unknown"]
    until = None if sums.until is None else to_seconds(sums.until)
    return {**named, "currency": sums.currency, "until": until, "cap": cap, "used": used}


def _limit(claims: Mapping[str, Any], name: str) -> Decimal | None:
    """Return the lowest limit of the subject and of the agents with limits, as the policy does; None without one."""
    stated, agent = [claims.get("limits")], claims.get("act")
    while isinstance(agent, Mapping):
        stated += [agent["limits"]] if "limits" in agent else []
        agent = agent.get("act")
    values = [each.get(name) if isinstance(each, Mapping) else None for each in stated]
    numbers = [Decimal(str(value)) for value in values if type(value) in (int, float)]
    return min(numbers) if len(numbers) == len(values) else None
