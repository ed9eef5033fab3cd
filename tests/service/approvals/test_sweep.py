"""A background task of the service marks overdue approvals as expired. A failed task is repeated."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from pdp.stores.url import OpenStores
from tests.approvals.test_approvals import OPENED, body, entry
from tests.service.approvals.elsewhere import elsewhere
from tests.support import until
from tests.support.postgres import DATABASES, empty_database
from tests.support.service import service, tenant_on


@pytest.mark.parametrize("database", DATABASES)
async def test_only_one_of_two_services_expires_an_overdue_approval(database: str, tmp_path: Path) -> None:
    url = empty_database(database, tmp_path)
    OpenStores(url, upgrade=True).close()
    with elsewhere(url) as other:
        over = other.approvals.open(body(time=OPENED), entry(), ["approvals.required"])
        open_one = other.opened()
        async with service(tmp_path, url=url), service(tmp_path, url=url):
            # No request asks for the approval, so only the sweep can expire it.
            assert await asyncio.to_thread(until, lambda: other.approvals.get(over.id).state == "expired")
        assert other.approvals.get(open_one.id).state == "pending"
        taken = [step for _, step, of in other.events() if of == over.id]
        assert taken[:2] == ["approval.opened", "approval.expired"]


@pytest.mark.parametrize("database", DATABASES)
async def test_one_of_two_services_moves_old_events_to_files(database: str, tmp_path: Path) -> None:
    url = empty_database(database, tmp_path)
    archive = tmp_path / "archive"
    archive.mkdir()
    tenants = {"default": tenant_on(url, audit_days=30, audit_archive=archive)}
    with closing(OpenStores(url)) as stores, closing(stores.open_audit(None)) as log:
        for time in ("2026-07-01T10:00:00.000Z", "2026-07-02T10:00:00.000Z", "9999-01-01T10:00:00.000Z"):
            log.append({"time": time, "type": "note"})
        async with service(tmp_path, url=url, tenants=tenants), service(tmp_path, url=url, tenants=tenants):
            assert await asyncio.to_thread(until, lambda: len(log.lines(-1, 10)) == 2)
        rows = log.lines(-1, 10)

    assert [(row.seq, row.type) for row in rows] == [(2, "note"), (3, "audit.archived")]
    assert [path.name for path in archive.iterdir()] == ["audit-000000000000-000000000001.jsonl.gz"]


async def test_service_repeats_a_failed_background_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pdp.service.approvals.sweep._AFTER_FAULT", 0.01)
    url = empty_database("sqlite", tmp_path)
    OpenStores(url, upgrade=True).close()
    with elsewhere(url) as other:
        over = other.approvals.open(body(time=OPENED), entry(), ["approvals.required"])
        database = other.tokens._database
        with database.write() as connection:
            connection.exec_driver_sql("ALTER TABLE pdp_approvals RENAME TO away")
        async with service(tmp_path, url=url):
            assert await asyncio.to_thread(until, lambda: "a background task failed" in caplog.text)
            with database.write() as connection:
                connection.exec_driver_sql("ALTER TABLE away RENAME TO pdp_approvals")
            assert await asyncio.to_thread(until, lambda: other.approvals.get(over.id).state == "expired")
