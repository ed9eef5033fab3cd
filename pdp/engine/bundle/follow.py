"""An embedded engine that follows one bundle file, by path or URL, and never decides with an invalid bundle.

The engine polls one address with the ETag of the last answer, as OPA's bundle protocol does, so an OPA server can
follow the same address. A new bundle is verified and compiled first, and then replaces the old one between two
decisions. A decision that is running at that moment ends with the old bundle.
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

EVERY: Final = 60.0  # The default number of seconds between two checks of the source.
TIMEOUT: Final = 30.0  # The default number of seconds for one HTTP answer, from the address lookup to the last byte.
# the random part of the time between two checks, so that many engines do not poll at the same moment
JITTER: Final = 0.2

_LONGEST: Final = 10 * 365 * 24 * 3600.0
_OK: Final = 200
_NOT_MODIFIED: Final = 304
_CHECK: Final = "check the URL, and that the server offers the bundle"
# Where the system supports it, this clock also runs while the machine sleeps, so bundles also age while a laptop is
# closed.
_elapsed: Final = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

_log = logging.getLogger("pdp.engine")


@dataclass(frozen=True, slots=True)
class BundleHealth:
    """The state of a `FollowingEngine`. `age` is the number of seconds since the source last confirmed the bundle.

    `behind`: the source is invalid or unreadable, so the last valid bundle still decides. `stale`: the source has not
    confirmed the bundle for longer than `max_age`, so every decision is a DENY.
    """

    state: Literal["current", "behind", "stale"]
    revision: str
    release: int
    age: float
    error: PdpError | None


class FollowingEngine(Engine):
    """An engine in the process that follows the bundle at a file or URL.

    Safe for threads and tasks. Close the engine after use. Open it after a fork: a forked child only gets DENY.

    Args:
        source: a bundle file, or its `http` or `https` URL. A URL requires keys in `trust`.
        trust: the trusted signing keys, and the newest release so far.
        every: seconds between two checks of the source; the first check is made at once.
        max_age: seconds without confirmation by the source, including sleep of the machine, after which every decision
            is a DENY `bundle.stale`. None for no limit.
        timeout: seconds for a complete HTTP response.
        headers: headers of each request, such as `Authorization`; never logged.
        tls: for `https`, replaces the system's certificates; it may include a client certificate.
        manifests, data, deadline, memory_limit: as for `EmbeddedEngine`.
        clock: returns seconds that never decrease; for tests.

    Raises:
        BundleError: the source has no usable bundle, or the file cannot be read.
        EngineError: the server cannot be reached.
        UsageError: an argument is invalid.

    Examples:
        >>> from pdp import BundleTrust
        >>> with FollowingEngine("../../bundles/payments.tar.gz", BundleTrust()) as engine:
        ...     engine.health().state
        'current'
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
                    f"{source}: a bundle from a URL must be signed", hint="pass public keys to BundleTrust"
                )
        else:
            self._read = lambda _: (read_packed(Path(source)), None)
        self._trust = trust
        self._max_age = math.inf if max_age is None else max_age
        self._open_engine = partial(
            EmbeddedEngine, manifests=manifests, data=data, deadline=deadline, memory_limit=memory_limit
        )
        self._clock = clock
        self._error: PdpError | None = None
        self._rejected: tuple[str, BundleError] | None = None
        self._refreshing = threading.Lock()
        self._ended = threading.Event()
        self._process = os.getpid()
        self._confirmed = self._clock()
        content, self._tag = self._read(None)
        self._loaded = self._load(content or b"")
        try:
            threading.Thread(
                target=refresh_periodically, args=(ref(self), self._ended, every), name="pdp-bundles", daemon=True
            ).start()
        except RuntimeError as error:
            self._loaded[1].close()
            raise EngineError(f"cannot start the thread that follows the bundle: {error}") from error

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a document, as `EmbeddedEngine.evaluate` does.

        Raises:
            StaleBundleError: the source has not confirmed the bundle for longer than `max_age`.
            EngineError: as for `EmbeddedEngine.evaluate`, or the process was forked.
        """
        # Bundle and engine are read together. A bundle that is loaded after this line decides the next request.
        bundle, engine = self._loaded
        age = self._age()
        if not age <= self._max_age:
            raise StaleBundleError(
                f"release {bundle.release} was last compared with its source {age:.0f} s ago, but at most "
                f"{self._max_age:g} s are allowed",
                hint="see the error in the engine's health",
            )
        return engine.evaluate(body, document)

    @property
    def bundle(self) -> Bundle:
        """The bundle that the engine decides with."""
        return self._loaded[0]

    def health(self) -> BundleHealth:
        """Return whether the bundle is current, its age, and the error of the last check of the source."""
        bundle, error, age = self.bundle, self._error, self._age()
        state: Literal["current", "behind", "stale"] = "current" if error is None else "behind"
        return BundleHealth(state if age <= self._max_age else "stale", bundle.revision, bundle.release, age, error)

    def refresh(self) -> BundleHealth:
        """Check the source now and return the health. Errors of the source are part of the health, not raised.

        Raises:
            EngineError: the process was forked.
        """
        if os.getpid() != self._process:
            raise EngineError(
                "the engine was opened before the process was forked", hint="open the engine after the fork"
            )
        with self._refreshing:
            started = self._clock()
            try:
                content, tag = self._read(self._tag)
                if content is not None and digest(content) != self.bundle.digest:
                    # Another thread may still be using the old engine, so it is not closed here; it is freed with its
                    # last reference.
                    self._loaded = self._load(content)
                    # `close` sets the event before it reads `_loaded`, so either `close` or this thread closes the new
                    # engine.
                    if self._ended.is_set():
                        self._loaded[1].close()
            except Exception as caught:  # noqa: BLE001 - the last good bundle stays, and health reports it
                # If the tag of a bad file were kept, the next check would report the file as unchanged and treat it as
                # loaded.
                self._tag = None
                error = caught if isinstance(caught, PdpError) else EngineError(f"{type(caught).__name__}: {caught}")
                # If the server is down, the error is logged once, not at every check.
                if str(self._error) != str(error):
                    _log.warning(
                        "%s: the engine still decides with release %d: %s", self._source, self.bundle.release, error
                    )
                self._error = error
            else:
                # The age counts from before the request, because the server's answer may describe the state at that
                # time.
                self._confirmed, self._tag = started, tag
                self._error = self._rejected = None
        return self.health()

    def close(self) -> None:
        """Stop following the source and free the memory. Later decisions are a DENY `engine.unavailable`."""
        self._ended.set()
        self._loaded[1].close()

    def _age(self) -> float:
        return max(0.0, self._clock() - self._confirmed)

    def _load(self, content: bytes) -> tuple[Bundle, EmbeddedEngine]:
        file_digest = digest(content)
        if self._rejected is not None and self._rejected[0] == file_digest:
            raise self._rejected[1]
        try:
            bundle = self._trust.admit(content)
            engine = self._open_engine(bundle)
        except ReleaseFloorError:
            raise
        except BundleError as error:
            message = f"{self._source}: {error.message.removeprefix('bundle: ')}"
            refusal = type(error)(message, hint=error.hint)
            self._rejected = (file_digest, refusal)
            self._trust.refused(file_digest, refusal)
            raise refusal from error
        try:
            self._trust.loaded(bundle)
        except BaseException:
            engine.close()
            raise
        return bundle, engine


def refresh_periodically(follower: ref[Any], ended: threading.Event, every: float) -> None:
    """Call a follower's `refresh` about every `every` seconds, until `ended` is set or the follower is dropped."""
    # The thread has only a weak reference, so it also ends if the follower is dropped without being closed.
    while not ended.wait(every * random.uniform(1 - JITTER, 1 + JITTER)):  # noqa: S311 - not used for security
        target = follower()
        if target is None:
            return
        target.refresh()
        del target


class _UrlSource:
    """Reads a bundle from a URL. Returns the file with its ETag, or None if the given ETag is still current."""

    def __init__(self, url: str, timeout: float, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
        with extra("follow"):
            import httpx  # noqa: PLC0415 - only needed for URLs
        try:
            parts = httpx.URL(url)
        except (httpx.InvalidURL, ValueError):
            parts = httpx.URL()
        if parts.userinfo:
            raise UsageError(
                "the URL of a bundle contains a password", hint="send the password in the header Authorization"
            )
        if parts.scheme not in {"http", "https"} or not parts.host or parts.query or parts.fragment or " " in url:
            raise UsageError(
                f"{url!r:.200}: not a valid URL of a bundle", hint="write it like https://HOST/channels/stable.tar.gz"
            )
        # headers are checked here, because httpx's own error message would quote the value
        for name, value in headers.items():
            if not f"{name}{value}".isascii() or not f"{name}{value}".isprintable():
                raise UsageError(f"headers: {name!r:.80} cannot be sent", hint="use only printable ASCII characters")
        self._url = url
        self._timeout = timeout
        # The server is asked for an uncompressed file, and caches are asked not to answer from their copy.
        self._headers = {"Accept-Encoding": "identity", "Cache-Control": "no-cache", **headers}
        self._tls = tls or ssl.create_default_context()

    def __call__(self, tag: str | None) -> tuple[bytes | None, str | None]:
        # The event loop runs in a new thread, because the caller may already be in one.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self._fetch(tag)).result()

    # Only an event loop can limit the whole download by one deadline, with the address lookup, TLS and a slow answer.
    async def _fetch(self, tag: str | None) -> tuple[bytes | None, str | None]:
        import httpx  # noqa: PLC0415

        headers = self._headers | ({} if tag is None else {"If-None-Match": tag})
        body = bytearray()
        try:
            # Redirects are not followed, because the bundle must come from the configured address. Proxy variables are
            # respected.
            async with (
                asyncio.timeout(self._timeout),
                httpx.AsyncClient(verify=self._tls, timeout=None) as client,  # noqa: S113 - asyncio.timeout limits it
                client.stream("GET", self._url, headers=headers) as response,
            ):
                if response.status_code == _NOT_MODIFIED and tag is not None:
                    return None, tag
                if response.status_code != _OK:
                    raise EngineError(f"{self._url}: the server answered {response.status_code}", hint=_CHECK)
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > MAX_BUNDLE:
                        raise EngineError(f"{self._url}: larger than {MAX_BUNDLE} bytes", hint="check the URL")
        except TimeoutError:
            raise EngineError(f"{self._url}: no complete answer within {self._timeout:g} s", hint=_CHECK) from None
        except (httpx.HTTPError, OSError) as error:
            raise EngineError(
                f"{self._url}: download failed: {str(error) or type(error).__name__:.200}", hint=_CHECK
            ) from error
        return bytes(body), response.headers.get("ETag")
