"""Lasting grants in a browser: people give, see and revoke them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.layout import check_layout
from tests.browser.site import GRANTS, INBOX, Site
from tests.browser.test_approvals import tab_to
from tests.service.approvals.elsewhere import elsewhere
from tests.support import ROOT
from tests.support.command_line import written
from tests.support.service import running_service

CLERK = {"sub": "clerk", "scope": "desk.write"}
LEAD = {"sub": "lead", "roles": ["desk.lead"]}


@pytest.fixture(scope="module")
def desk(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a desk whose approvals may last."""
    folder = tmp_path_factory.mktemp("desk")
    scenarios = ROOT / "tests/scenarios"
    files = {"manifest": scenarios / "grants.yaml", "governance": scenarios / "grants-governance.yaml"}
    project = written(folder / "pdp.yaml", {name: str(file) for name, file in files.items()})
    with (
        running_service(folder, tenant={"project": str(project)}) as running,
        elsewhere(running.store) as other,
    ):
        yield Site(browser, running, other)


def asked(desk: Site, recipient: str) -> str:
    """Propose a notice that needs an approval, and return the approval's id."""
    proposal = {"tool": "send_notice", "arguments": {"recipient": recipient, "text": "one"}}
    body = {"proposal": proposal, "session": {"claims": CLERK, "run_id": "run-1"}}
    answer = desk.running.client(["propose", "assert"], CLERK).post("/v1/proposals", json=body).json()
    approval_id: str = answer["approval"]["id"]
    return approval_id


@pytest.mark.parametrize("javascript", [True, False])
@pytest.mark.parametrize("reach", ["Approve for this run", "Approve for this time"])
def test_lasting_grant_is_given_by_keyboard_and_revoked(
    desk: Site, reach: str, javascript: bool, pictures: Path | None
) -> None:
    recipient = f"bob-{reach.rsplit(maxsplit=1)[-1]}-{javascript}"
    page = desk.signed_in(LEAD, java_script_enabled=javascript)
    page.goto(f"{INBOX}/{asked(desk, recipient)}")
    is_checked = javascript and reach.endswith("run")
    if is_checked:
        check_layout(page, pictures, "approval-lasting")
    tab_to(page, page.locator("#bar summary"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("button", name=reach))
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_contain_text("granted")

    page.goto(GRANTS)
    row = page.get_by_role("row").filter(has_text=recipient)
    expect(row).to_contain_text("active")
    if is_checked:
        check_layout(page, pictures, "grants-active")
    tab_to(page, row.locator("summary"))
    page.keyboard.press("Enter")
    row.get_by_label("Reason").fill("no longer needed")
    row.get_by_role("button", name="Revoke now").click()
    expect(page.get_by_role("status")).to_be_visible()
    expect(row).to_contain_text("no longer needed")
    expect(row.get_by_role("button", name="Revoke now")).to_have_count(0)
    desk.close()
