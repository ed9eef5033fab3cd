"""What a rule of a pattern gets and gives: the call, what is known of it, the result; and the evidence in results.

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

SNAPSHOT: Final = "retrievalSnapshotId"  # the member of a span that names the retrieval snapshot


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What is known of a call that may run, beside its arguments: from session and decision, nothing from the model.

    Attributes:
        caller: issuer and subject as one text. What one caller has looked up is not given to another, and idempotency
            keys of two callers have nothing in common.
        resource: the request's resource, (type, id).
        now: seconds since 1970; time: the request's, by which approvals expire.
        markings: those that the result carries by the policy (obligation `mark_result`).
        approved: a person's approval let it through.
        inputs: canonical JSON of what the tool gets of config and state: with other inputs, another answer is right.
    """

    caller: str
    decision_id: str
    resource: tuple[str, str]
    now: float
    time: str
    idempotency_key: str | None = None
    markings: frozenset[str] = frozenset()
    clearances: frozenset[str] = frozenset()
    approved: bool = False
    inputs: bytes = b""


class PatternResult(NamedTuple):
    """An execution as its pattern leaves it: the result with what the pattern adds to it, or a failure.

    `pins` are the versions of the pinned sources that a conversion could use, by source.
    """

    execution: Execution
    markings: frozenset[str] = frozenset()
    retrieval_snapshot: str | None = None
    pins: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class PatternCall:
    """One call that is held to its pattern.

    Attributes:
        arguments: as decided; nobody changes them.
        approvals: where a task notes what it asks for; None: nobody can approve anything here.
        record_key: what a lookup is cached under: fixed before it runs, since its source may change meanwhile.
        staged: the action that this call has staged, now or before, while nobody has decided on it.
        task: what the task of an approval request carries.
    """

    entry: Tool
    arguments: dict[str, Any]
    run: Run
    facts: CallFacts
    actions: ActionStore
    approvals: Approvals | None = None
    record_key: Any = None
    staged: Action | None = None
    task: dict[str, Any] = field(default_factory=dict)


class PatternRule:
    """The rules of one pattern beside its shape, which is checked before. Without state.

    `names_snapshots`: its results name new snapshots, where those of others only refer to known ones.
    """

    names_snapshots: ClassVar[bool] = False

    def before(self, call: PatternCall) -> Execution | None:  # noqa: ARG002 - of others
        """Return the answer when there is one already, None when the tool has to run; ToolError: it must not run so."""
        return None

    def check(self, call: PatternCall, result: Any) -> None:
        """Raise ToolError where the pattern refuses a result by itself; also one that its schema does not admit."""

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:  # noqa: ARG002 - of others
        """Return the result with what the pattern adds; ToolError: it must not be delivered.

        `checked.execution.result` is a copy that may be changed.
        """
        return checked


def check_snapshots(value: Any, run: Run) -> None:
    """Refuse references to snapshots that this run has not retrieved from, however deep in `value` (plain JSON)."""
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


def refer_back(evidence: Any, run: Run) -> None:
    """Let spans of what this run has retrieved refer to the snapshot, in place; refuse one that ends before it starts.

    `evidence` is a span, or a list of them.
    """
    for span in evidence if isinstance(evidence, list) else [evidence]:
        start, end = span.get("start"), span.get("end")
        if start is not None and end is not None and end < start:
            raise PatternFault("evidence.span_reversed", f"a span ends at {end}, before its start at {start}")
        if SNAPSHOT not in span:
            snapshot = run.snapshot_of(span["source"]["id"])
            if snapshot is not None:
                span[SNAPSHOT] = snapshot
