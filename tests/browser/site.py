"""A running service as a person's browser sees it."""

import asyncio
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, ViewportSize, expect

from pdp import Approval
from pdp.decision import new_id
from pdp.service.security.principal import BrowserSession, Principal, Scope
from pdp.service.security.tokens import TokenAuthenticator
from tests.service.approvals.elsewhere import Elsewhere
from tests.support.payments import session, wire
from tests.support.service import APPROVER, OFFICER, RunningService

SIGN_IN = "/console/sign-in"
INBOX = "/console/approvals"
DECISIONS = "/console/decisions"
GRANTS = "/console/grants"
MOST_BYTES = 60 * 1024
"""The size that no page exceeds."""
SIZE: ViewportSize = {"width": 1280, "height": 720}
TIMEOUT = 30_000
"""Milliseconds to wait for an event that must happen in a page."""

expect.set_options(timeout=TIMEOUT)


class Site:
    """A running service, and the browser in which people open its pages. `other` opens the service's stores."""

    def __init__(self, browser: Browser, running: RunningService, other: Elsewhere) -> None:
        self.running = running
        self.other = other
        self.allowed = [running.url]
        self._faults: list[str] = []
        self.browser = browser
        self._numbers = itertools.count(1000)
        self._own: list[BrowserContext] = []
        self._used: list[tuple[bool, BrowserContext]] = []
        self._empty: dict[bool, list[BrowserContext]] = {True: [], False: []}

    def window(self, *, java_script_enabled: bool = True, **options: Any) -> Page:
        """Return an empty page of an empty browser profile without a session. With options, the profile is new."""
        if options:
            self._own.append(self._new_profile(java_script_enabled=java_script_enabled, **options))
            return self._own[-1].pages[0]
        # For a new profile or a new page, Chromium starts processes, which takes longer than to show some pages.
        empty = self._empty[java_script_enabled]
        context = empty.pop() if empty else self._new_profile(java_script_enabled=java_script_enabled)
        self._used.append((java_script_enabled, context))
        return context.pages[0]

    def _new_profile(self, **options: Any) -> BrowserContext:
        context = self.browser.new_context(base_url=self.running.url, **{"viewport": SIZE, **options})
        context.set_default_timeout(TIMEOUT)
        context.on("request", self._note_request)
        context.on("console", self._note_message)
        context.on("weberror", lambda error: self._faults.append(f"script failed: {error.error}"))
        context.on("dialog", self._note_dialog)
        context.new_page()
        return context

    def signed_in(
        self,
        claims: Mapping[str, Any] = APPROVER,
        scopes: Iterable[str] = ("approve", "audit", "decide"),
        *,
        token: str | None = None,
        **options: Any,
    ) -> Page:
        """Return an empty page of a new browser profile in which a person is signed in.

        The person has `claims` and has just signed in at an identity provider, or has pasted `token`.
        """
        page = self.window(**options)
        if token is None:
            self._begin_session(page, claims, scopes)
        else:
            answer = page.request.post(
                SIGN_IN, form={"token": token}, headers={"Origin": self.running.url}, max_redirects=0
            )
            assert answer.status == 303, answer.text()
        return page

    def asked(self, arguments: Mapping[str, Any] | None = None, **session_: Any) -> Approval:
        """Open an approval for a new wire in this process, and return it."""
        new = {"reference": f"INV-{next(self._numbers)}", **(arguments or {})}
        changes = {"time": None, "claims": OFFICER, "idempotency_key": new_id(), **session_}
        evaluation = self.other.pep.call(wire(**new), session(**changes))
        assert evaluation.approval is not None, evaluation
        return evaluation.approval

    def _begin_session(self, page: Page, claims: Mapping[str, Any], scopes: Iterable[str]) -> None:
        now = time.time()
        principal = Principal(
            "issuer#person", "default", frozenset(map(Scope, scopes)), claims, expires_at=now + 3600, auth_time=now
        )
        opened = TokenAuthenticator(self.other.tokens).open_session(principal, BrowserSession.CONSOLE)
        with ThreadPoolExecutor(1) as thread:  # The event loop of Playwright runs in this thread.
            session = thread.submit(asyncio.run, opened).result()
        page.context.add_cookies(
            [
                {
                    "name": f"pdp_console_{httpx.URL(self.running.url).port}",
                    "value": session,
                    "url": self.running.url,
                    "httpOnly": True,
                    "sameSite": "Strict",
                }
            ]
        )

    def close(self) -> None:
        """Close all pages, and fail if one sent a request to another host, ran a foreign script or logged an error."""
        while self._own:
            self._own.pop().close()
        while self._used:
            javascript, context = self._used.pop()
            first, *others = context.pages
            for page in others:
                page.close()
            first.unroute_all()
            first.goto("about:blank")
            first.emulate_media(media="null", color_scheme="null")
            first.set_viewport_size(SIZE)
            everything = {"origin": self.running.url, "storageTypes": "all"}
            context.new_cdp_session(first).send("Storage.clearDataForOrigin", everything)
            context.clear_cookies()
            context.clear_permissions()
            self._empty[javascript].append(context)
        faults, self._faults = self._faults, []
        del self.allowed[1:]
        assert not faults, faults

    @contextmanager
    def expected(self, fault: str, *, surely: bool = True) -> Iterator[None]:
        """Ignore this fault while the block runs. The block must have it, unless `surely` is false."""
        before, self._faults = self._faults, []
        yield
        found = [each for each in self._faults if fault in each]
        self._faults = before + [each for each in self._faults if fault not in each]
        assert found or not surely, self._faults

    def _note_dialog(self, dialog: Dialog) -> None:
        self._faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith(("data:", *self.allowed)):
            self._faults.append(f"request to another host: {request.url}")

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._faults.append(f"{message.type} in the console: {message.text}")
