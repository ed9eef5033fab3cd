"""Requests near a request: one change, then two at once, in the same order in every run.

What a changed rule reads comes first, and within each attribute the values that are likeliest to show a difference. A
dimension is what a change is about: an attribute, the approval, the agents. Two changes are never of one dimension.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice, product, zip_longest
from typing import Any, Final

from pdp.workbench.neighbours.conditions import FOREIGN
from pdp.workbench.neighbours.runs import FLOW, Read, run_changes
from pdp.workbench.neighbours.values import GONE, Edit, JsonPath, as_dict, at, edited, is_number, leaves, paths, texts
from pdp.workbench.neighbours.vocabulary import Attribute, Vocabulary

_ARGUMENTS: Final = ("context", "arguments")
_DIGEST: Final = ("action", "properties", "manifest_digest")
_MARKINGS: Final = ("resource", "properties", "markings")
_PROPERTIES: Final = ("subject", "properties")
_CLEARANCES: Final = (*_PROPERTIES, "clearances")
_LIMITS: Final = (*_PROPERTIES, "limits")
_ACT: Final = (*_PROPERTIES, "act")
_ISSUER: Final = (*_PROPERTIES, "iss")
_APPROVAL: Final = ("context", "approval")
_KEYED: Final = (("action",), ("action", "properties"), ("subject",), ("resource",), ("context",))
"""Objects of which every key is an attribute."""

_STRINGS: Final = 16
_NUMBERS: Final = 12
_ELEMENTS: Final = 8
_PAIRED: Final = 5
_PAIRED_CHANGED: Final = 24
_STEP: Final = 0.001
"""Finer than a cent: a tolerance of less would not matter."""

_LARGEST: Final = 2**53 - 1
_ONE: Final = "https://one.example"
_OTHER: Final = "https://other.example"
_SOMEBODY: Final = "somebody-else"
_AGES: Final = (-0.5, 0, 59, 60, 61, 3599, 3600, 3601, 86400)
_HELD: Final = ("scopes", "clearances", "limits", "entitlements", "purposes")
_LONGEST: Final = 5

_Edits = tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a request.

    Attributes:
        dimension: what it is about, such as `context.purpose`.
        place: its position in its dimension: the likeliest to show something are first.
        rank: 0 if a rule reads this that only one of two policies has; see `Attribute`.
        paired: whether it is tried together with others.
        new: whether the value is a constant that only one of two policies has.
    """

    dimension: str
    edits: tuple[Edit, ...]
    place: int
    rank: int = 2
    paired: bool = False
    new: bool = False


def changes(
    request: Any, vocabulary: Vocabulary, directory: Mapping[str, Any] | None = None, reads: Sequence[Read] = ()
) -> list[Change]:
    """Return single changes: of each dimension in turn, those of rank 0 before all others.

    Best of a request that is ALLOW: in what is denied anyway, little shows. `directory`: corpora, documents and
    entitlements, to be the resource of a call. `reads`: fields of results, labelled otherwise, of which its arguments
    may be.
    """
    dimensions: dict[int, list[list[Change]]] = {0: [], 1: [], 2: []}
    for path in _paths(request, vocabulary):
        current, attribute = at(request, path), vocabulary.attribute(path)
        changed = [
            Change(
                dotted(path),
                _with_consequences(request, path, value),
                place,
                attribute.rank,
                place < (_PAIRED_CHANGED if attribute.rank == 0 else _PAIRED),
                _is_new(value, vocabulary),
            )
            for place, value in enumerate(_distinct(_values(request, current, path, attribute, vocabulary), current))
        ]
        dimensions[attribute.rank].append(changed)
    near = 1 if vocabulary.near else 2
    for name, rank, tried in (
        ("approval", near, _approval_changes(request)),
        ("agents", near, _agent_changes(request)),
        ("resource", near, _resources(directory or {})),
        ("run", 0 if reads else near, run_changes(request, reads)),
    ):
        dimensions[rank].append(
            [Change(name, edits, place, rank, place < _PAIRED) for place, edits in enumerate(tried)]
        )
    dimensions[2].append([*_equal(request)])
    return [
        change for rank in (0, 1, 2) for turn in zip_longest(*dimensions[rank]) for change in turn if change is not None
    ]


def pairs(singles: Sequence[Change]) -> Iterator[tuple[Change, Change]]:
    """Yield pairs of changes that are not about the same.

    First of new constants in what a rule reads that only one policy has, with all else; then of what else is new or
    what else such a rule reads, then all others.
    """
    kinds: tuple[list[Change], ...] = ([], [], [])
    for change in singles:
        if change.paired:
            kinds[2 - (change.rank == 0) - change.new].append(change)
    new, first, rest = kinds
    for every in (
        combinations(new, 2),
        product(new, (*first, *rest)),
        combinations(first, 2),
        product(first, rest),
        combinations(rest, 2),
    ):
        ordered = sorted(every, key=lambda pair: pair[0].place + pair[1].place)
        yield from (pair for pair in ordered if _apart(*pair))


def _apart(change: Change, other: Change) -> bool:
    """Whether two changes are about different things, and neither undoes the other."""
    return change.dimension != other.dimension and not any(
        path[: len(below)] == below or below[: len(path)] == path
        for path, _ in change.edits
        for below, _ in other.edits
    )


def _paths(request: Any, vocabulary: Vocabulary) -> Iterator[JsonPath]:
    """What rules name of a request, and then what else it has; what a run has seen is changed as a whole."""
    seen: set[JsonPath] = {_DIGEST, *_KEYED}
    others = (path for path in paths(request) if path[:2] != FLOW)
    for path in (*vocabulary.paths, *others):
        if path not in seen and path[0] in as_dict(request) and len(path) > 1:
            seen.add(path)
            yield path


def _distinct(values: Iterable[Any], current: Any) -> Iterator[Any]:
    seen = [current]
    for value in values:
        if not any(type(value) is type(former) and value == former for former in seen):
            seen.append(value)
            yield value


def _values(request: Any, current: Any, path: JsonPath, attribute: Attribute, words: Vocabulary) -> Iterator[Any]:
    """What to try in place of a value, the likeliest to matter first."""
    fresh = [text for text in attribute.strings if text in words.new]
    strings = list(dict.fromkeys((*fresh, *attribute.strings, *words.strings)))[: max(_STRINGS, len(fresh))]
    numbers = list(dict.fromkeys((*attribute.numbers[:_NUMBERS], *_limits(request), *words.numbers[:_NUMBERS])))
    new = [number for number in numbers if number in words.new]
    if isinstance(current, bool):
        yield from (not current, GONE, None, str(current).lower(), 0)
    elif is_number(current):
        yield from _beside(new)
        yield from (GONE, -_STEP)
        yield from _beside((*(number for number in numbers if number not in new), current))
        yield from (str(current), None, [current], True)
    elif isinstance(current, str):
        yield from strings[: max(len(fresh), 2)]
        yield GONE
        yield from _near_texts(current)
        yield from chain.from_iterable(map(_near_texts, fresh))
        yield from (FOREIGN, "", None, 7)
        yield from _others(request, current)
        yield from strings
        yield from _beside(new)
        yield from ([current], True)
    elif isinstance(current, list):
        yield from _lists(current, fresh, strings)
    elif isinstance(current, dict):
        yield from (GONE, {}, None, "a text", [])
        if path == _LIMITS:
            yield from (dict.fromkeys(current, 0), dict.fromkeys(current, 10**12))
        yield from ({**current, word: value} for word in strings for value in (0, True) if word not in current)
    else:
        yield from strings[: max(len(fresh), 3)]
        yield from _beside(new)
        yield from ([word] for word in fresh)
        yield from _others(request, current)
        yield from (GONE, None, FOREIGN, True, False, 0)
        yield from strings
        yield from _beside(numbers)
        yield from ([word] for word in strings)
        yield from ("", [], {}, 7)


def _is_new(value: Any, words: Vocabulary) -> bool:
    """Whether a value is a new constant; of a list, its last element."""
    value = value[-1] if isinstance(value, list) and value else value
    return (isinstance(value, str) or is_number(value)) and value in words.new


def _lists(current: list[Any], fresh: Sequence[str], strings: Sequence[str]) -> Iterator[Any]:
    """One element more, less, twice, or of another type, or beside what it is."""
    yield from ([*current, word] for word in fresh)
    yield []
    yield from (current[:index] + current[index + 1 :] for index in range(min(len(current), _ELEMENTS)))
    yield from ([*current, FOREIGN], GONE, None, "a text", {}, [*current, 7], [*current, " "], current + current[:1])
    for index, element in enumerate(current[:_ELEMENTS]):
        if isinstance(element, str):
            yield from ([*current[:index], other, *current[index + 1 :]] for other in _near_texts(element))
    yield from ([*current, word] for word in strings if word not in current)
    yield from ([word] for word in strings)
    yield from ([[{"id": [""]}]], 0, False)


def _near_texts(text: str) -> Iterator[str]:
    """What is taken for a text where only its begin, a part, its letters or its words are compared."""
    if text:
        yield from (f"{text}x", f"x{text}", f"x{text}x", text.swapcase(), f"{text} ", f" {text}", text[:-1])
    head, dot, tail = text.rpartition(".")
    if dot and tail.isdigit():
        yield f"{head}.{int(tail) + 1}"


def _beside(numbers: Iterable[float]) -> Iterator[float]:
    """Each number, what is just above and below, and what is a step of it away."""
    for number in numbers:
        for by in (0, _STEP, -_STEP, 1, -1, 0.5):
            value = round(number + by, 6)
            if abs(value) <= _LARGEST:
                yield int(value) if value == int(value) else value


def _limits(request: Any) -> list[float]:
    return [limit for limit in leaves(as_dict(at(request, _LIMITS))) if is_number(limit)]


def _others(request: Any, current: Any) -> Iterator[str]:
    """The texts of other attributes: two may have to be the same, or must not be."""
    values = chain(as_dict(at(request, _ARGUMENTS)).values(), (at(request, path) for path in paths(request)))
    yield from islice((text for text in dict.fromkeys(filter(_is_text, values)) if text != current), _ELEMENTS)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and not value.startswith("sha256:")


def _equal(request: Any) -> Iterator[Change]:
    """Attributes that have the same text, changed together so that they stay equal."""
    same: dict[str, list[JsonPath]] = {}
    for path in paths(request):
        value = at(request, path)
        if isinstance(value, str) and value and path != _DIGEST:
            same.setdefault(value, []).append(path)
    for every in same.values():
        for some in dict.fromkeys((*combinations(every, 2), tuple(every))) if len(every) > 1 else ():
            for place, value in enumerate((GONE, None, "", FOREIGN, [], {}, 0, 7, True, False, [7])):
                yield Change(" = ".join(map(dotted, some)), tuple((path, value) for path in some), place)


def _approval_changes(request: Any) -> Iterator[_Edits]:
    """Yield changes of the approval that a request has: by others or by too few, or too old."""
    approval = at(request, _APPROVAL)
    if not isinstance(approval, dict) or not isinstance(approval.get("grants"), list):
        return
    grants = [grant for grant in approval["grants"] if isinstance(grant, dict)]
    yield ((_APPROVAL, None),)
    for people in _people(request, grants):
        yield ((_APPROVAL, {**approval, "grants": people}),)
    for age in _AGES:
        yield ((_APPROVAL, {**approval, "age_seconds": age}),)
    subject = at(request, ("subject", "id"))
    if grants and isinstance(subject, str):
        # A namesake of the subject at another issuer.
        named = {**approval, "grants": [{**grants[0], "sub": subject, "iss": _OTHER}, *grants[1:]]}
        yield (_APPROVAL, named), (_ISSUER, _ONE)


def _people(request: Any, grants: list[Any]) -> Iterator[list[Any]]:
    """Grants that count for nobody, or for one person twice: people are told apart by issuer and name."""
    people = (("subject", "id"), ("context", "agent"), (*_ACT, "sub"))
    names = [name for name in (*(at(request, path) for path in people), _SOMEBODY) if isinstance(name, str)]
    for index, grant in enumerate(grants):
        before, after = grants[:index], grants[index + 1 :]
        yield [*before, *after]
        for name, issuer in product(names, (GONE, None, "", 7, _ONE, _OTHER)):
            yield [*before, edited(grant, (("iss",), issuer), (("sub",), name)), *after]
    if len(grants) > 1:
        yield [grants[0]] * len(grants)
        yield [{**grant, "iss": _ONE} for grant in grants]
    yield [*grants, {**(grants[0] if grants else {}), "sub": _SOMEBODY}]


def _agent_changes(request: Any) -> Iterator[_Edits]:
    """Yield chains of one to five agents that hold what the subject holds, and what one of them lacks."""
    if not isinstance(at(request, _PROPERTIES), dict):
        return
    agent = _acting_agent(request)
    name, held = agent["sub"], {key: value for key, value in agent.items() if key != "sub"}
    chain: Any = None
    for depth in range(1, _LONGEST + 1):
        chain = {"sub": name if depth == 1 else f"agent:{depth}", **held, **({} if chain is None else {"act": chain})}
        yield ((_ACT, chain),)
        deepest = ("act",) * (depth - 1)
        for right in _HELD:
            for value in ([], *_near_held(held.get(right)), {}, None, GONE):
                for whose in dict.fromkeys((deepest, ())):
                    yield ((_ACT, edited(chain, ((*whose, right), value))),)
    yield ((_ACT, {"sub": "", **held}),)


def _acting_agent(request: Any) -> dict[str, Any]:
    """Return an agent that acts for the subject and holds what the subject holds."""
    properties, purpose = as_dict(at(request, _PROPERTIES)), at(request, ("context", "purpose"))
    agent = at(request, ("context", "agent"))
    held: dict[str, Any] = {name: properties[name] for name in _HELD if name in properties}
    purposes = {"purposes": [purpose]} if isinstance(purpose, str) else {}
    return {"sub": agent if isinstance(agent, str) else "agent:acting", **held, **purposes}


def _near_held(value: Any) -> Iterator[Any]:
    """What an agent nearly holds: a longer name, another case, a limit of 1."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        yield from ([other, *value[1:]] for other in (f"{value[0]}x", value[0].swapcase(), value[0][:-1]))
    elif isinstance(value, dict) and value:
        yield dict.fromkeys(value, 1)


def _resources(directory: Mapping[str, Any]) -> Iterator[_Edits]:
    """Every corpus and document of the directory as the resource, and one of each kind that is not in it."""
    for kind, root in (("corpus", "corpora"), ("document", "documents")):
        for name in (*islice(as_dict(directory.get(root)), _ELEMENTS), f"{kind}.nowhere"):
            yield ((("resource",), {"type": kind, "id": name, "properties": {}}),)
    for subject in islice(as_dict(directory.get("entitlements")), _ELEMENTS):
        yield (("subject", "id"), subject), ((*_PROPERTIES, "entitlements"), {})


def _with_consequences(request: Any, path: JsonPath, value: Any) -> tuple[Edit, ...]:
    """A change with what goes with it, so that nothing else denies it: clearances for markings, an agent's rights."""
    if path[: len(_ACT)] == _ACT and len(path) > len(_ACT) and at(request, _ACT) is GONE:
        return (_ACT, _acting_agent(request)), (path, value)
    if path == _MARKINGS and isinstance(value, list):
        held = texts(at(request, _CLEARANCES))
        return (path, value), (_CLEARANCES, [*held, *(marking for marking in texts(value) if marking not in held)])
    return ((path, value),)


def dotted(path: JsonPath) -> str:
    """Return the name of an attribute."""
    return ".".join(map(str, path))
