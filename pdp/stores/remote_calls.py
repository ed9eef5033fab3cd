"""Calls that remote enforcement points run: what is stored of one until its result is there.

    begun ──> ready ──> reported ──> finished
                └──> unknown ──> reported

A process that works on a call (`begun`, `reported`) holds it for a while; then another one goes on with it. Each step
replaces the record as it was read, so that of several that go on with a call one does.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple


class CallState(StrEnum):
    """Where a call stands. BEGUN: all is reserved; READY: it may be run; UNKNOWN: nobody said in time what came."""

    BEGUN = "begun"
    READY = "ready"
    REPORTED = "reported"
    FINISHED = "finished"
    UNKNOWN = "unknown"


OVERDUE: Final = (CallState.BEGUN, CallState.READY, CallState.REPORTED)
"""The states that end with `running_until`."""


class CallName(NamedTuple):
    """Which call is meant: its id, who began it (and alone finishes it), and a digest of what they asked for."""

    id: str
    owner: str
    request_digest: str = ""


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """What is stored of a call. Times are in seconds since 1970.

    Attributes:
        id, owner, request_digest: its name.
        running_until: when its tool cannot run any more; held_until: until when a process works on it.
        record: what finishing it needs, plain JSON; result_digest: of what was reported.
        answer: what it came to, plain JSON.
    """

    id: str
    owner: str
    request_digest: str
    state: CallState
    running_until: float
    held_until: float
    record: dict[str, Any]
    result_digest: str | None = None
    answer: dict[str, Any] | None = None
