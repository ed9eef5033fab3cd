"""Variants of who approves a call, and of who acts for its subject: what no change of one attribute comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.neighbours.values import GONE, Edit, as_dict, at

if TYPE_CHECKING:
    from collections.abc import Iterator

Worded = tuple[str, tuple[Edit, ...]]
"""A change in words, and as edits."""

_APPROVAL: Final = ("context", "approval")
_PROPERTIES: Final = ("subject", "properties")
_ACT: Final = (*_PROPERTIES, "act")
_ISSUER: Final = (*_PROPERTIES, "iss")
_ONE: Final = "https://one.example"
_OTHER: Final = "https://other.example"
_SOMEBODY: Final = "somebody-else"
_AGES: Final = (-0.5, 0, 59, 60, 61, 599, 600, 601, 3599, 3600, 3601, 86400)
_HELD: Final = ("scopes", "clearances", "limits", "entitlements", "purposes")
_LONGEST: Final = 5


def approval_changes(request: Any) -> Iterator[Worded]:
    """Yield changes of the approval that a request has: by others or by too few, or too old."""
    approval = at(request, _APPROVAL)
    if not isinstance(approval, dict) or not isinstance(approval.get("grants"), list):
        return
    grants = [grant for grant in approval["grants"] if isinstance(grant, dict)]
    yield "without approval", ((_APPROVAL, None),)
    for words, people in _people(request, grants):
        yield words, ((_APPROVAL, {**approval, "grants": people}),)
    for age in _AGES:
        yield f"with an approval of {age:g} s", ((_APPROVAL, {**approval, "age_seconds": age}),)
    subject = at(request, ("subject", "id"))
    if grants and isinstance(subject, str):
        named = {**approval, "grants": [{**grants[0], "sub": subject, "iss": _OTHER}, *grants[1:]]}
        edits = ((_APPROVAL, named), (_ISSUER, _ONE))
        yield "approved by the subject's namesake at another issuer", edits


def _people(request: Any, grants: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Grants that count for nobody, or for one person twice: people are told apart by issuer and name."""
    names = {
        "the subject": at(request, ("subject", "id")), "the agent": at(request, ("context", "agent")),
        "the acting agent": at(request, (*_ACT, "sub")), "somebody else": _SOMEBODY,
    }  # fmt: skip
    for index, grant in enumerate(grants):
        before, after = grants[:index], grants[index + 1 :]
        yield f"without the grant {index}", [*before, *after]
        for who, name in names.items():
            if isinstance(name, str):
                plain = {key: value for key, value in grant.items() if key != "iss"} | {"sub": name}
                yield f"approved by {who}", [*before, plain, *after]
                for issuer in (None, "", 7, _ONE, _OTHER):
                    yield f"approved by {who} of {issuer!r}", [*before, {**plain, "iss": issuer}, *after]
        yield "approved twice by one person", [*before, grant, grant, *after]
        twice = [{**grant, "iss": issuer} for issuer in (_ONE, _OTHER)]
        yield "approved by one name of two issuers", [*before, *twice, *after]
        yield "approved by one name with and without issuer", [*before, twice[0], grant, *after]
    if len(grants) > 1:
        yield "approved by one person alone", [grants[0]] * len(grants)
        yield "approved by people of an issuer", [{**grant, "iss": _ONE} for grant in grants]
    yield "with a grant beyond the quorum", [*grants, {**(grants[0] if grants else {}), "sub": _SOMEBODY}]


def agent_changes(request: Any) -> Iterator[Worded]:
    """Yield chains of one to five agents that hold what the subject holds, and what one of them lacks."""
    if not isinstance(at(request, _PROPERTIES), dict):
        return
    agent = acting_agent(request)
    name, held = agent["sub"], {key: value for key, value in agent.items() if key != "sub"}
    chain: Any = None
    for depth in range(1, _LONGEST + 1):
        chain = {"sub": name if depth == 1 else f"agent:{depth}", **held, **({} if chain is None else {"act": chain})}
        words = f"through {depth} agent{'s' * (depth > 1)}"
        yield words, ((_ACT, chain),)
        for right in _HELD:
            empty: tuple[Any, ...] = ({}, []) if right in ("limits", "entitlements") else ([], {})
            for value in (empty[0], *_near_held(held.get(right)), None, empty[1]):
                yield f"{words}, one with {right} {value}", ((_ACT, _deepest(chain, right, value)),)
                if depth > 1:
                    yield f"{words}, the nearest with {right} {value}", ((_ACT, {**chain, right: value}),)
            if right in chain:
                yield f"{words}, one that states no {right}", ((_ACT, _deepest(chain, right, GONE)),)
    yield "through an agent without a name", ((_ACT, {"sub": "", **held}),)


def acting_agent(request: Any) -> dict[str, Any]:
    """Return an agent that acts for the subject and holds what the subject holds."""
    properties, purpose = as_dict(at(request, _PROPERTIES)), at(request, ("context", "purpose"))
    agent = at(request, ("context", "agent"))
    held: dict[str, Any] = {name: properties[name] for name in _HELD if name in properties}
    if isinstance(purpose, str):
        held["purposes"] = [purpose]
    return {"sub": agent if isinstance(agent, str) else "agent:acting", **held}


def _near_held(value: Any) -> Iterator[Any]:
    """What an agent nearly holds: a longer name, another case, a limit of 1."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        yield from ([other, *value[1:]] for other in (f"{value[0]}x", value[0].swapcase(), value[0][:-1]))
    elif isinstance(value, dict) and value:
        yield dict.fromkeys(value, 1)


def _deepest(chain: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The chain with something else held by its last agent."""
    if "act" in chain:
        return {**chain, "act": _deepest(chain["act"], name, value)}
    return {key: each for key, each in {**chain, name: value}.items() if each is not GONE}
