"""Sign-in at an identity provider in a browser, which is another site than the service."""

import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.browser.site import TIMEOUT
from tests.support.servers.identity_provider import CLIENT, SECRET, identity_provider
from tests.support.service import running_service


def test_person_signs_in_at_the_provider_and_returns_to_the_page(browser: Browser, tmp_path: Path) -> None:
    client = {"client_id": CLIENT, "client_secret": SECRET, "scopes": ["wires"]}
    with identity_provider("localhost") as provider:
        oidc = [provider.settings(name="Acme", console=client)]
        with running_service(tmp_path, oidc=oidc) as running:
            for javascript in (True, False):
                context = browser.new_context(base_url=running.url, java_script_enabled=javascript)
                context.set_default_timeout(TIMEOUT)
                page = context.new_page()
                page.goto("/console/help?a=b")
                page.get_by_role("button", name="Sign in with Acme").click()
                page.wait_for_url(f"{running.url}/console/help?a=b")
                expect(page.get_by_role("banner")).to_contain_text("officer-123")
                [session] = context.cookies()
                context.close()
                assert re.fullmatch("pdp_[0-9a-f]{16}.{43}", session["value"])
                assert (session["sameSite"], session["httpOnly"]) == ("Strict", True)
