"""`pdp console` and `pdp demo --console` run as processes, and a person decides in their browser."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from pdp.stores.url import OpenStores
from tests.support import PATIENCE
from tests.support.command_line import environment, pdp, written
from tests.support.payments import EXAMPLE

Run = Callable[..., tuple["subprocess.Popen[str]", str]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Return a function that runs a command in an empty folder, and returns the process and the link that it prints."""
    started: list[subprocess.Popen[str]] = []

    def running(*arguments: object) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "pdp", *map(str, arguments), "--no-browser"]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment(PDP_OPA="/none", TMPDIR=str(tmp_path)), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        link = next((re.search(r"http://\S+/link/\S+", line) for line in process.stdout if "/link/" in line), None)
        assert link is not None
        return process, link[0]

    yield running
    for process in started:
        process.terminate()
        process.communicate(timeout=PATIENCE)


@contextmanager
def opened(link: str) -> Iterator[httpx.Client]:
    """Open the link with a browser, which keeps the session."""
    address = link.partition("/console/")[0]
    with httpx.Client(base_url=address, follow_redirects=True, timeout=PATIENCE) as browser:
        assert browser.get(link).url.path == "/console/approvals"
        yield browser


@pytest.mark.process
def test_console_serves_one_person_until_it_ends(tmp_path: Path, run: Run) -> None:
    store = f"sqlite:///{tmp_path}/own.db"
    files = ("--project", EXAMPLE / "pdp.yaml", "--session", EXAMPLE / "approver.yaml", "--store", store)
    process, link = run("console", *files)
    with opened(link) as browser, httpx.Client() as other:
        page = browser.get("/console/help").text
        refused = other.get(link)
        session = browser.cookies[f"pdp_console_{httpx.URL(link).port}"]
    process.send_signal(signal.SIGTERM)

    assert link.startswith("http://127.0.0.1:")
    assert "supervisor-9" in page
    assert (refused.status_code, "run pdp console again" in refused.text) == (403, True)
    assert (process.wait(PATIENCE), process.stderr and process.stderr.read()) == (0, "")
    with closing(OpenStores(store)) as stores:
        record = stores.tokens.get(session[4:20])
        assert stores.tokens.list("default") == []
    assert record is not None
    assert record.scopes == ("approve", "audit", "decide", "propose")
    assert (record.auth_time, record.revoked_at is not None) == (None, True)


@pytest.mark.process
def test_demo_waits_for_the_decision_in_the_console(tmp_path: Path, run: Run) -> None:
    process, link = run("demo", "--console")
    with opened(link) as browser:
        [address] = {*re.findall(r'href="(/console/approvals/\w+)"', browser.get("/console/approvals").text)}
        [csrf] = {*re.findall(r'name="csrf" value="(\w+)"', browser.get(address).text)}
        origin = {"Origin": link.partition("/console/")[0]}
        browser.post(address, data={"csrf": csrf, "step": "once"}, headers=origin)
        assert process.stdout is not None
        story = "".join(iter(process.stdout.readline, "The console stays open until you press Ctrl-C.\n"))
        after = browser.get(address).text
    process.send_signal(signal.SIGINT)

    assert (process.wait(PATIENCE), process.stderr and process.stderr.read()) == (0, "")
    assert "wire 47,500, approved         ALLOW " in story
    assert "called 2 times, 20,000 to bene-acme-441, 47,500 to bene-acme-441" in story
    assert "(9 decisions, 4 results), hash chain intact" in story
    assert "the call was allowed" in after


@pytest.mark.parametrize(
    ("session", "code", "message"),
    [
        ("claims: {roles: [payments.approver]}", 2, "the claims name no person"),
        ("claims: {sub: ''}", 2, "the claims name no person"),
        ("claim: {}", 2, "unknown key `claim`"),
        (None, 2, "approver.yaml"),
    ],
)
def test_console_rejects_a_session_without_a_person(
    session: str | None, code: int, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "approver.yaml"
    if session is not None:
        written(file, session)
    done = pdp("console", "--project", EXAMPLE / "pdp.yaml", "--session", file, "--no-browser")

    assert (done.code, done.out) == (code, "")
    assert message in done.err
