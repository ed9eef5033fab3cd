"""Routes for remote enforcement points: calls, their results, plans, lists of tools, and the manifest."""

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pdp.decision import new_id
from pdp.flow.preview import PlanEvaluation
from pdp.flow.remote.calls import as_answer
from pdp.flow.reserve import RUNNING
from pdp.flow.stages import CallIds
from pdp.json import JsonValueError, canonical, digest, thawed
from pdp.manifest.exports import export_tools
from pdp.manifest.expressions.expression import compile_expression
from pdp.manifest.model import Tool
from pdp.proposal import Execution, Failure
from pdp.service.errors import HttpError, read_model
from pdp.service.models.operation import ManifestAnswer, ToolList, ToolsQuery, VisibleTool
from pdp.service.models.proposals import (
    KEY_CODES,
    Failed,
    PlanAnswer,
    ProposalAnswer,
    ProposedCall,
    ProposedPlan,
    ReportedResult,
    SessionBody,
)
from pdp.service.requests import Proposer, ServiceRoute, caller, direct_endpoint, read_object
from pdp.service.security.principal import Scope
from pdp.service.state import Caller
from pdp.service.telemetry import count_decision
from pdp.session import Session
from pdp.stores.remote_calls import CallName

router = APIRouter(route_class=ServiceRoute, tags=["proposals"])

_FREE_FIELDS: Final = ("purpose", "idempotency_key", "run_id", "request_id", "plan")


@direct_endpoint(router, "/v1/proposals", Scope.PROPOSE, ProposedCall | ProposedPlan, ProposalAnswer | PlanAnswer)
async def propose(request: Request) -> Response:
    """Propose a call, or check a plan.

    If the answer has `begun: true`, run the tool at once with the answer's `arguments`, and report the result to
    `/v1/proposals/{call_id}/result`. If an answer was lost, send the request again: until the call has ended, the same
    `id` and body get the same answer. A different body with the `id` of a call that has begun gets status 409.

    Run the tool only if `begun` is true, even if the verdict is ALLOW. If a call with the same idempotency key may be
    running or have an effect, the answer is 409 `idempotency.in_flight` or `idempotency.unknown`.
    """
    who = await caller(request, Scope.PROPOSE)
    body = await read_object(request)
    if "plan" in body:
        plan = read_model(ProposedPlan, body)
        return JSONResponse(_plan_answer(await who.tenant.pep.aplan(plan.plan, session_of(who, plan, request))))
    call = read_model(ProposedCall, body)
    session = session_of(who, call, request)
    ids: CallIds = {"tool_call_id": call.tool_call_id, "step_name": call.step_name}
    call_id = call.id or new_id()
    if not call.run:
        evaluation = await who.tenant.pep.adecide(call.proposal, session, **ids)
        return _decision_response(who, call, {**as_answer(evaluation), "id": call_id})
    name = CallName(call_id, who.principal.id, digest(canonical([who.principal.id, {**body, "id": call_id}])))
    proposer = who.principal.claims
    answer = await who.tenant.pep.abegin(name, call.proposal, session, proposer=proposer, **ids)
    return _decision_response(who, call, answer)


@direct_endpoint(router, "/v1/proposals/{call_id}/result", Scope.PROPOSE, ReportedResult, ProposalAnswer)
async def report_result(request: Request) -> Response:
    """Report the result of a call that has begun.

    The service checks the result against the manifest, applies the decision's obligations to the result, and returns
    the result. If the same result is reported again, the answer is the answer to the first report.
    """
    who = await caller(request, Scope.PROPOSE)
    name = CallName(request.path_params["call_id"], who.principal.id)
    reported = read_model(ReportedResult, await read_object(request)).execution
    if isinstance(reported, Failed):
        failure = Failure(**dict(reported.failure))
        execution = Execution(failure=failure, started=reported.started, attempts=reported.attempts)
    else:
        execution = Execution(reported.result, attempts=reported.attempts)
    return JSONResponse(await who.tenant.pep.afinish(name, execution))


@router.post("/v1/runs/{run_id}/end", status_code=204)
async def end_run(request: Request, who: Proposer, run_id: str, body: SessionBody | None = None) -> None:
    """End a run. The service then forgets the labels of the data that the run has read."""
    await asyncio.to_thread(who.tenant.pep.end_run, run_id, session_of(who, body, request))


@router.get("/v1/tools")
async def list_tools(request: Request, who: Proposer, asked: Annotated[ToolsQuery, Query()]) -> ToolList:
    """List the tools that the token's subject may call."""
    return await list_tools_of_session(request, who, asked)


@router.post("/v1/tools")
async def list_tools_of_session(
    request: Request, who: Proposer, asked: Annotated[ToolsQuery, Query()], body: SessionBody | None = None
) -> ToolList:
    """List the tools that may be called in the session in the request body."""
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
    """Return the effective manifest: the entries of the manifest, completed by the governance file."""
    manifest = who.tenant.pep.manifest
    tools = {
        name: entry.model_dump(mode="json", by_alias=True, exclude_none=True) for name, entry in manifest.tools.items()
    }
    document = thawed(manifest.document)
    return ManifestAnswer(version=manifest.version, digest=manifest.digest, document=document, tools=tools)


def session_of(who: Caller, body: SessionBody | None, request: Request) -> Session:
    """Return the session in a request body. Raise `HttpError` 400 if invalid, 403 if it needs the scope `assert`."""
    stated = {} if body is None else {name: getattr(body.session, name) for name in body.session.model_fields_set}
    foreign = sorted(stated.keys() - set(_FREE_FIELDS))
    if foreign and not who.may(Scope.ASSERT):
        known = ", ".join(_FREE_FIELDS)
        raise HttpError(403, f"session: {foreign[0]!r:.60} needs the scope assert", hint=f"without it: only {known}")
    own = {"claims": thawed(dict(who.principal.claims)), "request_id": request.state.request_id}
    try:
        return Session.read({**own, **stated})
    except JsonValueError as error:
        raise HttpError(400, f"session: {error}") from None


def _decision_response(who: Caller, call: ProposedCall, answer: dict[str, Any]) -> Response:
    """Return the answer. Raise `HttpError` 409 if the call may be running or may have run, so it must not run now."""
    tenant, tool = who.tenant, call.proposal.get("tool") if isinstance(call.proposal, dict) else None
    count_decision(tenant.name, tenant.pep.manifest.tools, tool, answer["verdict"] or "none", answer["codes"])
    failure = answer["outcome"].get("failure")
    if failure and failure["details"].get("effect") == "unknown" and not (answer["executed"] or answer["replayed"]):
        is_running = failure["message"] == RUNNING
        next_step = "propose the call again later" if is_running else "a person must settle it with `pdp keys settle`"
        hint, headers = f"do not run the tool; {next_step}", {"Retry-After": "5"} if is_running else None
        raise HttpError(409, failure["message"], code=KEY_CODES[not is_running], hint=hint, headers=headers)
    return JSONResponse(answer)


def _plan_answer(plan: PlanEvaluation) -> dict[str, Any]:
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


def condition_of(entry: Tool) -> str:
    """Explain in words what the decision on a call of the tool depends on, apart from the caller."""
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
        else f"{limit.argument} has the limit {limit.limit}"
        for limit in entry.limits
    ]
    parts += [f"{name} must name its sources" for name in entry.provenance.required]
    parts += [f"the policy checks the origin of {name} ({role})" for name, role in (entry.roles or {}).items()]
    parts += [f"the policy reads {', '.join(mapped)}"] if mapped else []
    return f"It depends on the arguments: {'; '.join(parts)}." if parts else "Each call is decided separately."
