"""Patterns that read: extraction, lookup, aggregation, search (tool pattern library, patterns 1, 2, 8 and 10)."""

from typing import Any

import orjson

from pdp.patterns.exceptions import PatternFault
from pdp.patterns.rule import SNAPSHOT, PatternCall, PatternResult, PatternRule, refer_back
from pdp.proposal import Execution


class Extraction(PatternRule):
    """A value, the span of its source that justifies it, and a confidence."""

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Demand evidence out of the source that was asked about."""
        result = checked.execution.result
        if result["evidence"]["source"]["id"] != call.arguments["source"]["id"]:
            raise PatternFault(
                "extraction.foreign_evidence", "the evidence is of another source than the one asked about"
            )
        refer_back(result["evidence"], call.run)
        return checked


class Lookup(PatternRule):
    """A record of a system of record: once per identifier and version of the source within a run."""

    def before(self, call: PatternCall) -> Execution | None:
        """Answer with what this run has looked up already."""
        key = call.record_key = _record_key(call)
        text = None if key is None else call.run.record(key)
        return None if text is None else Execution(result=orjson.loads(text), started=False, replayed=True)

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Keep a record that came without exceptions."""
        result = checked.execution.result
        if checked.execution.started and call.record_key is not None and not result.get("exceptions"):
            call.run.keep_record(call.record_key, orjson.dumps(result))
        return checked


def _record_key(call: PatternCall) -> Any:
    """Return what a record is cached under; None: the source's version is not known, and nothing is cached."""
    source = call.arguments["source"]
    version = source.get("version") or call.run.source_version(source["id"])
    if version is None:
        return None
    # Everything else that was asked for as well: it may be part of what tells records apart.
    asked = orjson.dumps(call.arguments, option=orjson.OPT_SORT_KEYS)
    return (call.entry.id, call.entry.version, call.facts.caller, source["id"], version, asked, call.facts.inputs)


class Aggregation(PatternRule):
    """A metric over objects; it carries the markings of all of them."""

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Mark the metric with the union.

        Of objects that nobody knows, the policy states the markings, as those of the call's resource.
        """
        result = checked.execution.result
        union = checked.markings | set(result.get("markings", ()))
        for item in call.arguments["objects"]:
            union |= call.run.markings_of(item["type"], item["id"])
        for rule, covered, whose in (
            ("aggregation.marking_not_allowed", call.entry.markings or (), "the tool does not declare"),
            ("aggregation.marking_not_cleared", call.facts.clearances, "the subject is not cleared for"),
        ):
            if left := sorted(union.difference(covered)):
                raise PatternFault(rule, f"its objects carry what {whose}: {', '.join(left[:5])}")
        marked = {**result, "markings": sorted(union)}
        return checked._replace(execution=checked.execution._replace(result=marked), markings=union)


class Search(PatternRule):
    """Ranked spans of a corpus, and the snapshot that they were retrieved from."""

    names_snapshots = True

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Let every span name the snapshot, and the run remember it."""
        result = checked.execution.result
        snapshot, spans = result[SNAPSHOT], result["spans"]
        if len(spans) > call.arguments["k"]:
            raise PatternFault(
                "search.too_many", f"{len(spans)} spans, and at most {call.arguments['k']} were asked for"
            )
        if any(span.setdefault(SNAPSHOT, snapshot) != snapshot for span in spans):
            raise PatternFault(
                "search.mixed_snapshots", "a span refers to another snapshot than the one retrieved from"
            )
        if not _is_ranked(spans):
            raise PatternFault("search.not_ranked", "the spans are not in the order of their scores, the best first")
        refer_back(spans, call.run)
        call.run.keep_snapshot(snapshot, (span["source"]["id"] for span in spans))
        call.run.mark("corpus", call.arguments["corpus"]["id"], checked.markings)
        for span in spans:
            call.run.mark(span["source"].get("kind", "document"), span["source"]["id"], checked.markings)
        return checked._replace(retrieval_snapshot=snapshot)


def _is_ranked(spans: list[dict[str, Any]]) -> bool:
    scores = [span.get("score") for span in spans]
    numbers = [score for score in scores if isinstance(score, int | float) and not isinstance(score, bool)]
    # A tool need not score spans. If it does, then every span.
    if not numbers:
        return all(score is None for score in scores)
    return len(numbers) == len(scores) and numbers == sorted(numbers, reverse=True)
