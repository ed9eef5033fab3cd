"""Once for each idempotency key: what is known of a key, and what that means for a call that comes with it.

Source: tool pattern library, 9.1 (re-invocation with the same arguments and idempotency key yields the same result and
no second side effect). A key is begun before its tool is started, and finished with what came of it:

    begin ── Fresh ──> the tool runs ── finish ──> succeeded: Stored, until its time to live is over
                                              ├──> failed without an effect: free again
                                              └──> failed, effect unknown: Unknown, until a person settles it
    begun and not finished: Running while the tool may still run, then Unknown. Neither is ever run again by itself.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from pdp.errors import PdpError, UsageError
from pdp.json import canonical, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from sqlalchemy import Connection

    from pdp.execution.run import Execution
    from pdp.manifest.model import Tool

LASTING: Final = 60.0
"""Seconds that a tool without time-out is taken to be running for, when nothing more is heard of it."""

PATIENCE: Final = 10.0
"""Seconds that a call waits for another one with the same key that is running."""

_FIRST_WAIT: Final = 0.002
_LONGEST_WAIT: Final = 0.25


class IdempotencyKey(NamedTuple):
    """A key, and whose and what for it is: equal texts of two tenants, subjects or tools have nothing in common.

    `tenant` tells apart who issues subjects, and nothing else (empty: there is one); `major` is the tool's major
    version, empty where the entry has no version; `key` is the session's text, or the derived one.
    """

    tenant: str
    subject: str
    tool: str
    major: str
    key: str

    @classmethod
    def of(cls, entry: Tool, *, tenant: str, subject: str, key: str) -> Self:
        """Return the key of a call of this entry."""
        return cls(tenant, subject, entry.name, (entry.version or "").partition(".")[0], key)

    @classmethod
    def of_compensation(cls, action_id: str) -> Self:
        """Return the key under which an action is taken back: nobody's in particular, since it is done once for all."""
        return cls("", "", "", "", f"compensation:{action_id}")

    @property
    def id(self) -> str:
        """A digest of all five."""
        return digest(canonical(list(self)))


class NotBegunError(PdpError):
    """What should be finished or settled is not there, or has been already."""

    code = "idempotency.not_begun"


class Fresh(NamedTuple):
    """The key is this caller's: run the tool once, then finish with the token."""

    token: str


class Stored(NamedTuple):
    """It ran before, with the same arguments; `execution` is what it came to, and says that nothing was started now."""

    execution: Execution
    approval_id: str | None


class Conflict(NamedTuple):
    """The key stands for a call with other arguments."""


class Running(NamedTuple):
    """Another call with the same key and arguments runs, and may until `until` (seconds since 1970)."""

    until: float
    approval_id: str | None


class Unknown(NamedTuple):
    """It was started before, and nobody knows what came of it; it is not run again.

    `since`: when it was started, in seconds since 1970. `execution`: the failure that it ended with; None when nothing
    was heard of it, as after a crash.
    """

    since: float
    execution: Execution | None
    approval_id: str | None


class NotApproved(NamedTuple):
    """The approval could not be used up, so the key was not begun."""


Begun = Fresh | Stored | Conflict | Running | Unknown | NotApproved
"""What `begin` answers. Only `Fresh` lets a tool run."""


class ApprovalUse(NamedTuple):
    """An approval that is used up together with a key: both, or neither.

    `consume` does it and returns whether it could; it is given the transaction that the key is begun in, or None where
    keys are kept in memory.
    """

    id: str
    consume: Callable[[Connection | None], bool]


class IdempotencyStore(Protocol):
    """Where keys are kept. Safe to share between threads; each method is one atomic step, and raises StoreError.

    `blocking`: whether its methods wait for a disk or a network, so that an event loop should not call them itself.
    Times are seconds since 1970 of the clock on the wall, not the session's.
    """

    blocking: bool

    def look(
        self, key: IdempotencyKey, arguments_digest: str, now: float
    ) -> Stored | Conflict | Running | Unknown | None:
        """Return what `begin` would find, without beginning; None when the key is free."""

    def begin(
        self,
        key: IdempotencyKey,
        arguments_digest: str,
        *,
        ttl: float | None,
        now: float,
        lasting: float = LASTING,
        approval: ApprovalUse | None = None,
    ) -> Begun:
        """Take the key if it is free, and say so; otherwise say what is known of it.

        Args:
            key: the key.
            arguments_digest: of the decided arguments.
            ttl: seconds for which a result is kept, from its finish on; None: for ever.
            now: the time.
            lasting: seconds that the tool may take with all its attempts; after them it counts as crashed.
            approval: what to use up in the same transaction.
        """

    def finish(self, token: str, execution: Execution, *, now: float, effects: bool = True) -> None:
        """Keep what the run came to, or free the key where it is known to have had no effect.

        Also after `lasting` is over: until then nobody else was let in.

        Args:
            token: of `Fresh`.
            execution: what came of it, as the tool returned it. See `pdp.execution.outcome` for what is kept.
            now: the time.
            effects: whether the tool can have any; without, a failure always frees the key.

        Raises:
            NotBegunError: nothing was begun with this token, or it is finished.
        """

    def settle(self, key: IdempotencyKey, execution: Execution | None, *, now: float) -> None:
        """Say, as a person who has found out, what came of a run that is unknown; None: it had no effect, free the key.

        Raises:
            NotBegunError: the key is free, finished, or its tool may still run.
        """

    def prune(self, now: float) -> int:
        """Forget the results whose time to live is over, and return how many. They count as gone before as well."""


class KeyState(StrEnum):
    """Where a key stands."""

    STARTED = "started"
    FINISHED = "finished"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is kept of a key. Times are in seconds since 1970; `outcome` is JSON, see `pdp.execution.outcome`."""

    names: str
    arguments_digest: str
    state: KeyState
    token: str
    started_at: float
    running_until: float
    ttl: float | None
    expires_at: float | None = None
    approval_id: str | None = None
    outcome: str | None = None

    def expired(self, now: float) -> bool:
        """Return whether its key is free again. Only what came to a known end ever is."""
        return self.state is KeyState.FINISHED and self.expires_at is not None and now >= self.expires_at

    def end_of_life(self, now: float) -> float | None:
        """Return until when a result is kept that there is at `now`; None: for ever."""
        return None if self.ttl is None else now + self.ttl

    def settleable(self, now: float) -> bool:
        """Return whether a person may say what came of it."""
        return self.state is KeyState.UNKNOWN or (self.state is KeyState.STARTED and now >= self.running_until)


def started(
    key: IdempotencyKey,
    arguments_digest: str,
    token: str,
    *,
    ttl: float | None,
    now: float,
    lasting: float,
    approval: ApprovalUse | None,
) -> KeyRecord:
    """Return the record of a key that is begun.

    Raises:
        UsageError: `now`, `ttl` or `lasting` is no time.
    """
    if not math.isfinite(now):
        raise UsageError(f"{now} is not a time", hint="give seconds since 1970")
    for name, seconds in (("ttl", ttl), ("lasting", lasting)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise UsageError(f"{name} of {seconds} is not a length of time", hint="give seconds, more than zero")
    return KeyRecord(
        names=canonical(list(key)).decode(),
        arguments_digest=arguments_digest,
        state=KeyState.STARTED,
        token=token,
        started_at=now,
        running_until=now + lasting,
        ttl=ttl,
        approval_id=None if approval is None else approval.id,
    )


def begin_waiting(
    begin: Callable[[], Begun],
    *,
    patience: float = PATIENCE,
    clock: Callable[[], float] = time.time,
) -> Generator[float, None, Begun]:
    """Begin, and while another call with the same key runs, ask again: at most `patience` seconds.

    A generator for a flow to `yield from`: it hands out how many seconds to wait before it goes on, and returns what
    was found last. `Running` after all means that the other call still ran.
    """
    end = clock() + patience
    wait = _FIRST_WAIT
    while True:
        begun = begin()
        left = end - clock()
        if not isinstance(begun, Running) or left <= 0:
            return begun
        yield min(wait, left)
        wait = min(2 * wait, _LONGEST_WAIT)
