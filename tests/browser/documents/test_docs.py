"""The search of the documentation's site finds the pages that answer the questions of newcomers."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page
from playwright.sync_api import Error as PlaywrightError

from scripts.site import LATEST, add_version, build

QUESTIONS = {
    "support refund limit": "how-to/set-limits/",
    "why purposes.missing": "reference/codes/purposes.missing/",
    "pending approvals": "how-to/decide-what-waits/",
    "who can approve": "explanation/approvals/",
    "langgraph approval": "tutorials/langgraph/",
    "deny business hours": "how-to/write-a-concern/",
    "rollback bundle": "how-to/release-a-bundle/",
    "keycloak roles scopes": "how-to/identity-providers/",
    "token leaked": "how-to/rotate-keys/",
    "wire twice": "how-to/run-once/",
    "OPA is down": "explanation/three-verdicts/",
    "test policy": "how-to/write-scenarios/",
    "allow git push": "tutorials/coding-agent/",
    "guard mcp server": "tutorials/mcp-server/",
    "approve ten calls": "how-to/allow-more-than-one-call/",
    "secret data leave": "how-to/label-data/",
    "prompt injection": "how-to/follow-values/",
    "all fields manifest": "reference/manifest/",
    "compare cerbos": "explanation/comparison/",
    "verify audit": "how-to/read-the-audit-stream/",
    "call authzen": "how-to/authzen/",
}
FIRST = 6
"""The results that a person looks at."""
LINKS = """[...document.querySelectorAll("*")].filter(element => element.shadowRoot)
    .flatMap(element => [...element.shadowRoot.querySelectorAll("ol a")].map(link => link.href))"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("docs")
    (folder / "work").mkdir()
    build(folder / "site", "1.2.0", folder / "work")
    add_version(folder / "site", "1.2.0")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder / "site"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    page = browser.new_page()
    page.goto(address)
    yield page
    page.close()


def test_search_answers_the_questions_of_newcomers(page: Page, address: str) -> None:
    page.wait_for_url(f"{address}{LATEST}/")
    page.keyboard.press("Control+k")
    found = {}
    for words, expected in QUESTIONS.items():
        page.get_by_role("combobox").fill(words)
        # The results of the words before are replaced, so wait until the first ones contain the expected page.
        wanted = f"{LINKS}.slice(0, {FIRST}).some(link => link.includes('/{LATEST}/{expected}'))"
        try:
            page.wait_for_function(wanted, timeout=5_000)
        except PlaywrightError:
            found[words] = page.evaluate(LINKS)[:FIRST]

    assert found == {}


def test_site_has_a_menu_of_versions_and_light_and_dark_colours(page: Page, address: str) -> None:
    # A page without a diagram: if the theme cannot load mermaid from unpkg.com, its switch of colours fails.
    page.goto(f"{address}{LATEST}/how-to/")

    page.get_by_text("1.2.0").first.wait_for()
    page.locator("body[data-md-color-scheme=default]").wait_for()
    page.get_by_title("Use dark colours").click()
    page.locator("body[data-md-color-scheme=slate]").wait_for()
