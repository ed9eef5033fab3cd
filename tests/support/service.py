"""The decision service with the payments example, in this process or in another one."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from pdp.service.app import create_app
from pdp.service.security.principal import Scope
from pdp.service.security.tokens import issue_token
from pdp.service.settings import ServiceSettings
from pdp.service.state import Service
from pdp.stores.sql.database import Database
from pdp.stores.url import OpenStores
from tests.support import PATIENCE, ROOT
from tests.support.command_line import environment, written
from tests.support.payments import EXAMPLE
from tests.support.postgres import empty_database

OFFICER = {
    "sub": "officer-123",
    "emts": {"payments.lookup": True, "payments.validate": True, "payments.wire.initiate": True},
    "limits": {"wire.auto_approved": 25000},
}
"""Claims of the person who requests wires in the payments example."""

APPROVER = {"sub": "approver-7", "roles": ["payments.approver"]}
"""Claims of the person who may approve wires in the payments example."""


class ServedApp:
    """A service in this process that tests call without a network."""

    def __init__(self, app: FastAPI, clients: AsyncExitStack) -> None:
        self.app = app
        self._clients = clients

    @property
    def service(self) -> Service:
        service: Service = self.app.state.service
        return service

    def token(
        self, scopes: Iterable[str] = Scope, claims: Mapping[str, Any] = OFFICER, *, tenant: str = "default"
    ) -> str:
        return issue_token(
            self.service.tokens.tokens, tenant, {"name": "test", "scopes": [*scopes], "claims": {**claims}}
        )[1]

    def client(
        self,
        scopes: Iterable[str] = Scope,
        claims: Mapping[str, Any] = OFFICER,
        *,
        tenant: str = "default",
        token: str | None = None,
    ) -> httpx.AsyncClient:
        """Return a client that sends this token or a new token. If the token is an empty text, it sends none."""
        bearer = self.token(scopes, claims, tenant=tenant) if token is None else token
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8181", headers=headers)
        self._clients.push_async_callback(client.aclose)
        return client


def tenant_on(url: str, **settings: Any) -> dict[str, Any]:
    """Return the settings of a tenant with the payments example. Its database at `url` must have its tables."""
    Database.open(url, upgrade=True).close()
    return {"project": EXAMPLE / "pdp.yaml", "store": url, **settings}


def settings_on(url: str, **settings: Any) -> ServiceSettings:
    """Return the settings of a service. By default, its only tenant is `default`."""
    return ServiceSettings(**{"tenants": {"default": tenant_on(url)}, **settings})


@asynccontextmanager
async def service(folder: Path, database: str = "sqlite", **settings: Any) -> AsyncIterator[ServedApp]:
    """Serve the payments example with a new database of one of `DATABASES`, or with the database at `url`."""
    url = settings.pop("url", None) or empty_database(database, folder)
    app = create_app(settings_on(url, **settings))
    async with app.router.lifespan_context(app), AsyncExitStack() as clients:
        yield ServedApp(app, clients)


class RunningService:
    """A service that `pdp serve` runs in another process. Its URL is `url`, and its log is in the file `log`."""

    def __init__(self, process: subprocess.Popen[str], url: str, store: str, log: Path, clients: ExitStack) -> None:
        self.process = process
        self.url = url
        self.log = log
        self.store = store
        self._clients = clients

    def token(
        self, scopes: Iterable[str] = Scope, claims: Mapping[str, Any] = OFFICER, *, tenant: str = "default"
    ) -> str:
        with closing(OpenStores(self.store)) as stores:
            return issue_token(stores.tokens, tenant, {"name": "test", "scopes": [*scopes], "claims": {**claims}})[1]

    def client(self, scopes: Iterable[str] = Scope, claims: Mapping[str, Any] = OFFICER) -> httpx.Client:
        bearer = {"Authorization": f"Bearer {self.token(scopes, claims)}"}
        return self._clients.enter_context(httpx.Client(base_url=self.url, headers=bearer, timeout=PATIENCE))


@contextmanager
def running_service(folder: Path, database: str = "sqlite", **settings: Any) -> Iterator[RunningService]:
    """Serve the payments example in another process, on a free port. `tenant` adds settings of the tenant."""
    store = settings.pop("url", None) or empty_database(database, folder)
    tenant = {**tenant_on(store), "project": str(EXAMPLE / "pdp.yaml"), **settings.pop("tenant", {})}
    config = written(folder / "service.json", {"port": 0, "tenants": {"default": tenant}, **settings})
    with ExitStack() as owned:
        log = owned.enter_context((folder / "service.log").open("ab"))
        process = owned.enter_context(subprocess.Popen(
            [sys.executable, "-m", "pdp", "serve", "--config", config],
            cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=log, text=True,
        ))  # fmt: skip
        owned.callback(process.kill)
        assert process.stdout is not None
        greeting = next((line for line in process.stdout if line.startswith("serving ")), None)
        assert greeting is not None, Path(log.name).read_text()
        yield RunningService(process, greeting.split()[1], store, Path(log.name), owned)
