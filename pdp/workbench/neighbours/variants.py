"""Generate requests that differ from a request in one change, or in two changes, in a fixed order.

Attributes that a changed rule reads come first, and for each attribute the values most likely to show a difference.
The dimension of a change is what it changes: an attribute, the approval, the agents, the resource or the data flow.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice, product, zip_longest
from typing import Any, Final

from pdp.json import MAX_NUMBER
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
_GRANT: Final = ("context", "grant")
_CODES: Final = ("approvals.required", "limits.exceeded", "limits.cumulative_exceeded")
_KEYED: Final = (("action",), ("action", "properties"), ("subject",), ("resource",), ("context",))
"""Objects in a request; each of their keys is an attribute."""

_STRINGS: Final = 16
_NUMBERS: Final = 12
_ELEMENTS: Final = 8
_PAIRED: Final = 5
_PAIRED_CHANGED: Final = 24
_STEP: Final = 0.001
"""A tolerance smaller than a cent, below which differences of amounts do not matter."""

_ONE: Final = "https://one.example"
_OTHER: Final = "https://other.example"
_SOMEBODY: Final = "somebody-else"
_AGES: Final = (-0.5, 0, 59, 60, 61, 3599, 3600, 3601, 86400)
_HELD: Final = ("scopes", "clearances", "limits", "entitlements", "purposes")
_LONGEST: Final = 5

_Edits = tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a request. `dimension` names what is changed, such as the attribute `context.purpose`.

    `place` is the position in the dimension, where likely differences are first. `rank` is the rank of the `Attribute`.
    A `paired` change is combined with other changes. If `new`, the value is a constant of only one of two policies.
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
    """Return single changes of a request, one of each dimension in turn, sorted by the `rank` of the attribute.

    `directory` has the corpora, documents and entitlements to use as resources. `reads` are result fields whose labels
    differ between two manifests, to use as sources of arguments.
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
            for place, value in enumerate(_distinct(current, _values(request, current, path, attribute, vocabulary)))
        ]
        dimensions[attribute.rank].append(changed)
    near = 1 if vocabulary.near else 2
    for name, rank, tried in (
        ("approval", near, _approval_changes(request)),
        ("grant", near, _grant_changes(request)),
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
    """Yield pairs of changes with different dimensions.

    Pairs of new constants in attributes of changed rules come first, then pairs with one such constant or attribute.
    """
    kinds: tuple[list[Change], ...] = ([], [], [])
    for change in singles:
        if change.paired:
            kinds[2 - (change.rank == 0) - change.new].append(change)
    new, first, rest = kinds
    for some, others in ((new, None), (new, (*first, *rest)), (first, None), (first, rest), (rest, None)):
        yield from (pair for pair in _by_place(some, others) if _apart(*pair))


def _by_place(some: Sequence[Change], others: Sequence[Change] | None) -> Iterator[tuple[Change, Change]]:
    """Yield pairs of `some` and `others`, or of `some` if `others` is None, with a low sum of places first.

    The pairs are not sorted, because there are many and a caller uses only the first of them.
    """
    seconds = some if others is None else others
    at_place: dict[int, list[int]] = {}
    for index, change in enumerate(seconds):
        at_place.setdefault(change.place, []).append(index)
    most = max((change.place for change in some), default=0) + max(at_place, default=0)
    for total in range(most + 1):
        for number, change in enumerate(some):
            indices = at_place.get(total - change.place, [])
            first = 0 if others is not None else bisect_right(indices, number)
            yield from ((change, seconds[index]) for index in indices[first:])


def _apart(change: Change, other: Change) -> bool:
    """Return whether two changes have different dimensions, and neither overwrites a value of the other."""
    return change.dimension != other.dimension and not any(
        path[: len(below)] == below or below[: len(path)] == path
        for path, _ in change.edits
        for below, _ in other.edits
    )


def _paths(request: Any, vocabulary: Vocabulary) -> Iterator[JsonPath]:
    """Yield the attributes that rules name, then all other attributes of the request, except those in its data flow."""
    seen: set[JsonPath] = {_DIGEST, *_KEYED}
    others = (path for path in paths(request) if path[:2] != FLOW)
    for path in (*vocabulary.paths, *others):
        if path not in seen and path[0] in as_dict(request) and len(path) > 1:
            seen.add(path)
            yield path


def _distinct(current: Any, values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values that differ from `current` and from each other. Values of different types differ."""
    scalars: set[tuple[type, Any]] = set()
    others: list[Any] = []
    for index, value in enumerate(chain((current,), values)):
        if isinstance(value, str | int | float):
            if (type(value), value) in scalars:
                continue
            scalars.add((type(value), value))
        else:
            if any(type(value) is type(former) and value == former for former in others):
                continue
            others.append(value)
        if index:
            yield value


def _values(request: Any, current: Any, path: JsonPath, attribute: Attribute, words: Vocabulary) -> Iterator[Any]:
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
    """Return whether a value, or the last element of a list, is a constant that only one of two policies has."""
    value = value[-1] if isinstance(value, list) and value else value
    return (isinstance(value, str) or is_number(value)) and value in words.new


def _lists(current: list[Any], fresh: Sequence[str], strings: Sequence[str]) -> Iterator[Any]:
    """Yield variants of a list with an element added, removed, repeated or replaced, then values of other types."""
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
    """Yield texts that equal `text` if a policy compares only a prefix or a part, or ignores case or spaces."""
    if text:
        yield from (f"{text}x", f"x{text}", f"x{text}x", text.swapcase(), f"{text} ", f" {text}", text[:-1])
    head, dot, tail = text.rpartition(".")
    if dot and tail.isdigit():
        yield f"{head}.{int(tail) + 1}"


def _beside(numbers: Iterable[float]) -> Iterator[float]:
    """Yield each number, numbers just below and above it, and numbers that differ from it by 1 or 0.5."""
    for number in numbers:
        for by in (0, _STEP, -_STEP, 1, -1, 0.5):
            value = round(number + by, 6)
            if abs(value) <= MAX_NUMBER:
                yield int(value) if value == int(value) else value


def _limits(request: Any) -> list[float]:
    return [limit for limit in leaves(as_dict(at(request, _LIMITS))) if is_number(limit)]


def _others(request: Any, current: Any) -> Iterator[str]:
    values = chain(as_dict(at(request, _ARGUMENTS)).values(), (at(request, path) for path in paths(request)))
    yield from islice((text for text in dict.fromkeys(filter(_is_text, values)) if text != current), _ELEMENTS)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and not value.startswith("sha256:")


def _equal(request: Any) -> Iterator[Change]:
    """Yield changes that give all attributes with the same text the same new value, so that all stay equal."""
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
    """Yield changes of a request's approval: other approvers, too few approvers, or another age."""
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
        # The approver has the same `sub` as the subject, but another issuer.
        named = {**approval, "grants": [{**grants[0], "sub": subject, "iss": _OTHER}, *grants[1:]]}
        yield (_APPROVAL, named), (_ISSUER, _ONE)


def _grant_changes(request: Any) -> Iterator[_Edits]:
    """Yield requests with a lasting grant in place of the approval: a valid grant, and grants that must not count."""
    approval, tool = at(request, _APPROVAL), at(request, ("action", "properties", "tool"))
    if not isinstance(approval, dict) or not isinstance(approval.get("grants"), list):
        return
    run_id, arguments = at(request, ("context", "run_id")), as_dict(at(request, _ARGUMENTS))
    run_id = run_id if isinstance(run_id, str) else None
    most = {name: value for name, value in arguments.items() if is_number(value)}
    grant = {
        "id": "made-grant", "reach": "until", "tool": tool, "run_id": run_id, "codes": [*_CODES], "most": most,
        "age_seconds": 0, "uses_left": 1, "grants": approval["grants"],
    }  # fmt: skip
    others: list[dict[str, Any]] = [{}, {"reach": "run"}, {"reach": "run", "run_id": _SOMEBODY}, {"tool": _SOMEBODY}]
    others += [{"codes": [code]} for code in _CODES]
    others += [{"most": {}}, {"most": dict.fromkeys(most, 0)}, {"uses_left": 0}, {"uses_left": MAX_NUMBER}]
    others += [{"age_seconds": age} for age in _AGES]
    others += [{"grants": people} for people in islice(_people(request, approval["grants"]), 2)]
    for other in others:
        yield (_APPROVAL, None), (_GRANT, {**grant, **other})


def _people(request: Any, grants: list[Any]) -> Iterator[list[Any]]:
    """Yield lists of grants that must not count: of the wrong person, or of one person (issuer and name) twice."""
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
    """Yield chains of one to five agents with the subject's rights, and chains in which one agent lacks a right."""
    if not isinstance(at(request, _PROPERTIES), dict):
        return
    agent = _acting_agent(request)
    name, permissions = agent["sub"], {key: value for key, value in agent.items() if key != "sub"}
    chain: Any = None
    for depth in range(1, _LONGEST + 1):
        chain = {
            "sub": name if depth == 1 else f"agent:{depth}",
            **permissions,
            **({} if chain is None else {"act": chain}),
        }
        yield ((_ACT, chain),)
        deepest = ("act",) * (depth - 1)
        for right in _HELD:
            for value in ([], *_near_held(permissions.get(right)), {}, None, GONE):
                for whose in dict.fromkeys((deepest, ())):
                    yield ((_ACT, edited(chain, ((*whose, right), value))),)
    yield ((_ACT, {"sub": "", **permissions}),)


def _acting_agent(request: Any) -> dict[str, Any]:
    properties, purpose = as_dict(at(request, _PROPERTIES)), at(request, ("context", "purpose"))
    agent = at(request, ("context", "agent"))
    permissions: dict[str, Any] = {name: properties[name] for name in _HELD if name in properties}
    purposes = {"purposes": [purpose]} if isinstance(purpose, str) else {}
    return {"sub": agent if isinstance(agent, str) else "agent:acting", **permissions, **purposes}


def _near_held(value: Any) -> Iterator[Any]:
    """Yield rights that nearly equal `value`: a longer, shorter or differently cased name, or a limit of 1."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        yield from ([other, *value[1:]] for other in (f"{value[0]}x", value[0].swapcase(), value[0][:-1]))
    elif isinstance(value, dict) and value:
        yield dict.fromkeys(value, 1)


def _resources(directory: Mapping[str, Any]) -> Iterator[_Edits]:
    """Yield changes of the resource to each corpus and document of the directory, and to unknown ones."""
    for kind, root in (("corpus", "corpora"), ("document", "documents")):
        for name in (*islice(as_dict(directory.get(root)), _ELEMENTS), f"{kind}.nowhere"):
            yield ((("resource",), {"type": kind, "id": name, "properties": {}}),)
    for subject in islice(as_dict(directory.get("entitlements")), _ELEMENTS):
        yield (("subject", "id"), subject), ((*_PROPERTIES, "entitlements"), {})


def _with_consequences(request: Any, path: JsonPath, value: Any) -> tuple[Edit, ...]:
    """Return a change with the changes that it needs: clearances for markings, or an agent for an agent's rights."""
    if path[: len(_ACT)] == _ACT and len(path) > len(_ACT) and at(request, _ACT) is GONE:
        return (_ACT, _acting_agent(request)), (path, value)
    if path == _MARKINGS and isinstance(value, list):
        clearances = texts(at(request, _CLEARANCES))
        return (path, value), (
            _CLEARANCES,
            [*clearances, *(marking for marking in texts(value) if marking not in clearances)],
        )
    return ((path, value),)


def dotted(path: JsonPath) -> str:
    """Return the path of an attribute as a name with dots."""
    return ".".join(map(str, path))
