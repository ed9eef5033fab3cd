"""Records of calls whose tool runs at another enforcement point, until the results arrive.

    begun ──> ready ──> reported ──> finished
                └──> unknown ──> reported

A process that works on a call (`begun`, `reported`) owns it for a limited time, after which another process may
continue the call. Each step replaces the record only if the record is unchanged, so only one process succeeds.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple


class CallState(StrEnum):
    """The state of a remote call. BEGUN: reservations are made. READY: the tool may run. UNKNOWN: no result in time."""

    BEGUN = "begun"
    READY = "ready"
    REPORTED = "reported"
    FINISHED = "finished"
    UNKNOWN = "unknown"


OVERDUE: Final = (CallState.BEGUN, CallState.READY, CallState.REPORTED)
"""The states that end at `running_until`."""


class CallName(NamedTuple):
    """Identifies a remote call: its id, its owner (who began it and alone may finish it), and its request's digest."""

    id: str
    owner: str
    request_digest: str = ""


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """The stored record of a remote call. Times are seconds since 1970."""

    id: str
    owner: str
    request_digest: str
    state: CallState
    running_until: float  # The tool cannot run after this time.
    held_until: float  # A process works on the call until this time.
    record: dict[str, Any]  # Data for finishing the call, as plain JSON.
    result_digest: str | None = None
    answer: dict[str, Any] | None = None  # The answer to the caller, as plain JSON.
