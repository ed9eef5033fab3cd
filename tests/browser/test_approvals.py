"""People grant and deny approvals in a browser."""

from dataclasses import replace

import pytest
from playwright.sync_api import Locator, Page, expect

from pdp import Approval
from tests.browser.site import INBOX, Site
from tests.support.service import APPROVER

OTHER_APPROVER = {"sub": "approver-8", "roles": ["payments.approver"]}
STEPS = {"granted": "Approve once", "denied": "Deny"}
"""The button that brings an approval into each state."""


def state(site: Site, approval: Approval) -> str:
    return site.other.approvals.get(approval.id).state.value


def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until an element has the focus. Every element on the way must show that it has the focus."""
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "none":
            pytest.fail(f"no mark of the focus: {page.evaluate('document.activeElement.outerHTML')[:200]}")
        if target.evaluate("element => element === document.activeElement"):
            return
    pytest.fail(f"Tab does not reach {target}")


@pytest.mark.parametrize("javascript", [True, False])
@pytest.mark.parametrize("wanted", STEPS)
def test_approval_is_decided_by_keyboard_alone(site: Site, wanted: str, javascript: bool) -> None:
    approval = site.asked()
    page = site.signed_in(java_script_enabled=javascript)
    page.goto(f"{INBOX}?tool=initiate_wire&subject=officer-123")
    tab_to(page, page.locator(f"a[href='{INBOX}/{approval.id}']"))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{INBOX}/{approval.id}")
    if wanted == "denied":
        tab_to(page, page.get_by_label("Reason"))
        page.keyboard.type("another account")
    else:
        tab_to(page, page.get_by_role("button", name=STEPS[wanted]))
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_contain_text(wanted)
    if wanted == "denied":
        expect(page.locator("#state")).to_contain_text("another account")
    assert state(site, approval) == wanted


@pytest.mark.parametrize("wanted", STEPS)
def test_second_approver_sees_who_decided(site: Site, wanted: str) -> None:
    approval = site.asked()
    first, second = site.signed_in(), site.signed_in(OTHER_APPROVER, java_script_enabled=False)
    for page in (first, second):
        page.goto(f"{INBOX}/{approval.id}")
    first.get_by_role("button", name=STEPS[wanted]).click()
    expect(first.locator("#state")).to_contain_text(wanted)

    with site.expected("status of 409"):
        second.get_by_role("button", name="Approve once").click()
        expect(second.locator("#state")).to_contain_text(wanted)
    assert state(site, approval) == wanted
    expect(second.locator("main")).to_contain_text(APPROVER["sub"])


@pytest.mark.parametrize("javascript", [True, False])
def test_approval_that_expires_while_it_is_shown_cannot_be_granted(site: Site, javascript: bool) -> None:
    approval = site.asked()
    page = site.signed_in(java_script_enabled=javascript)
    page.goto(f"{INBOX}/{approval.id}")
    past = replace(approval, opened_at="2026-01-01T00:00:00Z", expires_at="2026-01-01T01:00:00Z")
    assert site.other.approvals.store.replace(approval, past)
    grant = page.get_by_role("button", name="Approve once")
    if javascript:
        site.other.approvals.sweep()
        expect(grant).to_be_disabled()
    else:
        with site.expected("status of 409"):
            grant.click()
            expect(grant).to_have_count(0)
    expect(page.locator("#state")).to_contain_text("expired")
    assert state(site, approval) in {"pending", "expired"}


def test_several_are_denied_at_once_and_filters_are_in_the_address(site: Site) -> None:
    approvals = [site.asked(run_id="run-many") for _ in range(3)]
    page = site.signed_in(java_script_enabled=False)
    page.goto(INBOX)
    page.get_by_text("Filters for all lists").click()
    page.get_by_label("Run").fill("run-many")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**run_id=run-many**")
    boxes = page.get_by_role("checkbox")
    expect(boxes).to_have_count(3)
    for approval in approvals[:2]:
        page.locator(f"input[value='{approval.id}']").check()
    page.get_by_label("Reason").fill("twice")
    page.get_by_role("button", name="Deny selected").click()
    expect(page.get_by_role("status").filter(has_text="Denied: 2")).to_be_visible()
    assert [state(site, approval) for approval in approvals] == ["denied", "denied", "pending"]
    page.goto(f"{INBOX}?run_id=run-many&state=denied")
    expect(page.locator("#history tbody tr")).to_have_count(2)


def test_keys_move_the_focus_but_decide_nothing(site: Site) -> None:
    approval = site.asked(run_id="run-keys")
    page = site.signed_in()
    page.goto(f"{INBOX}?run_id=run-keys")
    link = page.locator(f"a[href='{INBOX}/{approval.id}']")
    page.keyboard.press("j")
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{INBOX}/{approval.id}")
    for key, name in {"a": "Approve once", "d": "Deny"}.items():
        page.keyboard.press(key)
        expect(page.get_by_role("button", name=name)).to_be_focused()
    page.get_by_label("Reason").press_sequentially("a dj?")
    expect(page.get_by_label("Reason")).to_have_value("a dj?")

    page.goto("/console/help")
    page.locator("#keys").uncheck()
    page.goto(f"{INBOX}/{approval.id}")
    page.keyboard.press("a")
    expect(page.get_by_role("button", name="Approve once")).not_to_be_focused()
    assert state(site, approval) == "pending"
