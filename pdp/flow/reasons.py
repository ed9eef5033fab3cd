"""What whoever is denied needs and no rule can see: ignored claims, malformed fields, and where values came from.

The policy sees what was made of the claims, and of a malformed request that it is malformed. So the enforcement point
adds this to the details of a reason after the decision: names and types, never a value. A finding about a run gets an
explanation as well: where a value came from.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

from pdp.decision import Decision, Reason
from pdp.engine.protocol import REQUEST_INVALID
from pdp.json import frozen
from pdp.request import Request

_CUMULATIVE: Final = "limits.cumulative_exceeded"

# By code, the claims whose absence may be the cause.
_CLAIMS_OF: Final[Mapping[str, frozenset[str]]] = {
    "scopes.missing": frozenset(("emts", "scope")),
    "markings.not_cleared": frozenset(("clearances",)),
    "limits.exceeded": frozenset(("limits",)),
    _CUMULATIVE: frozenset(("limits",)),
    "documents.not_entitled": frozenset(("entitlements",)),
    "delegation.exceeds_agent": frozenset(("act",)),
}
_READ: Final = ("sub", "iss", "emts", "scope", "clearances", "roles", "limits", "entitlements", "act")
_NOT_SCOPES: Final = frozenset(("permissions", "realm_access", "resource_access", "scp"))
_READ_OF_AGENT: Final = ("sub", "iss", "scopes", "clearances", "purposes", "limits", "entitlements", "act")
_TYPES: Final = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string"}
_ABSENT: Final = object()
_MOST: Final = 10
_MOST_AGENTS: Final = 4
_TEXTS: Final = "array of strings"
_NAME: Final = "string that is not empty"
_NO_AGENT: Final = f"null, as there are at most {_MOST_AGENTS} agents"
_FITS: Final[Mapping[str, Callable[[Any], bool]]] = {
    _TEXTS: lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    _NAME: lambda value: isinstance(value, str) and value != "",
    _NO_AGENT: lambda value: value is None,
    "string or null": lambda value: isinstance(value, str | None),
    "number of at least 0": lambda value: _type(value) == "number",
}
_HOLDER: Final = {
    "iss": "string or null", "scopes": _TEXTS, "clearances": _TEXTS, "limits": {"*": "number of at least 0"},
    "entitlements": {"corpora": _TEXTS, "documents": _TEXTS},
}  # fmt: skip
_MOST_LOGGED: Final = 1000

_log = logging.getLogger("pdp.pep")


def explained(decision: Decision, claims: Mapping[str, Any], request: Request, logged: set[str]) -> Decision:
    """Return a decision that is no ALLOW with details about claims that were ignored and fields that are malformed.

    An ignored claim is logged, unless `logged` has it already.
    """
    reasons = tuple(_explained(reason, claims, request) for reason in decision.reasons)
    for text in (text for reason in reasons for text in reason.details.get("ignored_claims", ())):
        if text not in logged and len(logged) < _MOST_LOGGED:
            logged.add(text)
            _log.warning("a claim was ignored, and a call was not allowed: %s", text)
    return replace(decision, reasons=reasons)


def _explained(reason: Reason, claims: Mapping[str, Any], request: Request) -> Reason:
    more: dict[str, Any] = {}
    if reason.code == REQUEST_INVALID:
        faults = sorted(dict.fromkeys(_faults(request)))[:_MOST]
        more["faults"] = [{"field": field, "expected": expected, "found": found} for field, expected, found in faults]
    elif reason.code in _CLAIMS_OF:
        read = _CLAIMS_OF[reason.code]
        ignored = _ignored_of_agents(claims) if "act" in read else _elsewhere(claims) if "emts" in read else ()
        more["ignored_claims"] = [*_ignored(claims, read, reason.details.get("missing", ())), *ignored][:_MOST]
    elif reason.code.startswith("flow.") and isinstance(flow := request.context.get("flow"), dict):
        from pdp.ledger.words import explanation  # noqa: PLC0415 - only where labels are in use

        return replace(reason, explanation=explanation(reason.code, reason.details, flow))
    if reason.code == _CUMULATIVE:
        reason = _with_left(reason)
    return replace(reason, details=frozen({**reason.details, **more})) if any(more.values()) else reason


def _with_left(reason: Reason) -> Reason:
    """Return the reason with what is left of a cumulative limit: in decimals, in which policies do not compute."""
    held, used, ends = (reason.details.get(name) for name in ("held", "used", "window_ends"))
    left = max(Decimal(str(held or 0)) - Decimal(str(used)), Decimal(0))
    until = f" until {ends}" if ends else ""
    explanation = f"Spent: {used} of {held or 0}; left: {left}{until}."
    return replace(reason, explanation=explanation, details=frozen({**reason.details, "left": float(left)}))


def _elsewhere(claims: Mapping[str, Any]) -> Iterator[str]:
    """Say which claims hold scopes in a form that is not read."""
    for name in sorted(_NOT_SCOPES.intersection(claims)):
        yield f"{name}: no scopes are read from it: map it to emts, as docs/application.md shows"


def _ignored(claims: Mapping[str, Any], read: frozenset[str], missing: Any) -> Iterator[str]:
    """Say which of the claims that `read` names were ignored, and why; of scopes, those that are `missing`."""
    granted, scope = claims.get("emts"), claims.get("scope")
    if "emts" in read:
        if isinstance(granted, dict):
            for name in missing:
                if not isinstance(granted.get(name), bool | None):
                    yield f"emts: {name}: only true counts, found {_type(granted[name])}"
        elif granted is not None:
            yield f"emts: expected an object {{SCOPE: true}}, found {_type(granted)}"
        if scope is not None and not isinstance(scope, str):
            yield f"scope: expected one string of scopes with blanks between them, found {_type(scope)}"
        elif scope and not set(missing).isdisjoint(re.split(r"[\s,;]+", scope)):
            yield "scope: expected blanks between scopes, found another separator"
    for name in claims:
        for near in read.intersection(_near(name, _READ)):
            yield f"{name:.40}: no such claim is read, {near} is"


@lru_cache(256)
def _near(name: str, read: tuple[str, ...]) -> tuple[str, ...]:
    return () if name in read or name in _NOT_SCOPES else tuple(get_close_matches(name.lower(), read, 1, 0.75))


def _ignored_of_agents(claims: Mapping[str, Any]) -> Iterator[str]:
    """Say which claims of acting agents were ignored: an agent's scopes are the list `scopes`, and nothing else."""
    at, agent = "act", claims.get("act")
    while isinstance(agent, dict):
        for name in agent:
            for near in ("scopes",) if name == "emts" else _near(name, _READ_OF_AGENT):
                yield f"{at}.{name:.40}: no such claim is read, {at}.{near} is"
        at, agent = f"{at}.act", agent.get("act")


def _faults(request: Request) -> Iterator[tuple[str, str, str]]:
    """Yield field, expected and found of what the policy refuses in a request (policies/authz/lib/shape).

    The subject is of the claims, and the markings of the manifest's mapping; all else is checked before.
    """
    yield from _faults_of(request.subject.properties, "claims", {**_HOLDER, "roles": _TEXTS, "act": _agents()})
    yield from _faults_of(request.resource.properties, "resource", {"markings": _TEXTS})


def _agents() -> Any:
    shape: Any = _NO_AGENT
    for _ in range(_MOST_AGENTS):
        shape = {**_HOLDER, "sub": _NAME, "purposes": _TEXTS, "act": shape}
    return shape


def _faults_of(value: Any, at: str, shape: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the faults of a value: `shape` is what is expected of it, or that by field, `*` for any."""
    if isinstance(shape, str):
        if not _FITS[shape](value):
            yield at, shape, _type(value)
    elif not isinstance(value, dict):
        yield at, "object", _type(value)
    else:
        for name, inner in shape.items():
            for field in value if name == "*" else (name,):
                item = value.get(field, _ABSENT)
                left_out = item is _ABSENT or (name == "act" and item is None)
                if not left_out or name == "sub":
                    yield from _faults_of(item, f"{at}.{field:.80}", inner)


def _type(value: Any) -> str:
    if isinstance(value, list):
        inner = sorted({_type(item).partition(" ")[0] for item in value})
        return f"array of {' and '.join(inner)}" if inner else "array"
    if _TYPES.get(type(value)) == "number" and value < 0:
        return "number below 0"
    if value == "":
        return "empty string"
    return "absent" if value is _ABSENT else _TYPES.get(type(value), "object")
