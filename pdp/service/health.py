"""Liveness, readiness, metrics, and the audit stream."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pdp.service.models.operation import Alive, AuditPage, AuditQuery, ReadinessAnswer
from pdp.service.requests import Auditor, MetricsReader, ServiceRoute, bounded_page
from pdp.service.state import service_of
from pdp.stores.sql.events import Wanted

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
async def read_metrics(request: Request, who: MetricsReader) -> Response:
    """Return the metrics of the service, its workers and the token's tenant, in Prometheus' text format."""
    text = await request.app.state.metrics.text(who.tenant.name)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/audit", response_model=AuditPage)
async def read_audit(request: Request, who: Auditor, asked: Annotated[AuditQuery, Query()]) -> Response:
    """Return the tenant's audit events, the oldest first."""
    limit = bounded_page(request, asked.limit)
    wanted = Wanted(**asked.model_dump(exclude={"after", "limit"}, warnings=False), every=True)
    rows, last = await asyncio.to_thread(who.tenant.stream.page, wanted, asked.after, limit)
    events = ",".join(row.line for row in rows)
    return Response(f'{{"events":[{events}],"last":{last}}}', media_type="application/json")
