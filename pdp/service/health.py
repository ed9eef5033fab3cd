"""Alive, ready, what is counted, and the record of events."""

import asyncio
import logging
import time
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pdp.errors import AnswerInvalidError, PdpError
from pdp.service.models.operation import Alive, AuditPage, AuditQuery, ReadinessAnswer
from pdp.service.requests import Auditor, ServiceRoute, bounded_page, service_of
from pdp.service.telemetry import metrics_text
from pdp.service.tenant import Tenant

router = APIRouter(route_class=ServiceRoute, tags=["operation"])


_SECONDS: Final = 2.0  # in which engine and store have to answer
_WHY: Final = {"store.schema": "its tables are of another release", "timeout": f"no answer within {_SECONDS:g} s"}
_log = logging.getLogger("pdp.service")


class Readiness:
    """Whether all tenants' engines and stores can be used, asked at most once a second, however many want to know.

    A tenant's part is shown where the service has no other: nobody sees what another tenant has. What hangs is not
    asked again before it ends.
    """

    def __init__(self, tenants: dict[str, "Tenant"]) -> None:
        self._tenants = list(tenants.values())
        self._turn = asyncio.Lock()
        self._until = 0.0
        self._answer: dict[str, Any] = {}
        self._since: dict[tuple[str, str], float] = {}
        self._asked: dict[tuple[str, str], asyncio.Task[dict[str, Any]]] = {}

    async def answer(self) -> dict[str, Any]:
        """Return `status`, `ready` or `unready`; and of a single tenant `engine`, and `store` with the audit stream."""
        async with self._turn:
            if time.monotonic() >= self._until:
                parts = await asyncio.gather(*map(self._part, self._tenants))
                ready = all(state["status"] == "ready" for part in parts for state in part.values())
                shown = parts[0] if len(parts) == 1 else {}
                self._answer = {"status": "ready" if ready else "unready", **shown}
                self._until = time.monotonic() + 1
        return self._answer

    async def _part(self, tenant: "Tenant") -> dict[str, dict[str, Any]]:
        checks = {"engine": self._engine, "store": self._store}
        for name, check in checks.items():
            if (tenant.name, name) not in self._asked:
                self._asked[tenant.name, name] = asyncio.create_task(check(tenant))
        asked = {name: self._asked[tenant.name, name] for name in checks}
        done, _ = await asyncio.wait(asked.values(), timeout=_SECONDS)
        for name, task in asked.items():
            if task in done:
                del self._asked[tenant.name, name]
        late = _WHY["timeout"]
        return {
            name: task.result() if task in done else {"status": "unready", "code": f"{name}.timeout", "reason": late}
            for name, task in asked.items()
        }

    async def _store(self, tenant: "Tenant") -> dict[str, Any]:
        try:
            return {"status": "ready", "revision": await asyncio.to_thread(tenant.stores.check)}
        except PdpError as error:
            _log.error("tenant %s: not ready: %s", tenant.name, error)
            why = _WHY.get(error.code, "it cannot be written to; the log says why")
            return {"status": "unready", "code": error.code, "reason": why}

    async def _engine(self, tenant: "Tenant") -> dict[str, Any]:
        # No request at all: the policy denies it, and says which one it is.
        engine = tenant.pep.engine
        decision, healthy = await asyncio.gather(engine.adecide_body(b"{}"), engine.ahealthy())
        if not healthy and (decision.bundle_revision or decision.codes == (AnswerInvalidError.code,)):
            why = "OPA's bundles are not activated, or a plugin is not up; see: pdp opa status"
            _log.error("tenant %s: not ready: %s", tenant.name, why)
            return {"status": "unready", "name": engine.name, "code": "engine.not_ready", "reason": why}
        if decision.bundle_revision is None:
            code, why = decision.reasons[0].code, "it gives no decision; the log says why"
            _log.error("tenant %s: not ready: %s", tenant.name, decision.reasons[0].text)
            return {"status": "unready", "name": tenant.pep.engine.name, "code": code, "reason": why}
        since = self._since.setdefault((tenant.name, decision.bundle_revision), time.time())
        return {
            "status": "ready",
            "name": tenant.pep.engine.name,
            "bundle_revision": decision.bundle_revision,
            "release": decision.release,
            "age_seconds": round(time.time() - since),
        }


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz")
async def check_health() -> Alive:
    """Answer 200 while the process runs."""
    return Alive(status="ok")


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses={503: {"model": ReadinessAnswer, "description": "Some part is unready"}})
async def check_readiness(request: Request, response: Response) -> ReadinessAnswer:
    """Answer 200 when calls can be decided and recorded, else 503."""
    answer = await service_of(request).readiness.answer()
    response.status_code = 200 if answer["status"] == "ready" else 503
    return ReadinessAnswer.model_validate(answer)


@router.get("/metrics", response_class=PlainTextResponse)
async def read_metrics(_: Auditor) -> Response:
    """Answer with the metrics of all tenants and workers, in Prometheus' text format."""
    text = await asyncio.to_thread(metrics_text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/audit", response_model=AuditPage)
async def read_audit(request: Request, who: Auditor, asked: Annotated[AuditQuery, Query()]) -> Response:
    """Answer with the tenant's events, in the order of their chain."""
    limit = bounded_page(request, asked.limit)
    rows = await asyncio.to_thread(who.tenant.stream.lines, asked.after, limit)
    last = rows[-1].seq if rows else asked.after
    events = ",".join(row.line for row in rows)
    return Response(f'{{"events":[{events}],"last":{last}}}', media_type="application/json")
