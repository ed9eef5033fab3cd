"""Sessions in a browser: signing in and out, ended sessions, and pages of attackers."""

import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.site import INBOX, SIGN_IN, Site
from tests.support import until
from tests.support.service import APPROVER

HELP = "/console/help"
ATTACKERS = {"other site": "http://localhost:1", "other port": "http://127.0.0.1:1"}
"""Origins of attackers. To a browser, another port of the same host is the same site, so it sends cookies."""


def path(page: Page) -> str:
    return urlsplit(page.url).path


def attack(site: Site, page: Page, attacker: str, html: str) -> None:
    """Open a page with this HTML at the attacker's origin, in the profile of the signed-in person."""
    site.allowed.append(ATTACKERS[attacker])
    page.context.grant_permissions(["local-network-access"])
    page.route(f"{ATTACKERS[attacker]}/**", lambda route: route.fulfill(content_type="text/html", body=html))
    page.goto(f"{ATTACKERS[attacker]}/")


@pytest.mark.parametrize("javascript", [True, False])
def test_person_signs_in_with_a_token_and_signs_out(site: Site, javascript: bool) -> None:
    page = site.window(java_script_enabled=javascript)
    page.goto(f"{HELP}?a=b")
    assert path(page) == SIGN_IN

    with site.expected("status of 403"):
        page.get_by_label("Access token").fill("pdp_no-token")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Access token").fill(site.running.token(["approve"], APPROVER))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{HELP}?a=b")
    expect(page.get_by_role("banner")).to_contain_text(APPROVER["sub"])

    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(f"**{SIGN_IN}")
    page.goto(HELP)
    assert path(page) == SIGN_IN


def test_link_on_another_site_leads_to_the_page(site: Site) -> None:
    page = site.signed_in(token=site.running.token(["approve"], APPROVER))
    attack(site, page, "other site", f'<a href="{site.running.url}{HELP}">Look</a>')
    page.get_by_role("link").click()
    page.wait_for_url(f"**{HELP}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Help")


@pytest.mark.parametrize("attacker", ATTACKERS)
def test_page_is_not_shown_in_a_frame(site: Site, attacker: str) -> None:
    page = site.signed_in(token=site.running.token(["approve"], APPROVER))
    refusal = "frame-ancestors"
    with site.expected(refusal), page.expect_console_message(lambda message: refusal in message.text):
        attack(site, page, attacker, f'<iframe src="{site.running.url}{HELP}"></iframe>')
    expect(page.frame_locator("iframe").get_by_role("banner")).to_have_count(0)


@pytest.mark.parametrize("attacker", ATTACKERS)
@pytest.mark.parametrize("action", ["/console/sign-out", SIGN_IN, f"{INBOX}/{{approval}}"])
def test_forms_of_other_origins_are_rejected(site: Site, action: str, attacker: str) -> None:
    page = site.signed_in(token=site.running.token(["approve"], APPROVER))
    approval = site.asked()
    fields = {"token": site.running.token(["approve"], {"sub": "attacker"}), "step": "once"}
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
    address = site.running.url + action.format(approval=approval.id)
    with site.expected("status of 403"):
        attack(site, page, attacker, f'<form method="post" action="{address}">{inputs}<button></form>')
        page.get_by_role("button").click()
        page.wait_for_url(re.compile("/console/"))
    page.goto(HELP)
    expect(page.get_by_role("banner")).to_contain_text(APPROVER["sub"])
    assert site.other.approvals.get(approval.id).state == "pending"


@pytest.mark.parametrize("how", ["signed out in another tab", "token revoked"])
def test_ended_session_leads_to_signing_in_and_back(site: Site, how: str) -> None:
    admin = site.running.client(["admin"], {})
    made = admin.post("/v1/tokens", json={"name": "person", "scopes": ["approve"], "claims": APPROVER}).json()
    page = site.signed_in(token=made["token"])
    page.goto(HELP)
    if how == "token revoked":
        assert admin.delete(f"/v1/tokens/{made['id']}").status_code == 204
    else:
        other = page.context.new_page()
        other.goto(HELP)
        other.get_by_role("button", name="Sign out").click()
        other.wait_for_url(f"**{SIGN_IN}")

    # The service takes seconds to notice the revocation.
    assert until(lambda: page.goto(HELP) is not None and path(page) == SIGN_IN)
    page.get_by_label("Access token").fill(site.running.token(["approve"], APPROVER))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{HELP}")
