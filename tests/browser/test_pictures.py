"""The pictures of the documents, which `--pictures docs/pictures` writes again."""

from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from pdp import Approval
from tests.browser.site import INBOX, Site
from tests.browser.test_pages import decide_wire
from tests.service.approvals.elsewhere import elsewhere
from tests.support.payments import session, wire
from tests.support.service import APPROVER, OFFICER, running_service

MOST_BYTES = 100_000
PICTURES: dict[str, dict[str, Any]] = {
    "inbox": {"address": INBOX},
    "approval": {"address": f"{INBOX}/{{approval}}"},
    "decisions": {"address": "/console/decisions"},
    "playground": {"address": "/console/play", "height": 860},
    "approval-narrow-dark": {"address": f"{INBOX}/{{approval}}", "width": 360, "height": 800, "color_scheme": "dark"},
}
"""The page of each picture, its width and colour scheme, and its height if it does not show the whole page."""


def ask(site: Site, amount: int, beneficiary: str, officer: str) -> Approval:
    return site.asked(
        {"amount": amount, "beneficiary_id": beneficiary},
        facts={"beneficiary_id": beneficiary, "sanctions_status": "clear"},
        claims={**OFFICER, "sub": officer},
        run_id=f"supplier-run-{officer[-3:]}",
    )


@pytest.fixture(scope="module")
def office(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Approval]]:
    """A payments office: approvals that wait, and some that people decided."""
    with running_service(tmp_path_factory.mktemp("office")) as running, elsewhere(running.store) as other:
        site = Site(browser, running, other)
        other.approvals.grant(ask(site, 31_900, "bene-acme-441", "officer-123").id, APPROVER)
        denied = ask(site, 98_000, "bene-northwind-17", "officer-204")
        other.approvals.deny(denied.id, APPROVER, why="The invoice names another account.")
        for amount, status in ((8_400, "clear"), (19_900, "clear"), (12_000, "hit"), (1_250, "clear")):
            facts = {"beneficiary_id": "bene-acme-441", "sanctions_status": status}
            other.pep.decide(wire(amount=amount), session(time=None, facts=facts))
        ask(site, 26_400, "bene-globex-902", "officer-204")
        ask(site, 250_000, "bene-initech-55", "officer-317")
        yield site, ask(site, 47_500, "bene-acme-441", "officer-123")


@pytest.mark.parametrize("name", PICTURES)
def test_picture_of_the_documents_is_small(
    name: str, office: tuple[Site, Approval], pictures: Path | None, tmp_path: Path
) -> None:
    (site, approval), picture = office, {"width": 1280, "color_scheme": "light", **PICTURES[name]}
    page = site.signed_in(color_scheme=picture["color_scheme"])
    page.set_viewport_size({"width": picture["width"], "height": 640})
    page.goto(picture["address"].format(approval=approval.id))
    if name == "playground":
        decide_wire(page)
    height = picture.get("height") or page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": picture["width"], "height": height})  # The bar then hides nothing.
    file = (pictures or tmp_path) / f"{name}.webp"
    # Playwright writes no WebP, which is a quarter of the size of PNG.
    shot = page.context.new_cdp_session(page).send("Page.captureScreenshot", {"format": "webp", "quality": 80})
    file.write_bytes(b64decode(shot["data"]))
    site.close()
    assert file.stat().st_size <= MOST_BYTES
