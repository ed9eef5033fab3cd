"""HTTP hooks of coding agents, for Claude Code on machines where pdp is not installed."""

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
from pdp.hooks.home import COMMANDS_FILE, HookPolicy
from pdp.hooks.shapes import HookCommands
from pdp.service.errors import HttpError
from pdp.service.models import JsonObject
from pdp.service.proposals import session_of
from pdp.service.requests import ServiceRoute, caller, read_object
from pdp.service.security.principal import Scope

router = APIRouter(route_class=ServiceRoute, tags=["proposals"])
_log: Final = logging.getLogger("pdp.service")
# The folder does not exist, so every path that the client names is outside of it.
_ELSEWHERE: Final = f"{os.devnull}/elsewhere"


# The route accepts any body, because a malformed body must get a denial and not an HTTP error.
_BODY: Final[dict[str, Any]] = {"content": {"application/json": {"schema": {}}}}


@router.post("/v1/hooks/{client}", openapi_extra={"requestBody": _BODY, "security": [{"token": [Scope.PROPOSE]}, {}]})
async def answer_hook(request: Request, client: str) -> JsonObject:
    """Answer a Claude Code hook.

    The policy of the tenant's project decides; `commands.yaml` lists the permitted shell commands. Every failure, even
    a missing token, is a 200 that denies the call, because Claude Code runs the call on any other status.
    """
    moment = Moment.BEFORE
    try:
        if client != CLAUDE_CODE.name:
            raise HttpError(404, f"{client!a:.40} has no HTTP hooks")  # noqa: TRY301 - answered like any other failure
        who = await caller(request, Scope.PROPOSE)
        call = CLAUDE_CODE.read(await read_object(request))
        moment = call.moment
        # A folder outside of the workspaces is replaced, because an answer must not reveal which other folders exist on
        # this machine.
        if not await asyncio.to_thread(_is_within, call.cwd, who.tenant.settings.workspaces):
            call = replace(call, cwd=_ELSEWHERE)
        folder = who.tenant.settings.project.parent
        file = folder / COMMANDS_FILE
        commands = (await asyncio.to_thread(read_record, file, HookCommands)).programs if file.exists() else {}
        policy = HookPolicy(folder, who.tenant.pep, session_of(who, None, request), commands)
        # Clients choose their ids, so the caller's id is added to make them unique. A client cannot report a person's
        # consent.
        result = await answer(replace(call, session_id=f"{who.principal.id}:{call.session_id}"), policy, can_ask=False)
    except Exception as error:  # noqa: BLE001 - any failure denies the call
        if not isinstance(error, PdpError):
            _log.exception("unexpected error in a hook, so the call is denied")
        result = HookAnswer(
            Behaviour.DENY, f"the call cannot be decided: {error if isinstance(error, PdpError) else ''}"
        )
    return http_body(result, moment)


def _is_within(cwd: str, folders: tuple[Path, ...]) -> bool:
    here = Path(os.path.realpath(cwd))
    return any(here.is_relative_to(os.path.realpath(each)) for each in folders)
