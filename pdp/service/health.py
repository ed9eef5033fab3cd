"""Liveness, readiness, metrics, and the audit stream."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pdp.service.models.operation import Alive, AuditPage, AuditQuery, ReadinessAnswer
from pdp.service.requests import Auditor, ServiceRoute, bounded_page
from pdp.service.state import service_of
from pdp.service.telemetry import metrics_text

router = APIRouter(route_class=ServiceRoute, tags=["operation"])


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz")
async def check_health() -> Alive:
    """Answer 200 while the process runs."""
    return Alive(status="ok")


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses={503: {"model": ReadinessAnswer, "description": "An engine or a store is unready"}})
async def check_readiness(request: Request, response: Response) -> ReadinessAnswer:
    """Answer 200 if calls can be decided and recorded, otherwise 503."""
    answer = await service_of(request).readiness.answer()
    response.status_code = 200 if answer["status"] == "ready" else 503
    return ReadinessAnswer.model_validate(answer)


@router.get("/metrics", response_class=PlainTextResponse)
async def read_metrics(_: Auditor) -> Response:
    """Return the metrics of all tenants and workers in Prometheus' text format."""
    text = await asyncio.to_thread(metrics_text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/audit", response_model=AuditPage)
async def read_audit(request: Request, who: Auditor, asked: Annotated[AuditQuery, Query()]) -> Response:
    """Return the tenant's audit events, the oldest first."""
    limit = bounded_page(request, asked.limit)
    rows = await asyncio.to_thread(who.tenant.stream.lines, asked.after, limit)
    last = rows[-1].seq if rows else asked.after
    events = ",".join(row.line for row in rows)
    return Response(f'{{"events":[{events}],"last":{last}}}', media_type="application/json")
