"""In what a call may depart from one that has all it needs: an axis for each matter, with the values on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.diff.grid.bases import LIMIT, texts, valid_approval
from pdp.workbench.diff.grid.departures import axis_of, dotted
from pdp.workbench.diff.grid.perturbing import GONE
from pdp.workbench.diff.grid.probes import CORPUS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdp.workbench.diff.grid.bases import Entry
    from pdp.workbench.diff.grid.constants import Constants
    from pdp.workbench.diff.grid.departures import Axis, Worded
    from pdp.workbench.diff.grid.perturbing import Change

_SCOPES = ("subject", "properties", "scopes")
_CLEARANCES = ("subject", "properties", "clearances")
_LIMITS = ("subject", "properties", "limits")
_ENTITLED = ("subject", "properties", "entitlements")
_ACT = ("subject", "properties", "act")
_MARKINGS = ("resource", "properties", "markings")
_APPROVAL = ("context", "approval")
_NEAR: Final = 0.01
_MOST: Final = 8
_FOREIGN: Final = "grid.foreign"
_ISSUER: Final = "https://one.example"
_OTHER: Final = "https://other.example"
_FAR: Final = 10**12


def axes(
    entry: Entry,
    base: Mapping[str, Any],
    directory: Mapping[str, Any],
    constants: Constants,
    *,
    known_tool: bool,
) -> list[Axis]:
    """Return the axes of a tool, in a fixed order; an axis without values is left out.

    Args:
        entry: the tool.
        base: the call to depart from.
        directory: corpora, documents and entitlements, of both bundles and the grid's own.
        constants: what the policies read, and compare it with.
        known_tool: whether the tool is one of the bundles'.
    """
    found = [
        axis_of("scopes", _scopes(entry)),
        axis_of("clearances", _held("clearance", _CLEARANCES, base["subject"]["properties"]["clearances"])),
        axis_of("markings", _markings(entry)),
        axis_of("purpose", _purposes(entry, base)),
        *(axis_of(f"argument {argument}", _limited(limit, argument)) for limit, argument in entry.limits()),
        axis_of("limits", _limits(entry)),
        axis_of("idempotency key", [("without idempotency key", _put("idempotency_key", None)),
                                  ("with an empty idempotency key", _put("idempotency_key", ""))]),
        axis_of("approval", _approvals(entry, base)),
        axis_of("agent", _agents(entry)),
        axis_of("acting agent", _acting(base)),
        *(axis_of(f"argument {name}", _sources(name)) for name in entry.sources()),
        axis_of("resource", _resources(directory)),
        axis_of("entitlements", _entitlements(directory)),
        *(axis_of(dotted(way), values, paired, fresh=fresh)
          for way, values, paired, fresh in constants.values(entry, base, known_tool=known_tool)),
    ]  # fmt: skip
    return [axis for axis in found if axis]


def _put(name: str, value: Any) -> tuple[Change, ...]:
    return ((("context", name), value),)


def _held(noun: str, way: tuple[str, ...], held: Sequence[str]) -> list[Worded]:
    found = [(f"without the {noun} {name}", ((way, [one for one in held if one != name]),)) for name in held[:_MOST]]
    return [(f"without any {noun}", ((way, []),)), *found] if held else []


def _scopes(entry: Entry) -> list[Worded]:
    names = entry.names("scopes")
    found = _held("scope", _SCOPES, names)
    # Who holds what the one entry asks for, and not what the other one does.
    for stated in entry.stated:
        own = texts(stated.get("scopes"))
        if sorted(own) != sorted(names) and len(own) > 1:
            found.append((f"with the scopes {', '.join(own)} alone", ((_SCOPES, own),)))
    return found


def _markings(entry: Entry) -> list[Worded]:
    names = entry.names("markings")[:_MOST]
    return [
        ("with unknown markings", ((_MARKINGS, GONE),)),
        (f"with the marking {_FOREIGN}", ((_MARKINGS, [_FOREIGN]), (_CLEARANCES, [*names, _FOREIGN]))),
        *((f"with the marking {name}", ((_MARKINGS, [name]),)) for name in names),
        *([("with every marking", ((_MARKINGS, names),))] if len(names) > 1 else ()),
    ]


def _purposes(entry: Entry, base: Mapping[str, Any]) -> list[Worded]:
    others = [name for name in (*entry.names("purposes"), _FOREIGN) if name != base["context"]["purpose"]]
    return [
        ("without purpose", _put("purpose", None)),
        *((f"with the purpose {name}", _put("purpose", name)) for name in others[-1:] + others[: _MOST - 1]),
        ("with an empty purpose", _put("purpose", "")),
    ]


def _limited(limit: str, argument: str) -> list[Worded]:
    way = ("context", "arguments", argument)
    values: list[tuple[str, Any]] = [
        (f"with {argument} just above the limit {limit}", LIMIT + _NEAR),
        (f"with {argument} at the limit {limit}", LIMIT),
        (f"with a negative {argument}", -1),
        (f"without {argument}", GONE),
        (f"with {argument} just below the limit {limit}", LIMIT - _NEAR),
        (f"with {argument} 0", 0),
        (f"with {argument} as text", "1"),
        (f"with {argument} null", None),
    ]
    return [(words, ((way, value),)) for words, value in values]


def _limits(entry: Entry) -> list[Worded]:
    names = list(dict.fromkeys(limit for limit, _ in entry.limits()))
    if not names:
        return []
    return [
        ("without limits", ((_LIMITS, {}),)),
        ("with limits above everything", ((_LIMITS, dict.fromkeys(names, _FAR)),)),
        ("with limits of 0", ((_LIMITS, dict.fromkeys(names, 0)),)),
        ("without any statement of limits", ((_LIMITS, GONE),)),
    ]


def _approvals(entry: Entry, base: Mapping[str, Any]) -> list[Worded]:
    good = valid_approval(entry)
    grants = good["grants"]
    stated = (each.get("expires_seconds") for each in entry.approvals())
    ages = sorted({age for age in stated if isinstance(age, int | float) and not isinstance(age, bool)})
    subject = base["subject"]["id"]
    found: list[tuple[str, Any]] = [
        ("with a valid approval", good),
        ("with one grant too few", {**good, "grants": grants[:-1]}),
        ("with an approval of another call", {**good, "call_digest": "sha256:another"}),
        *((f"with an approval just too old ({age:g} s)", {**good, "age_seconds": age + 1}) for age in ages),
        *((f"with an approval just young enough ({age:g} s)", {**good, "age_seconds": age}) for age in ages),
        ("with an approval by other roles", {**good, "grants": [{**one, "roles": [_FOREIGN]} for one in grants]}),
        ("approved by the subject", {**good, "grants": [*grants[:-1], {**grants[-1], "sub": subject}]}),
        ("approved twice by one person", {**good, "grants": [grants[0]] * max(len(grants), 2)}),
        ("with a grant beyond the quorum", {**good, "grants": [*grants, {**grants[0], "sub": "grid.more"}]}),
        ("with an approval without roles", {**good, "grants": [{**one, "roles": []} for one in grants]}),
        ("with an empty approval", {}),
        ("with an approval from the future", {**good, "age_seconds": -0.5}),
        ("with an approval without an id", {**good, "id": ""}),
        ("with an approval without a digest", {**good, "call_digest": ""}),
    ]
    found += [(words, {**good, "grants": changed}) for words, changed in _people(grants, subject)]
    issuer = (("subject", "properties", "iss"), _ISSUER)
    namesake = {**good, "grants": [*grants[:-1], {**grants[-1], "sub": subject, "iss": _OTHER}]}
    return [
        *((words, ((_APPROVAL, value),)) for words, value in found),
        ("approved by the subject's namesake at another issuer", ((_APPROVAL, namesake), issuer)),
    ]


def _people(grants: Sequence[Mapping[str, Any]], subject: str) -> list[tuple[str, list[Any]]]:
    """Who approved: people are told apart by issuer and name."""
    first, rest = grants[0], list(grants[1:])
    return [
        ("approved by people of an issuer", [{**one, "iss": _ISSUER} for one in grants]),
        ("approved by one name of two issuers", [{**first, "iss": _ISSUER}, {**first, "iss": _OTHER}]),
        ("approved by one name with and without issuer", [{**first, "iss": _ISSUER}, first]),
        ("approved by the subject's name at an issuer", [{**first, "sub": subject, "iss": _ISSUER}, *rest]),
        ("approved by an issuer that is no text", [{**first, "iss": 7}, *rest]),
        ("approved by an issuer without a name", [{**first, "iss": ""}, *rest]),
        ("approved by a person without a name", [{**first, "sub": ""}, *rest]),
        ("with roles of an approver that are no list", [*grants, {**first, "roles": "x"}]),
    ]


def _agents(entry: Entry) -> list[Worded]:
    if not entry.agents:
        return [("with an agent", _put("agent", "agent:stranger"))]
    return [
        ("without agent", _put("agent", None)),
        ("with an agent that is not pinned", _put("agent", "agent:stranger")),
        *((f"with the agent {name}", _put("agent", name)) for name in entry.agents[1:_MOST]),
    ]


def _acting(base: Mapping[str, Any]) -> list[Worded]:
    subject, context = base["subject"]["properties"], base["context"]
    name = context["agent"] or "agent:acting"
    whole = {"sub": name, **{key: subject[key] for key in ("scopes", "clearances", "limits", "entitlements")}}
    whole["purposes"] = [context["purpose"]]
    lacking: dict[str, Any] = {key: ({} if isinstance(whole[key], dict) else []) for key in whole if key != "sub"}
    bare = {"sub": name, "scopes": whole["scopes"]}
    found: list[tuple[str, Any]] = [
        ("through an agent that holds all", whole),
        ("through an agent without scopes", {**whole, "scopes": []}),
        ("through an agent that states its scopes alone", bare),
        ("through an agent behind which one lacks scopes", {**whole, "act": {**whole, "scopes": []}}),
        *((f"through an agent without {key}", {**whole, key: value}) for key, value in lacking.items()
          if key != "scopes"),
        ("through an agent with limits of 1", {**whole, "limits": dict.fromkeys(whole["limits"], 1)}),
        ("through three agents, the last without scopes", _chain(whole, 3, {"scopes": []})),
        ("through four agents", _chain(whole, 4, {})),
        ("through four agents, the last without scopes", _chain(whole, 4, {"scopes": []})),
        ("through five agents", _chain(whole, 5, {})),
        ("through an agent without a name", {**bare, "sub": ""}),
    ]  # fmt: skip
    return [(words, ((_ACT, value),)) for words, value in found]


def _chain(agent: Mapping[str, Any], length: int, last: Mapping[str, Any]) -> dict[str, Any]:
    chain: dict[str, Any] = {**agent, **last}
    for _ in range(length - 1):
        chain = {**agent, "act": chain}
    return chain


def _sources(name: str) -> list[Worded]:
    way = ("context", "arguments", name)
    values: list[tuple[str, Any]] = [
        (f"without {name}", GONE), (f"with empty {name}", []), (f"with a hollow {name}", [" "]),
        (f"with {name} null", None), (f"with {name} 0", 0), (f"with {name} false", False),
        (f"with {name} nested", [[{"id": [""]}]]),
    ]  # fmt: skip
    return [(words, ((way, value),)) for words, value in values]


def _resources(directory: Mapping[str, Any]) -> list[Worded]:
    def of(kind: str, name: str) -> tuple[Change, ...]:
        return ((("resource",), {"type": kind, "id": name, "properties": {}}),)

    corpora, documents = (_names(directory.get(name)) for name in ("corpora", "documents"))
    return [
        (f"for the corpus {CORPUS}", of("corpus", CORPUS)),
        ("for a corpus that is not in the directory", of("corpus", "grid.nowhere")),
        *((f"for the document {name}", of("document", name)) for name in documents[:_MOST]),
        *((f"for the corpus {name}", of("corpus", name)) for name in corpora[:_MOST] if name != CORPUS),
        ("for a document that is not in the directory", of("document", "grid.nowhere")),
    ]


def _entitlements(directory: Mapping[str, Any]) -> list[Worded]:
    corpora, documents = (_names(directory.get(name)) for name in ("corpora", "documents"))
    subjects = _names(directory.get("entitlements"))
    return [
        ("without entitlements", ((_ENTITLED, {}),)),
        ("entitled to corpora alone", ((_ENTITLED, {"corpora": corpora}),)),
        ("entitled to documents alone", ((_ENTITLED, {"documents": documents}),)),
        *((f"by {name}, whom the directory entitles", ((("subject", "id"), name), (_ENTITLED, {})))
          for name in subjects[:_MOST]),
    ]  # fmt: skip


def _names(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []
