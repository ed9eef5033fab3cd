"""Pages show what changes elsewhere, without a reload."""

import socket
from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.browser.site import DECISIONS, INBOX, SIGN_IN, Site
from tests.service.approvals.elsewhere import elsewhere
from tests.support.service import APPROVER, running_service

OTHER_APPROVER = {"sub": "approver-8", "roles": ["payments.approver"]}
LOST = "connection is lost"


def top(element: Locator) -> float:
    """Return how many pixels an element is below the top of the window."""
    box = element.bounding_box()
    assert box is not None
    return box["y"]


def test_new_approval_appears_in_the_inbox_and_moves_nothing(site: Site) -> None:
    first = site.asked()
    page = site.signed_in()
    page.goto(INBOX)
    link = page.locator(f"a[href='{INBOX}/{first.id}']")
    link.focus()
    link.scroll_into_view_if_needed()
    place, title = top(link), page.title()

    second = site.asked()
    new = page.locator(f"#mine tr[data-id='{second.id}']")
    expect(new).to_be_visible()
    expect(page.locator("#live-state")).to_contain_text("1 new")
    assert page.title() != title
    expect(link).to_be_focused()
    assert abs(top(link) - place) < 1  # Chromium scrolls by whole pixels.

    site.other.approvals.deny(first.id, APPROVER)
    gone = page.locator(f"#mine tr[data-id='{first.id}']")
    expect(gone).to_contain_text("denied")
    expect(gone.get_by_role("checkbox")).to_be_disabled()


def test_new_decision_appears_at_the_top(site: Site) -> None:
    page = site.signed_in()
    page.goto(f"{DECISIONS}?run_id=run-tail")
    rows = page.locator("#list tbody tr")
    for number in (1, 2):
        site.asked(run_id="run-tail")
        expect(rows).to_have_count(number)
    assert page.locator("#list time").all_inner_texts() == sorted(page.locator("#list time").all_inner_texts())[::-1]


def test_second_approver_sees_at_once_who_decided_and_keeps_the_reason(site: Site) -> None:
    approval = site.asked()
    page = site.signed_in()
    page.goto(f"{INBOX}/{approval.id}")
    page.get_by_label("Reason").fill("half a sen")
    site.other.approvals.deny(approval.id, OTHER_APPROVER, why="wrong account")
    for words in ("denied", OTHER_APPROVER["sub"], "wrong account"):
        expect(page.locator("#state")).to_contain_text(words)
    for button in page.locator("#bar").get_by_role("button").all():
        expect(button).to_be_disabled()
    expect(page.get_by_label("Reason")).to_have_value("half a sen")


def test_open_page_leads_to_signing_in_when_its_token_is_revoked(site: Site) -> None:
    admin = site.running.client(["admin"], {})
    made = admin.post("/v1/tokens", json={"name": "person", "scopes": ["approve"], "claims": APPROVER}).json()
    page = site.signed_in(token=made["token"])
    page.goto(INBOX)
    assert admin.delete(f"/v1/tokens/{made['id']}").status_code == 204
    with site.expected("", surely=False):  # The event stream may end, and fail to open again, before the page leaves.
        site.asked()
        page.wait_for_url(f"**{SIGN_IN}**")


def test_live_updates_resume_after_the_service_restarts(site: Site, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with running_service(tmp_path, port=port) as running, elsewhere(running.store) as other:
        own = Site(site.browser, running, other)
        page = own.signed_in()
        page.goto(INBOX)
        running.process.kill()
        expect(page.locator("#live-state")).to_contain_text(LOST)
        with running_service(tmp_path, url=running.store, port=port):
            approval = own.asked()
            expect(page.locator(f"#mine tr[data-id='{approval.id}']")).to_be_visible()
            expect(page.locator("#live-state")).not_to_contain_text(LOST)
        page.context.close()
