"""Evidence: spans refer to the snapshot that they were retrieved from, and only to one of the same run.

Source: tool pattern library, pattern 10: downstream evidence spans back-reference the retrieval snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.patterns.exceptions import PatternFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdp.patterns.run import Run

SNAPSHOT: Final = "retrievalSnapshotId"


def check_snapshots(value: Any, run: Run) -> None:
    """Check every reference to a snapshot, however deep in `value` (plain JSON).

    Raises:
        PatternFault: `evidence.unknown_snapshot`: this run has not retrieved from it.
    """
    for part in _objects(value):
        snapshot = part.get(SNAPSHOT)
        if snapshot is not None and not (isinstance(snapshot, str) and run.knows_snapshot(snapshot)):
            raise PatternFault(
                "evidence.unknown_snapshot",
                f"evidence refers to snapshot {snapshot!r:.60}, which this run has not retrieved from",
            )


def refer_back(evidence: Any, run: Run) -> None:
    """Let spans of what this run has retrieved refer to the snapshot, in place. Spans that do already are left alone.

    Args:
        evidence: a span or a list of them.
        run: the run.

    Raises:
        PatternFault: `evidence.span_reversed`: a span ends before it starts.
    """
    for span in evidence if isinstance(evidence, list) else [evidence]:
        start, end = span.get("start"), span.get("end")
        if start is not None and end is not None and end < start:
            raise PatternFault("evidence.span_reversed", f"a span ends at {end}, before its start at {start}")
        if SNAPSHOT not in span:
            snapshot = run.snapshot_of(span["source"]["id"])
            if snapshot is not None:
                span[SNAPSHOT] = snapshot


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            yield one
            pending += one.values()
        elif isinstance(one, list):
            pending += one
