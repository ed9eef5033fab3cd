"""The pages about tools: the manifest, one tool, decisions counted by tool, and the matrix of subjects and tools."""

import re
from html import unescape
from pathlib import Path

from tests.service.console import signed_in
from tests.support.command_line import written
from tests.support.payments import session, wire
from tests.support.postgres import empty_database
from tests.support.service import APPROVER, OFFICER, service, tenant_on

PAGE_BYTES = 60_000


def cells(page: str) -> dict[str, list[str]]:
    """Return the words of the matrix, by tool."""
    rows = re.findall(r'<tr><th scope="row"><a href="/console/tools/([^"]*)">.*?</tr>', page, re.DOTALL)
    parts = re.findall(r'<tr><th scope="row"><a href.*?</tr>', page, re.DOTALL)
    return {name: re.findall(r'<span class="tag (\w+)">', part) for name, part in zip(rows, parts, strict=True)}


async def test_tools_and_their_decisions_are_shown(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        pep = served.service.tenants["default"].pep
        for amount in (47500, 47500, 100):
            await pep.acall(wire(amount=amount), session(time=None, claims=OFFICER, idempotency_key=f"key-{amount}"))
        auditor = await signed_in(served, ["approve", "audit"], APPROVER)
        listed = (await auditor.get("tools")).text
        assert 'href="/console/decisions?tool=initiate_wire&verdict=STEP_UP">STEP_UP 2</a>' in listed
        assert "not stated in the manifest; risk tier high" in listed
        assert "<code><bdi>wire.auto_approved</bdi></code>: amount of one call" in listed
        assert "lookup_beneficiary" not in (await auditor.get("tools?name=WIRE")).text
        shown = (await auditor.get("tools/initiate_wire")).text
        assert "payments.approver" in shown
        assert "STEP_UP 2" in shown
        assert '"beneficiary_id"' in unescape(shown)
        assert (await auditor.get("tools/none")).status_code == 404

        # Without the scope `audit`, decisions of other people are not counted, and no other subject is asked about.
        officer = await signed_in(served, ["propose"], OFFICER)
        assert "STEP_UP" not in (await officer.get("tools")).text + (await officer.get("tools/initiate_wire")).text
        assert (await officer.get("tools/matrix")).status_code == 403


PASTED: list[tuple[str, int, dict[str, list[str]]]] = [
    (
        '{"ann": {"sub": "ann", "scope": "payments.lookup payments.wire.initiate"}, "bob": {"sub": "bob"}}',
        200,
        {"initiate_wire": ["DEPENDS", "DENY"], "lookup_beneficiary": ["ALLOW", "DENY"]},
    ),
    ("sub: ann\nscope: payments.validate\n", 200, {"validate_payment": ["ALLOW"], "initiate_wire": ["DENY"]}),
    ("", 400, {}),
    ("[1]", 400, {}),
    ("ann: {scope: payments.validate}", 200, {"validate_payment": ["ALLOW"], "initiate_wire": ["DENY"]}),
    ("claims: {sub: ann, scope: payments.validate}\nfacts: {a: 1}", 200, {"validate_payment": ["ALLOW"]}),
    ("ann: [a]", 400, {}),
    ("bob", 400, {}),
    ("a: {b", 400, {}),
    ('{"ann": {"sub": "<script>", "act": 7}}', 200, {"initiate_wire": ["DENY"]}),
    ("\n".join(f"a{n}: {{sub: a{n}}}" for n in range(9)), 400, {}),
]  # fmt: skip


async def test_matrix_says_what_the_policy_answers(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        visitor = await signed_in(served, ["audit"], APPROVER)
        stream = served.service.tenants["default"].stream
        before = stream.last_seq()
        for pasted, status, expected in PASTED:
            answer = await visitor.posted("tools/matrix", {"claims": pasted})
            assert (pasted, answer.status_code, answer.text.count("<script>")) == (pasted, status, 0)
            assert {name: cells(answer.text).get(name) for name in expected} == expected
            assert ("scopes.missing" in answer.text) is (status == 200 and '"act": 7' not in pasted)
        assert stream.last_seq() == before


async def test_matrix_of_a_large_directory_has_small_pages(tmp_path: Path) -> None:
    tools = [
        {"name": f"tool-{n}", "effect_class": "read-internal", "risk_tier": "low", "scopes": [f"scope-{n % 3}"],
         "schema": {"type": "object", "properties": {}}}
        for n in range(100)
    ]  # fmt: skip
    subjects = {f"person-{n:03}": {"scopes": [f"scope-{n % 3}"]} for n in range(30)}
    files = {
        "manifest": str(written(tmp_path / "manifest.json", {"manifest_version": "2026.1.0", "tools": tools})),
        "data": [str(written(tmp_path / "data.json", {"directory": {"subjects": {"user": subjects}}}))],
    }
    url = empty_database("sqlite", tmp_path)
    tenant = {**tenant_on(url), "project": written(tmp_path / "pdp.yaml", files)}
    async with service(tmp_path, url=url, tenants={"default": tenant}) as served:
        visitor = await signed_in(served, ["audit"], APPROVER)
        page = (await visitor.get("tools/matrix?directory=user&subjects=8&start=80")).text
        found = cells(page)
        assert (next(iter(found)), len(found)) == ("tool-80", 20)
        assert found["tool-82"] == ["DENY", "DENY", "ALLOW"] * 2 + ["DENY", "DENY"]
        assert "person-008" in page
        assert "subjects=16" in page
        for address in ("tools", "tools/matrix?directory=user"):
            assert len((await visitor.get(address)).content) < PAGE_BYTES
        assert cells((await visitor.get("tools/matrix?directory=none")).text) == {}
        decider = await signed_in(served, ["decide"], APPROVER)
        assert "person-" not in (await decider.get("tools/matrix?directory=user")).text
