"""Base class, inputs and outputs of the rules of a pattern, and checks of the evidence in results.

Source: tool pattern library, pattern 10: downstream evidence spans back-reference the retrieval snapshot.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple

from pdp.approvals.approvals import Approvals
from pdp.manifest.model import Tool
from pdp.patterns.exceptions import PatternFault
from pdp.patterns.run import Run
from pdp.proposal import Execution
from pdp.stores.actions import Action, ActionStore

SNAPSHOT: Final = "retrievalSnapshotId"  # The member of a span with the name of its retrieval snapshot.


@dataclass(frozen=True, slots=True)
class CallFacts:
    """Facts about an allowed call, from the session and the decision. The model cannot set any of these facts."""

    caller: str  # Issuer and subject as one text. Each caller has separate caches and keys.
    decision_id: str
    resource: tuple[str, str]  # Type and id of the request's resource.
    now: float  # Seconds since 1970.
    time: str  # The request's time, by which approvals expire.
    idempotency_key: str | None = None
    markings: frozenset[str] = frozenset()  # Markings of the result by the policy (obligation `mark_result`).
    clearances: frozenset[str] = frozenset()
    approved: bool = False  # Whether a person's approval allowed the call.
    inputs: bytes = b""  # Values from config and state as canonical JSON. A cached answer needs equal values.


class PatternResult(NamedTuple):
    """The outcome of a call after the checks of its pattern: the result with additions, or a failure."""

    execution: Execution
    markings: frozenset[str] = frozenset()
    retrieval_snapshot: str | None = None
    pins: Mapping[str, str] = MappingProxyType({})  # The versions of the pinned sources that a conversion could use.


@dataclass(slots=True)
class PatternCall:
    """A call to which the rules of its pattern apply."""

    entry: Tool
    arguments: dict[str, Any]  # The decided arguments. They must not be changed.
    run: Run
    facts: CallFacts
    actions: ActionStore
    approvals: Approvals | None = None  # Where an approval-request stores its task.
    record_key: Any = None  # Cache key of a lookup, fixed before the tool runs: the source may change meanwhile.
    staged: Action | None = None  # The staged action of the call, while no person has decided on it.
    task: dict[str, Any] = field(default_factory=dict)  # The fields of a request for approval, for that pattern.


class PatternRule:
    """Base class of the rules of a pattern, without the schemas of its arguments and result. Stateless."""

    names_snapshots: ClassVar[bool] = False  # Whether a result may contain a snapshot id that is new to the run.

    def before(self, call: PatternCall) -> Execution | None:  # noqa: ARG002 - subclasses use it
        """Return a known outcome, or None if the tool must run. Raise `ToolError` if the call must not run."""
        return None

    def check(self, call: PatternCall, result: Any) -> None:
        """Raise `ToolError` if the pattern rejects the result. The result may be one that the schema rejected."""

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:  # noqa: ARG002 - subclasses use it
        """Return a copy of the result with the pattern's additions. Raise `ToolError` to withhold the result."""
        return checked


def check_snapshots(value: Any, run: Run) -> None:
    """Raise `PatternFault` if a value refers, at any depth, to a snapshot that no search of this run returned."""
    pending = [value]
    while pending:
        part = pending.pop()
        if not isinstance(part, dict):
            pending += part if isinstance(part, list) else ()
            continue
        pending += part.values()
        snapshot = part.get(SNAPSHOT)
        if snapshot is not None and not (isinstance(snapshot, str) and run.knows_snapshot(snapshot)):
            raise PatternFault(
                "evidence.unknown_snapshot",
                f"evidence refers to snapshot {snapshot!r:.60}, which this run has not retrieved from",
            )


def add_snapshots(evidence: Any, run: Run) -> None:
    """Add to each evidence span the snapshot in which its source was found. Raise `PatternFault` if end < start."""
    for span in evidence if isinstance(evidence, list) else [evidence]:
        start, end = span.get("start"), span.get("end")
        if start is not None and end is not None and end < start:
            raise PatternFault("evidence.span_reversed", f"a span ends at {end}, before its start at {start}")
        if SNAPSHOT not in span:
            snapshot = run.snapshot_of(span["source"]["id"])
            if snapshot is not None:
                span[SNAPSHOT] = snapshot
