"""Calls of remote enforcement points: begun, finished, planned; and the sessions that callers may state."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError
from starlette.responses import JSONResponse, Response

from pdp.decision import new_id
from pdp.flow.remote.answer import as_answer
from pdp.json import JsonValueError, canonical, digest, thawed
from pdp.proposal import Execution, Failure
from pdp.service.requests import Caller, HttpError, caller, known_fields, read_object
from pdp.service.routing import Routes
from pdp.service.security.principal import Scope
from pdp.service.telemetry import count_decision
from pdp.session import Session
from pdp.stores.remote_calls import CallName

if TYPE_CHECKING:
    from starlette.requests import Request

    from pdp.flow.preview import PlanEvaluation
    from pdp.flow.stages import CallIds

routes = Routes()

_ID: Final = re.compile(r"[A-Za-z0-9._~-]{22,128}")
_OWN: Final = ("purpose", "idempotency_key", "run_id", "request_id", "plan")
_FAILURE: Final = TypeAdapter(Failure)


@routes.at("/v1/proposals", "POST")
async def propose(request: Request) -> Response:
    """Decide a proposal, and let the caller run it; or check a whole plan."""
    who = await caller(request, Scope.PROPOSE)
    body = await read_object(request)
    session = session_of(who, body, request)
    if "plan" in body:
        known_fields(body, "plan", "session")
        return JSONResponse(_planned(await who.tenant.pep.aplan(body["plan"], session)))
    known_fields(body, "id", "proposal", "run", "session", "step_name", "tool_call_id")
    if "proposal" not in body:
        raise HttpError(400, "proposal or plan is missing", hint="send {proposal: {tool, arguments}}")
    call_id, run = body.get("id"), body.get("run", True)
    if call_id is not None and not (isinstance(call_id, str) and _ID.fullmatch(call_id)):
        raise HttpError(400, "id has to be 22 to 128 letters, digits or . _ ~ -", hint="take 128 random bits, as hex")
    if not isinstance(run, bool):
        raise HttpError(400, "run has to be true or false")
    ids: CallIds = {"tool_call_id": _text(body, "tool_call_id"), "step_name": _text(body, "step_name")}
    call_id = call_id or new_id()
    if not run:
        evaluation = await who.tenant.pep.adecide(body["proposal"], session, **ids)
        return _decided({**as_answer(evaluation), "id": call_id})
    name = CallName(call_id, who.principal.id, digest(canonical([who.principal.id, {**body, "id": call_id}])))
    proposer = who.principal.claims
    return _decided(await who.tenant.pep.abegin(name, body["proposal"], session, proposer=proposer, **ids))


@routes.at("/v1/proposals/{call_id}/result", "POST")
async def report(request: Request, call_id: str) -> Response:
    """Take what a call that was begun came to."""
    who = await caller(request, Scope.PROPOSE)
    body = await read_object(request)
    known_fields(body, "execution")
    execution = _execution(body.get("execution"))
    return JSONResponse(await who.tenant.pep.afinish(CallName(call_id, who.principal.id), execution))


@routes.at("/v1/runs/{run_id}/end", "POST")
async def end_run(request: Request, run_id: str) -> Response:
    """Forget a run of the caller's."""
    who = await caller(request, Scope.PROPOSE)
    body = await read_object(request, optional=True)
    known_fields(body, "session")
    session = session_of(who, body, request)
    await asyncio.to_thread(who.tenant.pep.end_run, run_id, session)
    return Response(status_code=204)


def session_of(who: Caller, body: dict[str, Any], request: Request) -> Session:
    """Return the session in a request's body; without the scope `assert`, its claims are those of the token.

    HttpError: 400 it states a time, or is no object; 403 it states what takes the scope. UsageError: malformed.
    """
    stated = body.get("session", {})
    if not isinstance(stated, dict) or "time" in stated:
        raise HttpError(400, "session has to be an object, and states no time", hint="the time is the service's")
    foreign = sorted(stated.keys() - set(_OWN))
    if foreign and not who.may(Scope.ASSERT):
        known = ", ".join(_OWN)
        raise HttpError(403, f"session: {foreign[0]!r:.60} takes the scope assert", hint=f"without it: {known}")
    own = {"claims": thawed(dict(who.principal.claims)), "request_id": request.scope["state"]["request_id"]}
    try:
        return Session.read({**own, **stated})
    except JsonValueError as error:
        raise HttpError(400, f"session: {error}") from None


def _decided(answer: dict[str, Any]) -> Response:
    count_decision(answer["verdict"] or "none", answer["codes"])
    return JSONResponse(answer)


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise HttpError(400, f"{name} has to be a text")
    return value


def _execution(value: Any) -> Execution:
    """Return what was reported. A failure without `effect` in its details is one of unknown effect."""
    if not isinstance(value, dict) or ("result" in value) == ("failure" in value):
        raise HttpError(400, "execution has to be an object with result or failure", hint="{started, result}")
    known_fields(value, "attempts", "failure", "result", "started")
    started, attempts = value.get("started", True), value.get("attempts", 1)
    if not isinstance(started, bool) or type(attempts) is not int or attempts < 1:
        raise HttpError(400, "execution: started is true or false, attempts a number from 1")
    if "result" in value:
        if not started:
            raise HttpError(400, "execution: what was not started has no result")
        return Execution(value["result"], attempts=attempts)
    try:
        failure = _FAILURE.validate_python(value["failure"])
    except ValidationError:
        raise HttpError(400, "execution: failure has to be {code, message, details?}") from None
    return Execution(failure=failure, started=started, attempts=attempts)


def _planned(plan: PlanEvaluation) -> dict[str, Any]:
    decision = plan.decision
    steps = [
        {
            "name": step.name,
            "status": step.status,
            "rejection": step.rejection and step.rejection.as_json(),
            "trips": [str(trip) for trip in step.trips],
        }
        for step in plan.checked.steps
    ]
    return {
        **decision.as_json(),
        "codes": decision.codes,
        "acceptable": plan.acceptable,
        "plan": plan.plan,
        "steps": steps,
    }
