"""The answer of `/metrics`: the counters of all workers, and the present state of engines, stores and the service."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import chain
from typing import Any, Final

from cryptography.x509 import load_pem_x509_certificate
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest, multiprocess
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pdp.errors import PdpError
from pdp.service.security.oidc import OidcAuthenticator
from pdp.service.state import BoundedChecks, Service, Tenant
from pdp.service.telemetry import WORKERS_FOLDER, workers

_log = logging.getLogger("pdp.service")
_EXPIRING_SECONDS: Final = 14 * 86_400
_KEYS_SECONDS: Final = 300
STATES: Final = {
    "pdp_engine_up": ("Whether the engine decides", ("tenant", "engine")),
    "pdp_opa_info": ("The version of the OPA that decides", ("tenant", "version")),
    "pdp_bundle_info": ("The bundle that decides", ("tenant", "revision", "release")),
    "pdp_bundle_age_seconds": ("Time since this process first decided with the bundle", ("tenant",)),
    "pdp_store_up": ("Whether the store can be read and written", ("tenant",)),
    "pdp_approvals_pending": ("Pending approvals by age: up to 5m, 1h, 1d, or older", ("tenant", "age")),
    "pdp_approvals_oldest_seconds": ("Age of the oldest pending approval, 0 without one", ("tenant",)),
    "pdp_grants_active": ("Lasting grants that have not ended", ("tenant",)),
    "pdp_budgets_unknown": ("Amounts of limits that calls with an unknown outcome hold", ("tenant",)),
    "pdp_keys_unknown": ("Calls whose outcome is unknown; counted every five minutes", ("tenant",)),
    "pdp_webhook_queue": ("Approval events that wait for the webhook", ("tenant", "webhook")),
    "pdp_tokens_expiring": ("Tokens that expire within 14 days", ("tenant",)),
    "pdp_oidc_up": ("Whether the keys of the OpenID Connect provider are current", ("issuer",)),
    "pdp_tls_certificate_expiry_timestamp_seconds": ("Time when the loaded TLS certificate expires", ()),
    "pdp_build_info": ("The version of tool-pdp", ("version",)),
}
_Sample = tuple[str, tuple[str, ...], float]


class Metrics:
    """The metrics of one process and its fellow workers. A scrape takes about two seconds at most, and never fails."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._checks = BoundedChecks()
        # Hanging databases may occupy the threads of the event loop, so the answer is written in a separate thread.
        self._writer = ThreadPoolExecutor(1, "pdp-metrics")
        self._constant: list[_Sample] = [("pdp_build_info", (version("tool-pdp"),), 1)]
        if service.settings.tls_cert is not None:
            # The server loads the certificate only once, so a file that is renewed later counts after a restart.
            expires = load_pem_x509_certificate(service.settings.tls_cert.read_bytes()).not_valid_after_utc
            self._constant.append(("pdp_tls_certificate_expiry_timestamp_seconds", (), expires.timestamp()))
        workers.set(1)

    async def text(self, reader: str) -> bytes:
        """Return the metrics without those of tenants other than `reader`, in Prometheus' text format."""
        service, now = self._service, time.time()
        checks: dict[Any, Callable[[], Any]] = {}
        for each in service.authenticators:
            if isinstance(each, OidcAuthenticator) and each.settings.tenant == reader:
                checks["oidc", each.settings.issuer] = each.keys.are_current
        checks["tokens"] = partial(_attempt, service.tokens.tokens.expiring, now, now + _EXPIRING_SECONDS)
        for name, tenant in service.tenants.items():
            checks["counts", name] = partial(_attempt, tenant.stores.counts, now)
            period = now // _KEYS_SECONDS * _KEYS_SECONDS
            checks["keys", name] = partial(_attempt, _keys_unknown, tenant.stores.keys_unknown, period)
        parts, found = await asyncio.gather(service.readiness.parts(), self._checks.results(checks))
        tenants = (_of_tenant(tenant, parts[name], found) for name, tenant in service.tenants.items())
        samples = [*self._constant, *chain.from_iterable(tenants)]
        samples += [("pdp_oidc_up", (key[1],), found.get(key, False)) for key in checks if key[0] == "oidc"]
        answer = partial(generate_latest, _Visible(samples, reader))
        return await asyncio.get_running_loop().run_in_executor(self._writer, answer)


@lru_cache(256)
def _keys_unknown(count: Callable[[float], int], now: float) -> int:
    # The number is counted once for each value of `now`, because no index helps.
    return count(now)


@dataclass(frozen=True)
class _Visible(Collector):
    """The metrics that a tenant may see."""

    samples: Iterable[_Sample]
    tenant: str

    def collect(self) -> Iterator[Metric]:
        registry = REGISTRY
        if WORKERS_FOLDER in os.environ:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        families = {name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in STATES.items()}
        for name, labels, value in self.samples:
            families[name].add_metric(labels, value)
        for metric in (*registry.collect(), *families.values()):
            metric.samples = [each for each in metric.samples if each.labels.get("tenant", "") in ("", self.tenant)]
            yield metric


async def _attempt(read: Callable[..., Any], *arguments: Any) -> Any:
    """Read from a store in a thread. Return None if that fails; the check of the store logs why a store is down."""
    try:
        return await asyncio.to_thread(read, *arguments)
    except Exception as error:  # noqa: BLE001 - a scrape never fails
        _log.log(logging.DEBUG if isinstance(error, PdpError) else logging.ERROR, "metrics: %s", error)


def _of_tenant(tenant: Tenant, parts: Mapping[str, Any], found: Mapping[Any, Any]) -> Iterator[_Sample]:
    name, engine, counts = tenant.name, parts["engine"], found.get(("counts", tenant.name))
    yield "pdp_engine_up", (name, tenant.pep.engine.name), engine["status"] == "ready"
    yield "pdp_store_up", (name,), parts["store"]["status"] == "ready" and counts is not None
    if engine["status"] == "ready":
        yield "pdp_bundle_info", (name, engine["bundle_revision"], str(engine["release"])), 1
        yield "pdp_bundle_age_seconds", (name,), engine["age_seconds"]
    if (opa := getattr(tenant.pep.engine, "opa_version", None)) is not None:
        yield "pdp_opa_info", (name, opa), 1
    if (expiring := found.get("tokens")) is not None:
        yield "pdp_tokens_expiring", (name,), expiring.get(name, 0)
    if (unknown := found.get(("keys", name))) is not None:
        yield "pdp_keys_unknown", (name,), unknown
    webhooks = {each.id: each.label for each in tenant.settings.webhooks}
    for metric, numbers in (counts or {}).items():
        for label, number in numbers.items():
            if metric != "webhook_queue" or label in webhooks:
                yield f"pdp_{metric}", (name, webhooks.get(label, label)) if label else (name,), number
