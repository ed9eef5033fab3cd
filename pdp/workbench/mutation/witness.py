"""The search for a request on which an original and its mutant differ, in what an expectation can name."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.decision import parse_decision
from pdp.errors import AnswerInvalidError
from pdp.json import JsonValueError, canonical, digest
from pdp.workbench.mutation.entry_variants import variants
from pdp.workbench.mutation.perturbing import at, changed, changes, pairs, together
from pdp.workbench.mutation.recorded import tool_of
from pdp.workbench.mutation.telling import outcome_of, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pdp.workbench.mutation.telling import Outcome
    from pdp.workbench.mutation.vocabulary import Vocabulary

DIGEST: Final = ("action", "properties", "manifest_digest")
"""Where a request names its manifest."""

_BASES: Final = 16
_EQUALS: Final = 6
_SINGLES: Final = 2400
_PAIRS: Final = 480
_BATCH: Final = 700
_VARIANT_BASES: Final = 6


@dataclass(frozen=True, slots=True)
class Witness:
    """A request that shows the difference: what to expect of it, and what must be changed to ask it, if anything."""

    body: Any
    expect: dict[str, Any]
    entry: str | None = None


@dataclass(frozen=True, slots=True)
class Searched:
    """What was tried in vain."""

    requests: int
    entries: int

    def __str__(self) -> str:
        return (
            f"no difference in {self.requests} requests near the recorded ones (attributes missing, null, empty, "
            f"mistyped, exchanged, numbers at their boundaries, one or two at once) and {self.entries} changed entries"
        )


def outcome(answer: bytes | None) -> Outcome:
    """Return what an expectation can name of an answer; None stands for an evaluation that failed."""
    if answer is None:
        return _refused(AnswerInvalidError.code)
    try:
        return outcome_of(parse_decision(answer))
    except AnswerInvalidError as error:
        return _refused(error.code)


def _refused(code: str) -> Outcome:
    return {"verdict": "DENY", "codes": [code], "obligations": [], "reasons": [[code, "", {}]]}


def search(
    bodies: Sequence[bytes],
    words: Vocabulary,
    ask: Callable[[Sequence[bytes]], list[tuple[Outcome, Outcome]]],
    *,
    seed: int,
) -> Witness | Searched:
    """Search near the recorded requests, the nearest first, for one on which two policies differ.

    Args:
        bodies: recorded requests of all sorts, those first that the mutant is likely to matter for.
        words: what to try.
        ask: decides requests, by the original and by the mutant.
        seed: of the order in which pairs of changes are tried.
    """
    asked = 0
    seen: set[bytes] = set()
    candidates = _near(bodies, words, seed)
    while batch := list(islice(_fresh(candidates, seen), _BATCH)):
        asked += len(batch)
        found = _smallest(batch, ask(batch))
        if found is not None:
            return found
    return Searched(asked, 0)


def search_entries(
    bodies: Sequence[bytes],
    manifests: Mapping[str, Any],
    ask: Callable[[Sequence[bytes], dict[str, Any]], list[tuple[Outcome, Outcome]]],
) -> Witness | int:
    """Search among changed entries of the manifest, and return how many were tried in vain.

    Args:
        bodies: as of `search`.
        manifests: the document of each effective manifest by its digest.
        ask: decides requests with more manifests, by the original and by the mutant.
    """
    documents: dict[str, Any] = {}
    asked: dict[bytes, str] = {}
    for body in bodies[:_VARIANT_BASES]:
        value = orjson.loads(body)
        tool, named = tool_of(value), at(value, DIGEST)
        document = manifests.get(named) if isinstance(named, str) else None
        if document is None or tool not in document["tools"]:
            continue
        for said, entry in variants(document["tools"][tool]):
            other = {**document, "tools": {tool: entry}}
            name = digest(canonical(other))
            documents[name] = other
            asked[canonical(changed(value, (DIGEST, name)))] = f"{tool}: {said}"
    if not asked:
        return 0
    found = _smallest(list(asked), ask(list(asked), documents))
    if found is None:
        return len(asked)
    return Witness(found.body, found.expect, asked[canonical(found.body)])


def _smallest(batch: Sequence[bytes], outcomes: Sequence[tuple[Outcome, Outcome]]) -> Witness | None:
    differing = [
        (len(body), body, expect)
        for body, (one, other) in zip(batch, outcomes, strict=True)
        if one != other and (expect := told(one, other)) is not None
    ]
    if not differing:
        return None
    # A code that differs says more than what is said beside it.
    _, body, expect = min(differing, key=lambda each: ("obligations" not in each[2], *each[:2]))
    return Witness(orjson.loads(body), expect)


def _near(bodies: Sequence[bytes], words: Vocabulary, seed: int) -> Iterator[bytes]:
    yield from bodies
    bases = [orjson.loads(body) for body in bodies[:_BASES]]
    bases = [base for base in bases if isinstance(base, dict)]
    for base in bases[:_EQUALS]:
        for several in together(base):
            yield from _bytes(changed(base, *several))
    singles = [list(changes(base, words)) for base in bases]
    # Of each base in turn, so that none of them takes the whole search.
    turns = (
        (base, own[turn])
        for turn in range(max(map(len, singles), default=0))
        for base, own in zip(bases, singles, strict=True)
        if turn < len(own)
    )
    for base, single in islice(turns, _SINGLES):
        yield from _bytes(changed(base, single))
    for base, own in zip(bases, singles, strict=True):
        for one, other in islice(pairs(own, seed), _PAIRS // len(bases)):
            yield from _bytes(changed(base, one, other))


def _fresh(candidates: Iterator[bytes], seen: set[bytes]) -> Iterator[bytes]:
    for body in candidates:
        if body not in seen:
            seen.add(body)
            yield body


def _bytes(value: Any) -> Iterator[bytes]:
    try:
        yield canonical(value)
    except JsonValueError:
        return
