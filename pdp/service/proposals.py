"""Calls of remote enforcement points: begun, finished, planned; and the sessions that callers may state."""

import asyncio
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pdp.decision import new_id
from pdp.flow.preview import PlanEvaluation
from pdp.flow.remote.calls import as_answer
from pdp.flow.stages import CallIds
from pdp.json import JsonValueError, canonical, digest, thawed
from pdp.proposal import Execution, Failure
from pdp.service.models.proposals import Failed, ProposedCall, ProposedPlan, ReportedResult, SessionBody
from pdp.service.requests import Caller, HttpError, Proposer, ServiceRoute, caller, read_model, read_object
from pdp.service.security.principal import Scope
from pdp.service.telemetry import count_decision
from pdp.session import Session
from pdp.stores.remote_calls import CallName

router = APIRouter(route_class=ServiceRoute, tags=["proposals"])

_OWN: Final = ("purpose", "idempotency_key", "run_id", "request_id", "plan")


async def propose(request: Request) -> Response:
    """Decide a proposal, and let the caller run it; or check a whole plan."""
    who = await caller(request, Scope.PROPOSE)
    body = await read_object(request)
    if "plan" in body:
        plan = read_model(ProposedPlan, body)
        return JSONResponse(_planned(await who.tenant.pep.aplan(plan.plan, session_of(who, plan, request))))
    call = read_model(ProposedCall, body)
    session = session_of(who, call, request)
    ids: CallIds = {"tool_call_id": call.tool_call_id, "step_name": call.step_name}
    call_id = call.id or new_id()
    if not call.run:
        evaluation = await who.tenant.pep.adecide(call.proposal, session, **ids)
        return _decided({**as_answer(evaluation), "id": call_id})
    name = CallName(call_id, who.principal.id, digest(canonical([who.principal.id, {**body, "id": call_id}])))
    proposer = who.principal.claims
    return _decided(await who.tenant.pep.abegin(name, call.proposal, session, proposer=proposer, **ids))


async def report(request: Request) -> Response:
    """Take what a call that was begun came to."""
    who = await caller(request, Scope.PROPOSE)
    name = CallName(request.path_params["call_id"], who.principal.id)
    reported = read_model(ReportedResult, await read_object(request)).execution
    if isinstance(reported, Failed):
        failure = Failure(**dict(reported.failure))
        execution = Execution(failure=failure, started=reported.started, attempts=reported.attempts)
    else:
        execution = Execution(reported.result, attempts=reported.attempts)
    return JSONResponse(await who.tenant.pep.afinish(name, execution))


RAW: Final = (("/v1/proposals", propose), ("/v1/proposals/{call_id}/result", report))
"""Paths and endpoints that read the request themselves; `openapi` says which models they take and answer with."""


@router.post("/v1/runs/{run_id}/end", status_code=204)
async def end_run(request: Request, who: Proposer, run_id: str, body: SessionBody | None = None) -> None:
    """End a run, so that what it has read is forgotten."""
    await asyncio.to_thread(who.tenant.pep.end_run, run_id, session_of(who, body, request))


def session_of(who: Caller, body: SessionBody | None, request: Request) -> Session:
    """Return the session in a request's body; without the scope `assert`, its claims are those of the token.

    HttpError: 400 a value is not admitted; 403 the session states something for which the token lacks the scope.
    """
    stated = {} if body is None else {name: getattr(body.session, name) for name in body.session.model_fields_set}
    foreign = sorted(stated.keys() - set(_OWN))
    if foreign and not who.may(Scope.ASSERT):
        known = ", ".join(_OWN)
        raise HttpError(403, f"session: {foreign[0]!r:.60} takes the scope assert", hint=f"without it: {known}")
    own = {"claims": thawed(dict(who.principal.claims)), "request_id": request.state.request_id}
    try:
        return Session.read({**own, **stated})
    except JsonValueError as error:
        raise HttpError(400, f"session: {error}") from None


def _decided(answer: dict[str, Any]) -> Response:
    count_decision(answer["verdict"] or "none", answer["codes"])
    return JSONResponse(answer)


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
