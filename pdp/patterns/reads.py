"""Rules of the patterns that read: extraction, lookup, aggregation, search (tool pattern library, 1, 2, 8 and 10)."""

from typing import Any

import orjson

from pdp.patterns.exceptions import PatternFault
from pdp.patterns.rule import SNAPSHOT, PatternCall, PatternResult, PatternRule, add_snapshots
from pdp.proposal import Execution


class Extraction(PatternRule):
    """Rules for a tool that extracts a value, with its confidence and the span of the source that proves the value."""

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Check that the evidence is from the requested source."""
        result = checked.execution.result
        if result["evidence"]["source"]["id"] != call.arguments["source"]["id"]:
            raise PatternFault(
                "extraction.foreign_evidence", "the evidence comes from another source than the request names"
            )
        add_snapshots(result["evidence"], call.run)
        return checked


class Lookup(PatternRule):
    """Rules for a tool that reads a record. In each run, a record is read only once per version of its data source."""

    def before(self, call: PatternCall) -> Execution | None:
        """Return the record from the cache if this run has read the record before."""
        key = call.record_key = _record_key(call)
        text = None if key is None else call.run.record(key)
        return None if text is None else Execution(result=orjson.loads(text), started=False, replayed=True)

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Cache the record unless the result reports exceptions."""
        result = checked.execution.result
        if checked.execution.started and call.record_key is not None and not result.get("exceptions"):
            call.run.keep_record(call.record_key, orjson.dumps(result))
        return checked


def _record_key(call: PatternCall) -> Any:
    """Return the cache key of a record; None if its source's version is unknown, because caching needs a version."""
    source = call.arguments["source"]
    version = source.get("version") or call.run.source_version(source["id"])
    if version is None:
        return None
    # The key contains all arguments, because any of them may select another record.
    asked = orjson.dumps(call.arguments, option=orjson.OPT_SORT_KEYS)
    return (call.entry.id, call.entry.version, call.facts.caller, source["id"], version, asked, call.facts.inputs)


class Aggregation(PatternRule):
    """Rules for a tool that computes a metric over objects. The metric gets the markings of all these objects."""

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Add the markings of all objects to the metric. Reject a marking that the tool or subject must not have."""
        result = checked.execution.result
        union = checked.markings | set(result.get("markings", ()))
        for item in call.arguments["objects"]:
            union |= call.run.markings_of(item["type"], item["id"])
        for rule, covered, whose in (
            ("aggregation.marking_not_allowed", call.entry.markings or (), "the tool does not declare"),
            ("aggregation.marking_not_cleared", call.facts.clearances, "the subject is not cleared for"),
        ):
            if left := sorted(union.difference(covered)):
                raise PatternFault(rule, f"the objects in the result have markings that {whose}: {', '.join(left[:5])}")
        marked = {**result, "markings": sorted(union)}
        return checked._replace(execution=checked.execution._replace(result=marked), markings=union)


class Search(PatternRule):
    """Rules for a tool that returns ranked spans of a corpus and the snapshot of the corpus."""

    names_snapshots = True

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Check the number and order of the spans, add the snapshot to each span, and remember the snapshot."""
        result = checked.execution.result
        snapshot, spans = result[SNAPSHOT], result["spans"]
        if len(spans) > call.arguments["k"]:
            raise PatternFault(
                "search.too_many", f"{len(spans)} spans were returned, but at most {call.arguments['k']} were requested"
            )
        if any(span.setdefault(SNAPSHOT, snapshot) != snapshot for span in spans):
            raise PatternFault("search.mixed_snapshots", "a span refers to another snapshot than the result")
        if not _is_ranked(spans):
            raise PatternFault("search.not_ranked", "the spans are not sorted by descending score")
        add_snapshots(spans, call.run)
        call.run.keep_snapshot(snapshot, (span["source"]["id"] for span in spans))
        call.run.mark("corpus", call.arguments["corpus"]["id"], checked.markings)
        for span in spans:
            call.run.mark(span["source"].get("kind", "document"), span["source"]["id"], checked.markings)
        return checked._replace(retrieval_snapshot=snapshot)


def _is_ranked(spans: list[dict[str, Any]]) -> bool:
    scores = [span.get("score") for span in spans]
    numbers = [score for score in scores if isinstance(score, int | float) and not isinstance(score, bool)]
    # Scores of spans are optional, but if one span has a score, all must have one.
    if not numbers:
        return all(score is None for score in scores)
    return len(numbers) == len(scores) and numbers == sorted(numbers, reverse=True)
