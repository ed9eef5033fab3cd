"""Each alert fires for a service that has the fault, and no alert fires for a service without faults."""

import json
import os
import re
import resource
import signal
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import Metric
from sqlalchemy import make_url
from typer.main import get_command

from pdp.cli.app import app
from tests.service.approvals.test_webhooks import SECRET
from tests.service.faults.test_reuse import proposed
from tests.service.faults.test_storage import REQUEST
from tests.service.test_server import ended
from tests.support import PATIENCE, ROOT, until
from tests.support.command_line import written
from tests.support.postgres import fresh_database
from tests.support.servers.alerts import (
    ALERTS,
    NO_PROMTOOL,
    PROMTOOL,
    RULES,
    Scrape,
    check_alerts,
    promtool,
    read,
    scrape,
)
from tests.support.servers.certificates import certificate
from tests.support.servers.opa import free_port
from tests.support.service import RunningService, running_service, service

BOARD = ROOT / "deploy/grafana/board.json"
PROVIDER = "http://127.0.0.1:1/realm"
STATIC = {"PdpCertificateExpiring", "PdpOidcDown", "PdpKeysUnknown", "PdpTokensExpiring"}
WAITING = {*STATIC, "PdpApprovalWaits"}
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason=NO_PROMTOOL)

LABELS = re.compile(r'\b(?:by|on) \(([^)]*)\)|(\w+)(?:=~|!=|=)"')


@pytest.mark.process
@pytest.mark.opa
def test_each_fault_of_a_service_fires_its_alert(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "127.0.0.1")
    oidc = {"issuer": PROVIDER, "audience": "pdp", "jwks_url": f"{PROVIDER}/keys"}
    with free_port() as port:
        hook = {"url": f"http://127.0.0.1:{port}/hook", "secret": SECRET, "private": True}
        tenant = {"engine": "sidecar", "webhooks": [hook]}
        with (
            running_service(tmp_path, tls_cert=str(cert), tls_key=str(key), oidc=[oidc], tenant=tenant) as running,
            httpx.Client(base_url=running.url, verify=False, timeout=PATIENCE) as client,  # noqa: S501 - self-signed
            closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as database,
        ):
            watched = Watched(tmp_path, running, client, database)
            watched.opa_stops()
            watched.disk_is_full()
            watched.database_is_locked()
            watched.approval_waits_and_webhook_is_down()
            healthy = watched.scrape()
            [age] = [each for each in healthy.samples if each[0] == "pdp_bundle_age_seconds"]
            old = healthy._replace(samples={**healthy.samples, age: 90 * 86_400 + 1})
            check_alerts(tmp_path, [healthy, old], WAITING, {*WAITING, "PdpBundleOld"})
            running.process.send_signal(signal.SIGTERM)
            assert ended(running) == 0
            check_alerts(tmp_path, [healthy, scrape(client)], WAITING, {"PdpDown"})
    check_names(tmp_path, healthy.families)


class Watched:
    """A service that Prometheus watches. From the start, some alerts fire: `STATIC`."""

    def __init__(
        self, folder: Path, running: RunningService, client: httpx.Client, database: sqlite3.Connection
    ) -> None:
        self._folder = folder
        self._running = running
        self._client = client
        self._database = database
        self._agent = {"Authorization": f"Bearer {running.token()}"}
        assert client.get("/metrics", headers={"Authorization": "Bearer pdp_"}).status_code == 401
        client.headers["Authorization"] = f"Bearer {running.token(['metrics'])}"
        begun = client.post("/v1/proposals", json=proposed(amount=20), headers=self._agent).json()
        assert begun["begun"] is True
        database.execute("UPDATE pdp_idempotency SET running_until = 0")
        database.execute("UPDATE pdp_tokens SET expires_at = unixepoch() + 86400")
        assert self.decision() is True

    def scrape(self, **expected: float) -> Scrape:
        """Scrape the service until the metrics have these values."""
        last: list[Scrape] = []

        def is_expected() -> bool:
            last[:] = [scrape(self._client)]
            return all(last[0].value(name) == value for name, value in expected.items())

        assert until(is_expected)
        return last[0]

    def decision(self) -> object:
        """Ask for a decision, and return it or the status of an error."""
        answer = self._client.post("/access/v1/evaluation", json=REQUEST, headers=self._agent)
        return answer.json()["decision"] if answer.status_code == 200 else answer.status_code

    def check(self, scrapes: list[Scrape], *alerts: str, **options: bool) -> None:
        """Check that these alerts fire in addition to those from the start."""
        check_alerts(self._folder, scrapes, STATIC, {*STATIC, *alerts}, **options)

    def opa_stops(self) -> None:
        before = self.scrape(pdp_engine_up=1)
        with stopped(*children(self._running.process.pid, "opa")):
            assert self.decision() is False
            first = self.scrape(pdp_engine_up=0)
            assert self.decision() is False
            self.check([before, first, self.scrape()], "PdpEngineDown", "PdpDecisionsFailing")
        assert self.scrape(pdp_engine_up=1)

    def disk_is_full(self) -> None:
        before, pid = self.scrape(pdp_store_up=1), self._running.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        # With a limit of zero bytes per file, all writes of the process fail, as with a full disk.
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
        assert self.decision() == 503
        self.check([before, self.scrape(pdp_store_up=0)], "PdpStoreDown", "PdpAuditWriteFailing")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
        assert self.scrape(pdp_store_up=1)

    def database_is_locked(self) -> None:
        before = self.scrape(pdp_store_up=1)
        self._database.execute("BEGIN IMMEDIATE")
        # No sweep can end while another program has locked the database.
        self.check([before, self.scrape(pdp_store_up=0)], "PdpStoreDown", "PdpSweepStalled", swept=False)
        self._database.execute("ROLLBACK")
        assert self.scrape(pdp_store_up=1)

    def approval_waits_and_webhook_is_down(self) -> None:
        before, held = self.scrape(), proposed({"idempotency_key": "idm-2"}, amount=30_000)
        answer = self._client.post("/v1/proposals", json=held, headers=self._agent)
        assert answer.json()["verdict"] == "STEP_UP"
        self._database.execute("UPDATE pdp_approvals SET opened_at = '2026-01-01T00:00:00Z'")
        assert until(lambda: self.scrape().value("pdp_webhook_failures_total") >= 5)
        after = self.scrape(pdp_webhook_queue=1, pdp_approvals_pending=1)
        self.check([before, after], "PdpApprovalWaits", "PdpWebhookFailing")


@pytest.mark.process
async def test_scraper_learns_that_postgresql_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(tmp_path, url=fresh_database()) as served:
        scraper = served.client(["metrics"])
        postgres = postmaster(served.service.tenants["default"].settings.store)
        monkeypatch.setattr("pdp.service.security.tokens._REMEMBERED_SECONDS", 0.0)
        healthy = read((await scraper.get("/metrics")).text)
        while healthy.value("pdp_sweep_last_success_timestamp_seconds") < -PATIENCE:  # The first sweep is running.
            healthy = read((await scraper.get("/metrics")).text)
        with stopped(postgres, *children(postgres)):
            answer = await scraper.get("/metrics")
        # The service must not close its connections while threads wait for the server.
        again = read((await scraper.get("/metrics")).text)
        while again.value("pdp_store_up") == 0:
            again = read((await scraper.get("/metrics")).text)
    assert answer.status_code == 200
    down = read(answer.text)
    assert (down.value("pdp_store_up"), down.value("pdp_engine_up")) == (0, 1)
    assert "pdp_approvals_oldest_seconds" not in {name for name, _ in down.samples}
    check_alerts(tmp_path, [healthy, down], [], {"PdpStoreDown"})


def postmaster(url: str) -> int:
    """Return the id of the process of a local PostgreSQL server."""
    return int(Path(str(make_url(url).query["host"]), "data/postmaster.pid").read_text().split()[0])


def children(parent: int, name: str = "") -> list[int]:
    """Return the ids of the child processes whose command line has this name."""
    found = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    return [child for child in found if name in Path(f"/proc/{child}/cmdline").read_text()]


@contextmanager
def stopped(*processes: int) -> Iterator[None]:
    """Stop processes until the `with` block ends."""
    assert processes
    try:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def check_names(folder: Path, families: Mapping[str, Metric]) -> None:
    """Check that the board and the rules name metrics and labels of a service."""
    labels: dict[str, set[str]] = {}
    for family in families.values():
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    board = json.loads(BOARD.read_text())
    charted = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(charted) > 20
    for expr in [*charted, *(rule["expr"] for rule in ALERTS.values() if rule["alert"] != "PdpDown")]:
        names = re.findall(r"\bpdp_\w+", expr)
        assert names, expr
        assert labels.keys() >= {*names}, expr
        used = {each.strip() for pair in LABELS.findall(expr) for part in pair for each in part.split(",")} - {""}
        assert used <= {"instance"}.union(*(labels[name] for name in names)), expr
    rules = [
        {"record": f"board:{at}", "expr": expr.replace("$__rate_interval", "5m").replace("$tenant", "default")}
        for at, expr in enumerate(charted)
    ]
    promtool("check", "rules", written(folder / "board.json", {"groups": [{"name": "board", "rules": rules}]}), RULES)


def options(usage: str) -> set[str]:
    """Return the options that the command in a usage line has."""
    command: Any = get_command(app)
    for word in usage.split()[1:]:
        if not hasattr(command, "list_commands"):
            break
        command = command.get_command(None, word)
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_each_alert_has_its_steps_and_their_commands_exist() -> None:
    for name, rule in ALERTS.items():
        annotations = rule["annotations"]
        assert annotations.keys() == {"summary", "description", "steps", "runbook_url"}
        assert annotations["runbook_url"].endswith(f"/reference/alerts/#{name.lower()}")
        assert all(line.startswith(("- ", "  ")) for line in annotations["steps"].splitlines())
    steps = "".join(rule["annotations"]["steps"] for rule in ALERTS.values())
    usages = re.findall(r"(?<=[`=) ])pdp [a-z][^`]*", steps)
    unknown = {usage: set(re.findall(r" (--?[a-z][a-z-]*)", usage)) - options(usage) for usage in usages}
    assert {usage: names for usage, names in unknown.items() if names} == {}
    assert len(usages) > 10
