"""One Chromium and one service for all tests of a worker, and pages in which people are signed in."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.site import Site
from tests.service.approvals.elsewhere import elsewhere
from tests.support.command_line import written
from tests.support.service import running_service

HERE = Path(__file__).parent
NO_CHROMIUM = "no Chromium found: run `scripts/chromium`, and set PDP_CHROMIUM to the path that it prints"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", type=Path, help="the folder to which pictures of all pages are written")


@pytest.fixture
def pictures(request: pytest.FixtureRequest) -> Path | None:
    """Return the folder to which the test writes pictures, if there is one."""
    folder: Path | None = request.config.getoption("pictures", default=None)
    return folder and request.config.invocation_params.dir / folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.process)


# The scope is the package, because the event loop of Playwright must not run beside those of asynchronous tests.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = os.environ.get("PDP_CHROMIUM") or shutil.which("chromium")
    if program is None:
        pytest.skip(NO_CHROMIUM)
    # Chromium finds no address of another host, so its requests cannot leave the machine.
    arguments = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=arguments, chromium_sandbox=os.geteuid() != 0
        )
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def served(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("console")
    key = str(written(folder / "requests.key", "k" * 32))
    tenant = {"record_requests": True, "requests_key_file": key}
    with running_service(folder, tenant=tenant) as running, elsewhere(running.store) as other:
        yield Site(browser, running, other)
        assert "Traceback" not in running.log.read_text()


@pytest.fixture
def site(served: Site) -> Iterator[Site]:
    """The service. After the test, all pages that the test has opened are checked and closed."""
    yield served
    served.close()
