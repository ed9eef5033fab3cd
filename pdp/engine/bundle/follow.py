"""An embedded engine that follows a channel of a bundle repository, and never decides by a bad bundle.

A thread looks at the repository now and then. A new bundle is checked and compiled there, and takes the old one's place
between two decisions: whoever decides by the old one at that moment ends with it. What is bad never takes its place.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakSet, ref

from pdp.engine.bundle.repository_index import CHANNELS, check_record
from pdp.engine.bundle.repository_reader import HttpReader, RepositoryReader, open_repository
from pdp.engine.bundle.trust import BundleEvent, BundleTrust, ReleaseFloorError, StaleBundleError, event_of
from pdp.engine.protocol import Engine
from pdp.engine.seconds import check_clock, check_seconds, elapsed
from pdp.engine.wasm.engine import DEADLINE, MEMORY_LIMIT, EmbeddedEngine
from pdp.errors import BundleError, EngineError, PdpError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pdp.engine.bundle.file import Bundle
    from pdp.engine.bundle.repository_index import Channel, Published

EVERY: Final = 60.0
"""Default time between two looks, in seconds."""

JITTER: Final = 0.2
"""By which part a time between two looks differs from that, so that a thousand engines do not come at once."""

_LONGEST: Final = 10 * 365 * 24 * 3600.0

_log = logging.getLogger("pdp.engine")


@dataclass(frozen=True, slots=True)
class BundleHealth:
    """How an engine stands to the channel that it follows.

    Attributes:
        state: `current`: it decides by the channel's bundle. `behind`: by the last good one, as the channel's is bad or
            the repository cannot be reached. `stale`: it decides nothing, as that lasts longer than `max_age`.
        revision: of the bundle that it has.
        release: likewise.
        digest: of that bundle's file.
        age: seconds since the repository said that this is the channel's bundle.
        error: the code of what went wrong at the last look, or None.
        message: what went wrong, or None.
        refused: the digest of a bundle that was refused, as it is bad or not what the index says of it, while it is the
            channel's; or None.
    """

    state: Literal["current", "behind", "stale"]
    revision: str
    release: int
    digest: str
    age: float
    error: str | None
    message: str | None
    refused: str | None


@dataclass(frozen=True, slots=True)
class _Loaded:
    published: Published
    bundle: Bundle
    engine: EmbeddedEngine


class WatchingEngine(Engine):
    """Decides in the process by whatever a channel's current bundle is. Safe for threads and tasks; close it when done.

    Args:
        repository: the folder, or the URL of a repository that is served over HTTP, or a reader of one.
        trust: by whom bundles have to be signed, and which release is the newest so far. Over HTTP there must be keys.
        channel: what is followed.
        every: seconds between two looks; the first one is taken now.
        max_age: seconds after which a bundle that the repository has not confirmed is decided by no longer: a DENY
            `bundle.stale`. None: never. Sleep of the machine counts; its clock may be set to whatever.
        manifests: as of `EmbeddedEngine`.
        data: likewise.
        deadline: likewise.
        memory_limit: likewise.
        clock: seconds that never go back, for tests.

    Raises:
        BundleError: the channel has no bundle that can be decided by.
        EngineError: the repository cannot be reached.
        UsageError: an argument that cannot be used.
    """

    name = "embedded"

    def __init__(
        self,
        repository: str | Path | RepositoryReader,
        trust: BundleTrust,
        *,
        channel: Channel = "stable",
        every: float = EVERY,
        max_age: float | None = None,
        manifests: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        deadline: float = DEADLINE,
        memory_limit: int = MEMORY_LIMIT,
        clock: Callable[[], float] = elapsed,
    ) -> None:
        for name, seconds in (("every", every), ("max_age", every if max_age is None else max_age)):
            check_seconds(name, seconds, most=_LONGEST)
        if channel not in CHANNELS:
            raise UsageError(f"channel: {channel!r:.40} is not a channel", hint=" or ".join(CHANNELS))
        check_clock(clock)
        reader = open_repository(repository) if isinstance(repository, str | os.PathLike) else repository
        for name, given, kind in (("repository", reader, RepositoryReader), ("trust", trust, BundleTrust)):
            if not isinstance(given, kind):
                raise UsageError(f"{name}: {type(given).__name__} is not one", hint=f"give a {kind.__name__}")
        if isinstance(reader, HttpReader) and trust.keys is None:
            raise UsageError(
                f"{reader.name}: bundles over HTTP are taken from signers alone", hint="give BundleTrust public keys"
            )
        self._reader = reader
        self._trust = trust
        self._channel: Channel = channel
        self._every = every
        self._max_age = math.inf if max_age is None else max_age
        self._engine_options: dict[str, Any] = {
            "manifests": manifests, "data": data, "deadline": deadline, "memory_limit": memory_limit,
        }  # fmt: skip
        # By default with the machine's sleep: a laptop's lid must not stop a bundle's ageing.
        self._clock = clock
        self._error: PdpError | None = None
        self._refusal: tuple[Published, BundleError] | None = None
        self._confirmed = self._clock()
        self._loaded = self._load(reader.current(channel), None)
        self._begin()
        _watching.add(self)

    def evaluate(self, body: bytes) -> bytes:
        """Evaluate `authz/decision`, as `EmbeddedEngine.evaluate` does.

        Raises:
            StaleBundleError: the bundle is older than admitted.
            EngineError: as there.
        """
        return self._engine().evaluate(body)

    def evaluate_findings(self, body: bytes) -> bytes:
        """Evaluate `authz/findings`; errors as of `evaluate`."""
        return self._engine().evaluate_findings(body)

    def evaluate_plan(self, body: bytes) -> bytes:
        """Evaluate `authz/plan`; errors as of `evaluate`."""
        return self._engine().evaluate_plan(body)

    async def aevaluate(self, body: bytes) -> bytes:
        """Do as `evaluate`, on the event loop."""
        return self.evaluate(body)

    @property
    def bundle(self) -> Bundle:
        """The bundle that is decided by."""
        return self._loaded.bundle

    def health(self) -> BundleHealth:
        """Return how the engine stands to its channel."""
        loaded, error = self._loaded, self._error
        age = self._age()
        state: Literal["current", "behind", "stale"] = "current" if error is None else "behind"
        if not age <= self._max_age:
            state = "stale"
        return BundleHealth(
            state=state,
            revision=loaded.bundle.revision,
            release=loaded.bundle.release,
            digest=loaded.bundle.digest,
            age=age,
            error=None if error is None else error.code,
            message=None if error is None else str(error),
            refused=None if self._refusal is None else self._refusal[0].digest,
        )

    def refresh(self) -> BundleHealth:
        """Look at the repository now, and return how the engine stands to it then. Nothing found there is raised."""
        with self._looking:
            asked = self._clock()
            try:
                published = self._reader.current(self._channel)
                # The whole record: an index that renumbers the bundle at hand is at fault, and that is said.
                if published != self._loaded.published:
                    self._swap(self._load(published, self._loaded))
            except Exception as caught:  # noqa: BLE001 - whatever it is, the last good bundle is kept, and it is said
                error = caught if isinstance(caught, PdpError) else EngineError(f"{type(caught).__name__}: {caught}")
                # A repository that is away is told about once, not once a minute.
                if self._error is None or str(self._error) != str(error):
                    _log.warning("%s: release %d is kept: %s", self._reader.name, self._loaded.bundle.release, error)
                self._error = error
            else:
                # Of the moment before the question: what the repository said may be as old as that.
                self._confirmed = asked
                self._error = self._refusal = None
        return self.health()

    def close(self) -> None:
        """End the looking and give all memory back; deciding afterwards is a DENY `engine.unavailable`."""
        with self._swapping:
            self._ended.set()
            self._loaded.engine.close()

    def _swap(self, loaded: _Loaded) -> None:
        with self._swapping:
            # The old engine is not closed, as somebody may be about to ask it: it goes with its last user.
            self._loaded = loaded
            if self._ended.is_set():
                loaded.engine.close()

    def _engine(self) -> EmbeddedEngine:
        # Taken once: what is swapped in after this is the next decision's.
        loaded = self._loaded
        if not self._age() <= self._max_age:
            raise StaleBundleError(
                f"release {loaded.bundle.release} was last confirmed {self._age():.0f} s ago, {self._max_age:g} s are "
                f"admitted",
                hint="see the engine's health for what keeps it from the repository",
            )
        return loaded.engine

    def _age(self) -> float:
        return max(0.0, self._clock() - self._confirmed)

    def _load(self, published: Published, before: _Loaded | None) -> _Loaded:
        """Return the bundle with an engine of its own, checked and noted as the newest."""
        if self._refusal is not None and self._refusal[0] == published:
            # Its bytes are what the index pins, and bad or not as it says: neither gets better while it says the same.
            raise self._refusal[1]
        content = self._reader.fetch(published)
        previous = None if before is None else before.bundle.release
        try:
            loaded = self._opened(content, published)
        except ReleaseFloorError:
            raise
        except BundleError as error:
            where = f"{self._reader.name}/{published.path}"
            refusal = type(error)(f"{where}: {error.message.removeprefix('bundle: ')}", hint=error.hint)
            self._refusal = (published, refusal)
            self._trust.tell(
                BundleEvent(
                    "bundle.refused",
                    revision=published.revision,
                    release=published.release,
                    digest=published.digest,
                    previous_release=previous,
                    error_code=error.code,
                    message=refusal.message,
                )
            )
            raise refusal from error
        try:
            self._trust.keep(loaded.bundle)
        except BaseException:
            loaded.engine.close()
            raise
        self._trust.tell(event_of("bundle.loaded", loaded.bundle, previous_release=previous))
        return loaded

    def _opened(self, content: bytes, published: Published) -> _Loaded:
        bundle = self._trust.admit(content)
        check_record(published, bundle)
        return _Loaded(published, bundle, EmbeddedEngine(bundle, **self._engine_options))

    def _begin(self) -> None:
        self._ended = threading.Event()
        self._looking = threading.Lock()
        self._swapping = threading.Lock()
        arguments = (ref(self), self._ended, self._every)
        try:
            threading.Thread(target=_look, args=arguments, name="pdp-bundles", daemon=True).start()
        except RuntimeError as error:
            self._loaded.engine.close()
            raise EngineError(f"no thread to look at the repository: {error}") from error

    def _begin_in_child(self) -> None:
        """Begin anew after a fork: the child has no thread, and the parent's may have held the lock."""
        if not self._ended.is_set():
            self._trust.floor.begin_in_child()
            self._begin()


def _look(engine: ref[WatchingEngine], ended: threading.Event, every: float) -> None:
    # By a weak reference, so that an engine that nobody has any longer ends its thread, closed or not.
    while not ended.wait(every * random.uniform(1 - JITTER, 1 + JITTER)):  # noqa: S311 - spreads, hides nothing
        watched = engine()
        if watched is None:
            return
        watched.refresh()
        del watched


_watching: Final[WeakSet[WatchingEngine]] = WeakSet()


def _begin_in_child() -> None:
    for engine in list(_watching):
        engine._begin_in_child()  # noqa: SLF001 - the engine's own second half


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
