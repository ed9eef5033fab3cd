"""The inbox and the page of one approval: people see them by their rights, and decide on them."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from pdp.clock import to_seconds
from pdp.stores.approvals import Approval, ApprovalState
from tests.service.console import signed_in, words_of
from tests.support.payments import session, wire
from tests.support.postgres import DATABASES
from tests.support.service import APPROVER, OFFICER, ServedApp, service

CLERK = {**OFFICER, "sub": "officer-9"}
RIGHTS = [*OFFICER["emts"]]


async def opened(served: ServedApp, number: int = 0, *, claims: dict[str, Any] = OFFICER, **changes: Any) -> Approval:
    tenant = served.service.tenants["default"]
    context = session(time=None, claims=claims, idempotency_key=f"key-{number}", run_id=f"run-{number}")
    evaluation = await tenant.pep.acall(wire(amount=40_000 + number, **changes), context)
    assert evaluation.approval is not None
    return evaluation.approval


def state(served: ServedApp, approval: Approval) -> ApprovalState:
    return served.service.tenants["default"].approvals.get(approval.id).state


async def test_approver_grants_one_and_denies_its_look_alike(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        first, second = await opened(served, 0, reference="INV-8842"), await opened(served, 1, reference="INV-8824")
        visitor = await signed_in(served)

        inbox = await visitor.get("approvals")
        assert "<title>(2) Inbox" in inbox.text
        granted = await visitor.posted(f"approvals/{first.id}", {"step": "once"})
        assert (granted.status_code, granted.headers["location"]) == (303, f"/console/approvals/{first.id}")
        page = words_of(await visitor.get(f"approvals/{second.id}"))
        assert "The amount is above what the subject may do without approval. limits.exceeded" in page
        assert "Limit wire.auto_approved : 25000 . Proposed: 40001" in page
        assert "amount 40001 40000 beneficiary_id bene-acme-441 equal reference INV-8824 INV-8842" in page
        await visitor.posted(f"approvals/{second.id}", {"step": "deny", "reason": "the invoice is unknown"})

        assert (state(served, first), state(served, second)) == (ApprovalState.GRANTED, ApprovalState.DENIED)
        page = words_of(await visitor.get(f"approvals/{second.id}"))
        assert "denied It was denied by approver-7" in page
        assert "Reason: the invoice is unknown" in page
        assert "Your decision" not in page


async def test_refused_step_shows_what_happened_and_keeps_the_reason(tmp_path: Path) -> None:
    denied, unread = (409, "it is denied"), (400, "the form cannot be read")
    async with service(tmp_path) as served:
        approval = await opened(served)
        served.service.tenants["default"].approvals.deny(approval.id, {**APPROVER, "sub": "approver-8"})
        visitor = await signed_in(served)

        steps = {"once": denied, "withdraw": denied, "run": denied, "twice": unread, "until": unread}
        for step, (status, words) in steps.items():
            answer = await visitor.posted(f"approvals/{approval.id}", {"step": step, "reason": "typed before"})

            assert (step, answer.status_code) == (step, status)
            assert words in words_of(answer)
            assert "It was denied by approver-8" in words_of(answer)


VISITORS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "other role": ("approve", {"sub": "reader-1", "roles": ["another"]}, 403, 2),
    "requester": ("approve", OFFICER, 403, 2),
    "requester without approve": ("propose", OFFICER, 403, 1),
    "stranger": ("propose", APPROVER, 404, 0),
    "no scope": ("audit", APPROVER, 403, 0),
    "approver": ("approve", APPROVER, 303, 2),  # the last one, because this person grants the approval
}
"""The scope and claims of each visitor, the status of granting one of two approvals, and how many are seen."""


async def test_people_see_and_decide_only_what_they_may(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        approval = await opened(served)
        await opened(served, 1, claims=CLERK)
        for name, (scope, claims, status, seen) in VISITORS.items():
            visitor = await signed_in(served, [scope], claims)

            rows = re.findall(r'<th scope="row"><a href="/console/approvals/', (await visitor.get("approvals")).text)
            answer = await visitor.posted(f"approvals/{approval.id}", {"step": "once"})

            assert (name, len(rows), answer.status_code) == (name, seen, status)
            assert state(served, approval) is (ApprovalState.GRANTED if status == 303 else ApprovalState.PENDING)


A, B = "https://a.example", "https://b.example"


@pytest.mark.parametrize(
    ("issuer", "scopes", "claims", "sees_last", "sees_run"),
    [
        (B, ["approve"], APPROVER, True, True),
        (B, ["propose"], {**OFFICER, "iss": B}, True, False),
        (B, ["propose"], {"sub": "agent-2"}, False, False),
        (A, ["propose"], {**OFFICER, "iss": B}, False, False),
        (A, ["approve"], APPROVER, False, True),
    ],
    ids=["approver", "requester", "another agent", "namesake", "approver of a namesake"],
)
async def test_earlier_calls_are_of_the_same_person_and_seen_by_rights(
    issuer: str, scopes: list[str], claims: dict[str, Any], sees_last: bool, sees_run: bool, tmp_path: Path
) -> None:
    async with service(tmp_path) as served:
        first = {**OFFICER, "iss": issuer, "act": {"sub": "agent-1", "scopes": RIGHTS}}
        second = {**OFFICER, "iss": B, "act": {"sub": "agent-2", "scopes": RIGHTS}}
        earlier = await opened(served, claims=first, reference="INV-EARLIER")
        served.service.tenants["default"].approvals.grant(earlier.id, APPROVER)
        approval = await opened(served, claims=second)
        page = await (await signed_in(served, scopes, claims)).get(f"approvals/{approval.id}")

        assert page.status_code == 200
        assert ("INV-EARLIER" in page.text, "Earlier in this run" in page.text) == (sees_last, sees_run)


async def test_several_approvals_are_denied_but_never_granted_together(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        approvals = [await opened(served, number) for number in range(3)]
        visitor = await signed_in(served)
        ids = [approvals[0].id, approvals[1].id, "0" * 32]

        answer = await visitor.posted("approvals/deny", {"id": ids, "reason": "a mistake", "step": "once"})

        assert answer.headers["location"] == "/console/approvals?denied=2&failed=1"
        assert [state(served, each).value for each in approvals] == ["denied", "denied", "pending"]
        assert "Denied: 2. Not denied, because they changed meanwhile: 1." in words_of(
            await visitor.get("approvals", denied=2, failed=1)
        )


@pytest.mark.parametrize("database", DATABASES)
async def test_pages_of_the_inbox_contain_each_waiting_approval_once(database: str, tmp_path: Path) -> None:
    async with service(tmp_path, database) as served:
        pattern = await opened(served)
        store = served.service.tenants["default"].stores.approvals
        ends = [to_seconds(time.time() + 1_000 + 7 * number % 130) for number in range(130)]
        for number, end in enumerate(ends):
            store.add(replace(pattern, id=f"{number:032x}", call_digest=f"sha256:{number:064x}", expires_at=end))
        visitor = await signed_in(served)

        found: list[str] = []
        path: str | None = "approvals"
        while path is not None:
            page = await visitor.get(path)
            assert len(page.content) < 60_000
            found += re.findall(r'name="id" value="([0-9a-f]{32})"', page.text)
            following = re.search(r'rel="next" href="([?]after=[^"]+)"', page.text)
            path = f"approvals{following[1]}" if following else None

        assert sorted(found) == sorted([pattern.id, *(f"{number:032x}" for number in range(130))])
        assert found[:-1] == sorted(found[:-1], key=lambda each: (ends[int(each, 16)], int(each, 16)))


async def test_filters_of_the_history_come_from_the_address(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        for number in range(3):
            approval = await opened(served, number)
            served.service.tenants["default"].approvals.deny(approval.id, APPROVER)
        visitor = await signed_in(served)

        async def shown(**query: str) -> int:
            page = await visitor.get("approvals", **query)
            assert page.status_code == 200
            return len(re.findall('data-head="State"', page.text))

        assert await shown() == 3
        assert await shown(state="denied", run_id="run-1", tool="initiate_wire", subject="officer-123") == 1
        assert await shown(state="granted") == 0
        assert await shown(since="2026-01-01", until="2099-12-31") == 3
        assert await shown(until="2026-01-01") == 0
        assert (await visitor.get("approvals", state="lost")).status_code == 400
        assert (await visitor.get("approvals", since="yesterday")).status_code == 400


async def test_whole_request_is_a_file(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        approval = await opened(served)
        visitor = await signed_in(served)

        answer = await visitor.get(f"approvals/{approval.id}/request")

        assert answer.content == approval.body
        assert answer.headers["content-disposition"] == f'attachment; filename="approval-{approval.id}.json"'


async def test_call_with_many_arguments_has_a_page_that_says_so(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        approval = await opened(served)
        request = orjson.loads(approval.body)
        request["context"]["arguments"] = {f"argument-{number}": "x" * 500 for number in range(2_000)}
        changed = replace(approval, id="1" * 32, call_digest="sha256:" + "1" * 64, body=orjson.dumps(request))
        served.service.tenants["default"].stores.approvals.add(changed)

        page = await (await signed_in(served)).get(f"approvals/{changed.id}")

        assert "1904 more arguments are not shown. Read the whole request before you approve." in words_of(page)
        assert len(page.content) < 60_000
