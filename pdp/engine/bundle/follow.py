"""An embedded engine that follows one bundle file, by path or URL, and never decides by a bad bundle.

It is OPA's bundle protocol and nothing else: one address, asked now and then with the ETag of the last answer. A
sidecar can follow the same one. A new bundle is checked and compiled aside, and takes the old one's place between two
decisions: whoever decides by the old one at that moment ends with it. A bad one never takes its place.
"""

import asyncio
import logging
import math
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from weakref import ref

from pdp.engine.bundle.file import MAX_BUNDLE, Bundle, read_packed
from pdp.engine.bundle.trust import BundleTrust, ReleaseFloorError, StaleBundleError
from pdp.engine.protocol import DECISION, Engine, check_seconds
from pdp.engine.wasm.engine import DEADLINE, MEMORY_LIMIT, EmbeddedEngine
from pdp.errors import BundleError, EngineError, PdpError, UsageError
from pdp.installed import extra
from pdp.json import digest

EVERY: Final = 60.0  # default time between two looks, in seconds
TIMEOUT: Final = 30.0  # default time for one answer over HTTP, from the address' lookup to the last byte, in seconds
JITTER: Final = 0.2  # by which part the time between two looks varies, lest a thousand engines come at once

_LONGEST: Final = 10 * 365 * 24 * 3600.0
_OK: Final = 200
_NOT_MODIFIED: Final = 304
_CHECK: Final = "check the address, and that it is served"
# With the machine's sleep where the system counts it: a laptop's lid must not stop a bundle's ageing.
_elapsed: Final = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

_log = logging.getLogger("pdp.engine")


@dataclass(frozen=True, slots=True)
class BundleHealth:
    """How an engine stands to the file that it follows.

    Attributes:
        state: `current`: it decides by that file. `behind`: by the last good one, since the file is bad or cannot be
            read. `stale`: it decides nothing, since that lasts longer than `max_age`.
        revision, release: of the bundle that it has.
        age: seconds since the source confirmed that bundle.
        error: what went wrong at the last look.
    """

    state: Literal["current", "behind", "stale"]
    revision: str
    release: int
    age: float
    error: PdpError | None


class FollowingEngine(Engine):
    """Decides in the process by the bundle that stands at one address. Safe for threads and tasks; close it when done.

    Open it after a fork: in a forked child it decides nothing.

    Args:
        source: a bundle file, or the `http` or `https` URL of one. Over HTTP there must be keys.
        trust: by whom bundles have to be signed, and which release is the newest so far.
        every: seconds between two looks; the first one is taken now.
        max_age: seconds after which a bundle that the source has not confirmed decides nothing any more: a DENY
            `bundle.stale`. None: never. Sleep of the machine counts; its clock may be set at will.
        timeout: seconds for one answer over HTTP, the whole of it.
        headers: sent with each request, such as `Authorization`. Shown nowhere.
        tls: for `https`, instead of the system's certificates; it may have a client certificate.
        manifests, data, deadline, memory_limit: as of `EmbeddedEngine`.
        clock: seconds that never go back, for tests.

    Raises:
        BundleError: the source has no bundle that can be decided by, or its file cannot be read.
        EngineError: its server cannot be asked.
        UsageError: an argument that cannot be used.
    """

    name = "embedded"

    def __init__(
        self,
        source: str | Path,
        trust: BundleTrust,
        *,
        every: float = EVERY,
        max_age: float | None = None,
        timeout: float = TIMEOUT,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        manifests: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        deadline: float = DEADLINE,
        memory_limit: int = MEMORY_LIMIT,
        clock: Callable[[], float] = _elapsed,
    ) -> None:
        for name, seconds in (("every", every), ("max_age", every if max_age is None else max_age)):
            check_seconds(name, seconds, most=_LONGEST)
        check_seconds("timeout", timeout)
        self._source = str(source)
        self._read: Callable[[str | None], tuple[bytes | None, str | None]]
        if isinstance(source, str) and "://" in source:
            self._read = _UrlSource(source, timeout, headers or {}, tls)
            if trust.keys is None:
                raise UsageError(
                    f"{source}: bundles over HTTP are taken from signers alone", hint="give BundleTrust public keys"
                )
        else:
            self._read = lambda _: (read_packed(Path(source)), None)
        self._trust = trust
        self._max_age = math.inf if max_age is None else max_age
        self._opened = partial(
            EmbeddedEngine, manifests=manifests, data=data, deadline=deadline, memory_limit=memory_limit
        )
        self._clock = clock
        self._error: PdpError | None = None
        self._refusal: tuple[str, BundleError] | None = None
        self._looking = threading.Lock()
        self._ended = threading.Event()
        self._process = os.getpid()
        self._confirmed = self._clock()
        content, self._tag = self._read(None)
        self._loaded = self._load(content or b"")
        try:
            threading.Thread(
                target=look_again, args=(ref(self), self._ended, every), name="pdp-bundles", daemon=True
            ).start()
        except RuntimeError as error:
            self._loaded[1].close()
            raise EngineError(f"no thread to follow the bundle: {error}") from error

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a document, as `EmbeddedEngine.evaluate` does.

        Raises:
            StaleBundleError: the bundle is older than admitted.
            EngineError: as there, or in a forked child.
        """
        # Taken once: what is swapped in after this is the next decision's.
        bundle, engine = self._loaded
        age = self._age()
        if not age <= self._max_age:
            raise StaleBundleError(
                f"release {bundle.release} was last confirmed {age:.0f} s ago, {self._max_age:g} s are admitted",
                hint="see the engine's health for what keeps it from its source",
            )
        return engine.evaluate(body, document)

    @property
    def bundle(self) -> Bundle:
        """The bundle that is decided by."""
        return self._loaded[0]

    def health(self) -> BundleHealth:
        """Return the state of the engine against its source."""
        bundle, error, age = self.bundle, self._error, self._age()
        state: Literal["current", "behind", "stale"] = "current" if error is None else "behind"
        return BundleHealth(state if age <= self._max_age else "stale", bundle.revision, bundle.release, age, error)

    def refresh(self) -> BundleHealth:
        """Look at the source now and return the health; a fault of the source is in it, and not raised.

        EngineError: in a forked child.
        """
        if os.getpid() != self._process:
            raise EngineError("the engine was opened before the process was forked", hint="open it after the fork")
        with self._looking:
            asked = self._clock()
            try:
                content, tag = self._read(self._tag)
                if content is not None and digest(content) != self.bundle.digest:
                    # The old engine is not closed, as somebody may be about to ask it: it goes with its last user.
                    self._loaded = self._load(content)
                    # `close` ends first and then reads what is loaded, so that one of the two closes the new one.
                    if self._ended.is_set():
                        self._loaded[1].close()
            except Exception as caught:  # noqa: BLE001 - whatever it is, the last good bundle stays, and health says so
                # Else the next look would find a bad file unchanged, and take it for the bundle at hand.
                self._tag = None
                error = caught if isinstance(caught, PdpError) else EngineError(f"{type(caught).__name__}: {caught}")
                # A server that is away is reported once, not once a minute.
                if str(self._error) != str(error):
                    _log.warning("%s: release %d stays: %s", self._source, self.bundle.release, error)
                self._error = error
            else:
                # Of the moment before the question: what the source answered may be as old as that.
                self._confirmed, self._tag = asked, tag
                self._error = self._refusal = None
        return self.health()

    def close(self) -> None:
        """End the looking and give all memory back; deciding afterwards is a DENY `engine.unavailable`."""
        self._ended.set()
        self._loaded[1].close()

    def _age(self) -> float:
        return max(0.0, self._clock() - self._confirmed)

    def _load(self, content: bytes) -> tuple[Bundle, EmbeddedEngine]:
        """Return the bundle with an engine of its own, checked and noted as the newest."""
        file_digest = digest(content)
        if self._refusal is not None and self._refusal[0] == file_digest:
            raise self._refusal[1]
        try:
            bundle = self._trust.admit(content)
            engine = self._opened(bundle)
        except ReleaseFloorError:
            raise
        except BundleError as error:
            message = f"{self._source}: {error.message.removeprefix('bundle: ')}"
            refusal = type(error)(message, hint=error.hint)
            self._refusal = (file_digest, refusal)
            self._trust.refused(file_digest, refusal)
            raise refusal from error
        try:
            self._trust.loaded(bundle)
        except BaseException:
            engine.close()
            raise
        return bundle, engine


def look_again(follower: ref[Any], ended: threading.Event, every: float) -> None:
    """Call `refresh` of a follower about every so many seconds, until it has ended, or nobody uses it any more."""
    # By a weak reference, so that one without users ends its thread, closed or not.
    while not ended.wait(every * random.uniform(1 - JITTER, 1 + JITTER)):  # noqa: S311 - spreads, hides nothing
        followed = follower()
        if followed is None:
            return
        followed.refresh()
        del followed


class _UrlSource:
    """Returns the file at a URL with its ETag, or None with it if it is the file that has the given ETag."""

    def __init__(self, url: str, timeout: float, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
        with extra("follow"):
            import httpx  # noqa: PLC0415 - only who follows a URL needs it
        try:
            parts = httpx.URL(url)
        except (httpx.InvalidURL, ValueError):
            parts = httpx.URL()
        if parts.userinfo:
            raise UsageError("the address of a bundle holds a password", hint="give it as a header: Authorization")
        if parts.scheme not in {"http", "https"} or not parts.host or parts.query or parts.fragment or " " in url:
            raise UsageError(
                f"{url!r:.200}: not the address of a bundle", hint="such as https://HOST/channels/stable.tar.gz"
            )
        for name, value in headers.items():  # else the library's error would quote it
            if not f"{name}{value}".isascii() or not f"{name}{value}".isprintable():
                raise UsageError(f"headers: {name!r:.80} cannot be sent", hint="printable ASCII characters alone")
        self._url = url
        self._timeout = timeout
        # The file as it is: a bundle is compressed already. No cache in between may answer by itself.
        self._headers = {"Accept-Encoding": "identity", "Cache-Control": "no-cache", **headers}
        self._tls = tls or ssl.create_default_context()

    def __call__(self, tag: str | None) -> tuple[bytes | None, str | None]:
        # In a thread of its own: the caller may be in an event loop.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self._fetch(tag)).result()

    # In an event loop, since only there one deadline bounds everything: lookup, TLS, and an answer that drips.
    async def _fetch(self, tag: str | None) -> tuple[bytes | None, str | None]:
        import httpx  # noqa: PLC0415

        headers = self._headers | ({} if tag is None else {"If-None-Match": tag})
        body = bytearray()
        try:
            # No redirections: the bundle is where the operator says. The environment's proxies apply.
            async with (
                asyncio.timeout(self._timeout),
                httpx.AsyncClient(verify=self._tls, timeout=None) as client,  # noqa: S113 - the one above bounds all
                client.stream("GET", self._url, headers=headers) as response,
            ):
                if response.status_code == _NOT_MODIFIED and tag is not None:
                    return None, tag
                if response.status_code != _OK:
                    raise EngineError(f"{self._url}: the server answers {response.status_code}", hint=_CHECK)
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > MAX_BUNDLE:
                        raise EngineError(f"{self._url}: larger than {MAX_BUNDLE} bytes", hint="is this a bundle?")
        except TimeoutError:
            raise EngineError(f"{self._url}: no whole answer within {self._timeout:g} s", hint=_CHECK) from None
        except (httpx.HTTPError, OSError) as error:
            raise EngineError(
                f"{self._url}: download failed: {str(error) or type(error).__name__:.200}", hint=_CHECK
            ) from error
        return bytes(body), response.headers.get("ETag")
