"""The routes of the console, its static files, and the address at which people begin."""

from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from pdp.service.console.page import SIGNED_IN, AnyViewer, ConsoleRoute, menu_of, redirect, render
from pdp.service.console.pages import approvals, budgets, decisions, grants, live, play, releases, runs, tools
from pdp.service.console.sign_in import link, provider, session

router = APIRouter(route_class=ConsoleRoute)


@router.get("/console")
@router.get("/console/")
async def show_first_page(viewer: AnyViewer) -> Response:
    """Open the first page of the menu that the viewer may see."""
    return redirect(menu_of(viewer)[0][1])


@router.get("/console/help", dependencies=[SIGNED_IN])
async def show_help(request: Request) -> Response:
    """Show what the pages are for, the keys, and the accessibility statement."""
    return render(request, "help.html")


router.routes.append(Mount("/console/static", StaticFiles(packages=[("pdp.service.console", "static")])))

_PARTS: Final = (session, provider, link, live, approvals, decisions, runs, tools, grants, budgets, play, releases)
ROUTES: Final = [*(route for part in _PARTS for route in part.router.routes), *router.routes]
