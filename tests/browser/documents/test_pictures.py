"""The pictures of the documentation, which `--pictures docs/pictures` writes again.

Each test makes a picture and checks its size. The picture of a terminal must also equal the file in docs/pictures.
"""

import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, Page

from pdp import Approval
from tests.browser.documents.terminal import comment_page, terminal_picture, texts
from tests.browser.site import INBOX, TIMEOUT, Site
from tests.browser.test_pages import decide_wire
from tests.end_to_end.pages.test_snippets import fences
from tests.service.approvals.elsewhere import elsewhere
from tests.support import PATIENCE, ROOT
from tests.support.command_line import environment, pdp
from tests.support.payments import session, wire
from tests.support.service import APPROVER, OFFICER, running_service

MOST_BYTES = 100_000
PICTURES_FOLDER = ROOT / "docs/pictures"
PICTURES: dict[str, dict[str, Any]] = {
    "inbox": {"address": INBOX},
    "approval": {"address": f"{INBOX}/{{approval}}"},
    "decisions": {"address": "/console/decisions"},
    "playground": {"address": "/console/play", "height": 860},
    "run": {"address": "/console/runs?id=supplier-run-123"},
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
def test_picture_of_the_console_is_small(
    name: str, office: tuple[Site, Approval], pictures: Path | None, tmp_path: Path
) -> None:
    (site, approval), picture = office, {"width": 1280, "color_scheme": "light", **PICTURES[name]}
    page = site.signed_in(color_scheme=picture["color_scheme"])
    page.set_viewport_size({"width": picture["width"], "height": 640})
    page.goto(picture["address"].format(approval=approval.id))
    if name == "playground":
        decide_wire(page)
    take_picture(page, (pictures or tmp_path) / f"{name}.webp", picture.get("height"))
    site.close()


def take_picture(page: Page, file: Path, height: int | None = None) -> None:
    """Write a picture of the whole page, or of its upper part, and check its size."""
    shown = height or page.evaluate("document.documentElement.scrollHeight")
    assert page.viewport_size is not None
    page.set_viewport_size({**page.viewport_size, "height": shown})  # The bar then hides nothing.
    # Playwright writes no WebP, which is a quarter of the size of PNG.
    shot = page.context.new_cdp_session(page).send("Page.captureScreenshot", {"format": "webp", "quality": 80})
    file.write_bytes(b64decode(shot["data"]))
    assert file.stat().st_size <= MOST_BYTES


@pytest.fixture
def desk(tmp_path: Path, opa: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the project of the tutorials, and go to its folder."""
    monkeypatch.chdir(tmp_path)
    assert pdp("init", "desk").code == 0
    monkeypatch.chdir(tmp_path / "desk")
    return tmp_path / "desk"


def save_files(page: str, desk: Path) -> None:
    """Save the files that a page shows."""
    for fence in fences(page):
        if fence.file:
            file = desk / fence.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(fence.text, encoding="utf-8")


def refund() -> str:
    """Make the call of the tutorial, and return what it prints."""
    run = [sys.executable, "refund.py"]
    variables = environment(PYTHONPATH=str(ROOT))
    return subprocess.run(run, env=variables, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


@contextmanager
def console_link(*options: str) -> Iterator[str]:
    """Run `pdp console`, and return the link that it prints."""
    command = [sys.executable, "-m", "pdp", "console", *options, "--no-browser"]
    variables = environment(PYTHONPATH=str(ROOT))
    console = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
    try:
        assert console.stdout is not None
        yield next(match[0] for line in console.stdout if (match := re.search(r"http://\S+/link/\S+", line)))
    finally:
        console.terminate()
        console.communicate(timeout=PATIENCE)


def test_refund_of_the_tutorial_runs_after_an_approval_in_the_browser(
    desk: Path, browser: Browser, pictures: Path | None, tmp_path: Path
) -> None:
    save_files("docs/tutorials/first-decision.md", desk)
    assert refund() == "STEP_UP\n"

    page = browser.new_page(viewport={"width": 1280, "height": 640})
    page.set_default_timeout(TIMEOUT)
    with console_link("--session", "lead.yaml") as link:
        page.goto(link)
        page.get_by_role("link", name="refund_order").first.click()
        approve = page.get_by_role("button", name="Approve once")
        approve.wait_for()
        take_picture(page, (pictures or tmp_path) / "approval-desk.webp")
        approve.click()
        approve.wait_for(state="detached")
        page.close()

    assert refund() == "ALLOW\n120.00 paid back for O-77\n"


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def lower_the_limit(desk: Path) -> None:
    """Change the limit of the scenarios' clerk, so that a scenario fails."""
    replace(desk / "scenarios.yaml", "limits: {refunds.auto_approved: 50}", "limits: {refunds.auto_approved: 40}")


def change_the_policy(desk: Path) -> None:
    """Make the change of the tutorial docs/tutorials/policy-change.md."""
    save_files("docs/tutorials/policy-change.md", desk)
    scope = "    scopes: [desk.refund]\n"
    replace(desk / "governance.yaml", scope, f"{scope}    context: {{disputed: $session.facts.disputed}}\n")
    replace(desk / "manifest.yaml", "2026.01.1", "2026.01.2")
    key = "  idempotency_key: refund-1\n"
    replace(desk / "scenarios.yaml", key, f"{key}  facts: {{disputed: false}}\n")


def test_picture_of_the_html_report_is_small(
    desk: Path, browser: Browser, pictures: Path | None, tmp_path: Path
) -> None:
    lower_the_limit(desk)
    assert pdp("test", "--engine", "embedded", "--html", "report.html").code == 1

    page = browser.new_page(viewport={"width": 1000, "height": 640})
    page.goto((desk / "report.html").as_uri())
    take_picture(page, (pictures or tmp_path) / "report.webp", 900)
    page.close()


def test_picture_of_the_diff_in_a_pull_request_is_small(
    desk: Path, browser: Browser, pictures: Path | None, tmp_path: Path
) -> None:
    assert pdp("bundle", "build", "-o", "release-1.tar.gz", "--release", "1").code == 0
    change_the_policy(desk)
    assert pdp("bundle", "build", "-o", "release-2.tar.gz", "--release", "2").code == 0
    bundles = ["release-1.tar.gz", "release-2.tar.gz", "--scenarios", "."]
    diff = pdp("bundle", "diff", *bundles, "--generate", "3000", "--markdown")
    assert diff.code == 0
    # The tutorial does not run the command, because it takes minutes.
    (explained,) = yaml.safe_load((desk / "explained.yaml").read_text(encoding="utf-8"))["explained"]
    assert f"`{explained['difference']}`" in diff.out

    page = browser.new_page(viewport={"width": 900, "height": 640})
    page.set_content(comment_page(diff.out))
    take_picture(page, (pictures or tmp_path) / "diff.webp", 900)
    page.close()


TERMINALS: dict[str, tuple[Callable[[Path], None], str]] = {
    "terminal-demo": (lambda _: None, "pdp demo"),
    "terminal-decide": (lambda _: None, "pdp decide proposal.json"),
    "terminal-test": (lower_the_limit, "pdp test --engine embedded"),
}
"""The change to the project before each picture, and the command that the picture shows."""


@pytest.mark.opa
@pytest.mark.parametrize("name", TERMINALS)
def test_picture_of_the_terminal_shows_the_present_output(name: str, desk: Path, pictures: Path | None) -> None:
    change, command = TERMINALS[name]
    change(desk)
    svg = terminal_picture(command)

    committed = PICTURES_FOLDER / f"{name}.svg"
    if pictures is not None:
        (pictures / committed.name).write_text(svg, encoding="utf-8")
    assert len(svg.encode()) <= MOST_BYTES
    assert not re.search(r"https?://(?!www\.w3\.org/)", svg)
    assert texts(committed.read_text(encoding="utf-8")) == texts(svg)


def test_pictures_on_pages_exist_and_have_an_alternative_text() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = [
        (page, text, page.parent / address)
        for page in pages
        for text, address in re.findall(r"!\[(.*?)\]\((.*?)\)", page.read_text(encoding="utf-8"), re.DOTALL)
    ]

    assert [(page.name, file.name) for page, text, file in shown if not text or not file.is_file()] == []
    assert all(file.stat().st_size <= MOST_BYTES for file in PICTURES_FOLDER.iterdir())
