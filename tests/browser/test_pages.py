"""Pages as people see them: sizes, colour schemes, accessibility, and requests."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from pdp.decision import new_id
from tests.browser.layout import check_layout
from tests.browser.site import DECISIONS, MOST_BYTES, Site
from tests.support.payments import ARGUMENTS, wire
from tests.support.service import OFFICER

PAGES = {
    "sign-in": "/console/sign-in",
    "help": "/console/help",
    "inbox": "/console/approvals",
    "approval": "/console/approvals/{approval}",
    "decisions": "/console/decisions",
    "event": "/console/decisions/{event}",
    "run": "/console/runs?id=run-1",
    "releases": "/console/releases",
    "tools": "/console/tools",
    "tool": "/console/tools/initiate_wire",
    "matrix": "/console/tools/matrix",
    "grants": "/console/grants",
    "budgets": "/console/budgets",
}
"""The address of each page, and the name of its picture."""


@pytest.mark.parametrize("name", PAGES)
def test_page_is_small_and_accessible_on_each_screen(name: str, site: Site, pictures: Path | None) -> None:
    page = site.signed_in()
    approval, event = site.asked().id, site.other.events()[-1][0]
    answer = page.goto(PAGES[name].format(approval=approval, event=event))
    assert answer is not None
    assert answer.status == 200
    assert len(answer.body()) <= MOST_BYTES
    check_layout(page, pictures, name)


def decide_wire(page: Page) -> None:
    """Decide the wire of the example in the playground."""
    page.goto("/console/play")
    page.get_by_label("Arguments").fill(json.dumps(ARGUMENTS, indent=2))
    facts = {"beneficiary_id": ARGUMENTS["beneficiary_id"], "sanctions_status": "clear"}
    stated = {"claims": OFFICER, "facts": facts, "idempotency_key": "key-1"}
    page.get_by_label("Session").fill(json.dumps(stated, indent=2))
    page.get_by_role("button", name="Decide").first.click()


@pytest.mark.parametrize("javascript", [True, False])
def test_playground_decides_a_call_and_shows_why(site: Site, javascript: bool, pictures: Path | None) -> None:
    page = site.signed_in(java_script_enabled=javascript)
    decide_wire(page)
    result = page.get_by_role("region", name="Result")
    expect(result.locator(".tag").first).to_have_text("STEP_UP")
    expect(result).to_contain_text("limits.exceeded")
    if javascript:
        check_layout(page, pictures, "playground")


def test_matrix_of_eight_people_fits_each_screen(site: Site, pictures: Path | None) -> None:
    page = site.signed_in()
    page.goto("/console/tools/matrix")
    page.get_by_label("Claims").fill(json.dumps({f"officer-{n}": {**OFFICER, "sub": f"officer-{n}"} for n in range(8)}))
    page.get_by_role("button", name="Show").first.click()
    expect(page.locator(".matrix .tag")).to_have_count(24)
    check_layout(page, pictures, "matrix-people")


def test_page_of_the_openapi_document_loads_no_files_of_other_hosts(site: Site) -> None:
    page = site.window()
    page.goto("/docs")
    page.get_by_role("button", name="POST /v1/proposals", exact=False).first.wait_for()


def test_recorded_request_is_shown_and_decided_again(site: Site, pictures: Path | None) -> None:
    session_ = {"claims": OFFICER, "idempotency_key": new_id(), "run_id": "run-again"}
    body = {"proposal": wire(reference="<b>\u202ebold</b>"), "session": session_, "run": False}
    assert site.running.client().post("/v1/proposals", json=body).status_code == 200
    page = site.signed_in(scopes=("audit", "requests"))
    page.goto(f"{DECISIONS}?run_id=run-again")
    page.locator("#list tbody a").first.click()
    recorded = page.get_by_role("region", name="The recorded request")
    expect(recorded).to_contain_text("acct-operating-4412")
    expect(recorded).to_contain_text("<b>U+202Ebold</b>")
    recorded.get_by_role("button", name="Decide again").click()
    expect(recorded.get_by_role("status")).to_have_text("The answer is the same, byte for byte.")
    for side in ("Recorded", "Decided again"):
        expect(recorded.get_by_role("region", name=side, exact=True).locator(".tag")).to_have_text("DENY")
    check_layout(page, pictures, "recorded")
