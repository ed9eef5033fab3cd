"""Hooks of coding agents over HTTP, for Claude Code on machines without an installation of their own.

Such a client goes on with the call after any answer but a 200 that says no: so whatever fails here is one.
"""

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request

from pdp.documents import read_record
from pdp.errors import PdpError
from pdp.hooks.call import Behaviour, HookAnswer, Moment
from pdp.hooks.decide import answer
from pdp.hooks.dialects import CLAUDE_CODE, http_body
from pdp.hooks.home import COMMANDS_FILE, HookCommands, HookPolicy
from pdp.service.errors import HttpError
from pdp.service.models import JsonObject
from pdp.service.proposals import session_of
from pdp.service.requests import ServiceRoute, caller, read_object
from pdp.service.security.principal import Scope

router = APIRouter(route_class=ServiceRoute, tags=["proposals"])
_log: Final = logging.getLogger("pdp.service")
_ELSEWHERE: Final = f"{os.devnull}/elsewhere"  # cannot exist: every path of the client is outside of it


_BODY: Final[dict[str, Any]] = {"content": {"application/json": {"schema": {}}}}  # any: what it cannot read is denied


@router.post("/v1/hooks/{client}", openapi_extra={"requestBody": _BODY, "security": [{"token": [Scope.PROPOSE]}, {}]})
async def answer_hook(request: Request, client: str) -> JsonObject:
    """Answer a hook of Claude Code, by the tenant's project; `commands.yaml` beside it lists what a shell may run.

    Any failure, a missing token included, is a 200 that denies: such a client lets a call pass on any other status.
    """
    moment = Moment.BEFORE
    try:
        if client != CLAUDE_CODE.name:
            raise HttpError(404, f"{client!a:.40} has no http hooks")  # noqa: TRY301 - to be answered like the rest
        who = await caller(request, Scope.PROPOSE)
        call = CLAUDE_CODE.read(await read_object(request))
        moment = call.moment
        # No answer tells which other folders are on this machine.
        if not await asyncio.to_thread(_is_within, call.cwd, who.tenant.settings.workspaces):
            call = replace(call, cwd=_ELSEWHERE)
        folder = who.tenant.settings.project.parent
        file = folder / COMMANDS_FILE
        commands = (await asyncio.to_thread(read_record, file, HookCommands)).root if file.exists() else {}
        policy = HookPolicy(folder, who.tenant.pep, session_of(who, None, request), commands)
        # Ids are the client's own: what one caller has begun is not another's. Nor is its word that a person said yes.
        given = await answer(replace(call, session_id=f"{who.principal.id}:{call.session_id}"), policy, can_ask=False)
    except Exception as error:  # noqa: BLE001 - whatever it is, the call is denied
        if not isinstance(error, PdpError):
            _log.exception("a hook could not be answered, which is a fault of the service")
        given = HookAnswer(
            Behaviour.DENY, f"the call cannot be decided: {error if isinstance(error, PdpError) else ''}"
        )
    return http_body(given, moment)


def _is_within(cwd: str, folders: tuple[Path, ...]) -> bool:
    here = Path(os.path.realpath(cwd))
    return any(here.is_relative_to(os.path.realpath(each)) for each in folders)
