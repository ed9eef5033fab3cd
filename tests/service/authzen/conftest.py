"""Fixtures for the AuthZEN tests: a service with a directory of subjects and resources, and a client of the service."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pdp.stores.sql.database import Database
from tests.service.authzen.questions import project_in
from tests.support.postgres import empty_database
from tests.support.service import ServedApp, service, tenant_on


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ServedApp]:
    url = empty_database("sqlite", tmp_path)
    tenant = tenant_on(url) | {"project": project_in(tmp_path)}
    async with service(tmp_path, url=url, tenants={"default": tenant}) as opened:
        yield opened


@pytest.fixture
def client(served: ServedApp) -> httpx.AsyncClient:
    """Return a client whose token may ask for decisions about any subject."""
    return served.client(["decide", "assert"], {})


def events(served: ServedApp) -> list[dict[str, Any]]:
    lines: Any = served.service.tenants["default"].pep.audit
    return [json.loads(row.line) for row in lines.lines(-1, 1000)]


def lose_the_stream(served: ServedApp) -> None:
    """Drop the table of audit events, so that the service cannot record events."""
    with Database.open(served.service.settings.tenants["default"].store) as database, database.write() as connection:
        connection.exec_driver_sql("DROP TABLE pdp_audit")
