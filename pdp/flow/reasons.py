"""Details that policies cannot add to a denial: ignored claims, malformed fields, and the origin of argument values.

The enforcement point adds them to the reasons after the decision. Only details of limits contain values.
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

# For each reason code, the claims whose absence may have caused it.
_CLAIMS_BY_CODE: Final[Mapping[str, frozenset[str]]] = {
    "scopes.missing": frozenset(("emts", "scope")),
    "markings.not_cleared": frozenset(("clearances",)),
    "limits.exceeded": frozenset(("limits",)),
    _CUMULATIVE: frozenset(("limits",)),
    "documents.not_entitled": frozenset(("entitlements",)),
    "delegation.exceeds_agent": frozenset(("act",)),
}
_SUBJECT_CLAIMS: Final = ("sub", "iss", "emts", "scope", "clearances", "roles", "limits", "entitlements", "act")
_NOT_SCOPES: Final = frozenset(("permissions", "realm_access", "resource_access", "scp"))
_AGENT_CLAIMS: Final = ("sub", "iss", "scopes", "clearances", "purposes", "limits", "entitlements", "act")
_TYPES: Final = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string"}
_ABSENT: Final = object()
_MAX_DETAILS: Final = 10
_MAX_AGENTS: Final = 4
_STRINGS: Final = "array of strings"
_NAME: Final = "string that is not empty"
_NO_AGENT: Final = f"null, as there are at most {_MAX_AGENTS} agents"
_FITS: Final[Mapping[str, Callable[[Any], bool]]] = {
    _STRINGS: lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    _NAME: lambda value: isinstance(value, str) and value != "",
    _NO_AGENT: lambda value: value is None,
    "string or null": lambda value: isinstance(value, str | None),
    "number of at least 0": lambda value: _type(value) == "number",
}
_HOLDER: Final = {
    "iss": "string or null", "scopes": _STRINGS, "clearances": _STRINGS, "limits": {"*": "number of at least 0"},
    "entitlements": {"corpora": _STRINGS, "documents": _STRINGS},
}  # fmt: skip
_MAX_LOGGED: Final = 1000

_log = logging.getLogger("pdp.pep")


def explained(decision: Decision, claims: Mapping[str, Any], request: Request, logged: set[str]) -> Decision:
    """Return the decision with details added to its reasons, and log the ignored claims that are not in `logged`."""
    reasons = tuple(_explained(reason, claims, request) for reason in decision.reasons)
    for text in (text for reason in reasons for text in reason.details.get("ignored_claims", ())):
        if text not in logged and len(logged) < _MAX_LOGGED:
            logged.add(text)
            _log.warning("a call was not allowed, and a claim of its session was ignored: %s", text)
    return replace(decision, reasons=reasons)


def _explained(reason: Reason, claims: Mapping[str, Any], request: Request) -> Reason:
    more: dict[str, Any] = {}
    if reason.code == REQUEST_INVALID:
        faults = sorted(dict.fromkeys(_faults(request)))[:_MAX_DETAILS]
        more["faults"] = [{"field": field, "expected": expected, "found": found} for field, expected, found in faults]
    elif reason.code in _CLAIMS_BY_CODE:
        read = _CLAIMS_BY_CODE[reason.code]
        ignored = (
            _ignored_agent_claims(claims) if "act" in read else _scopes_elsewhere(claims) if "emts" in read else ()
        )
        more["ignored_claims"] = [*_ignored(claims, read, reason.details.get("missing", ())), *ignored][:_MAX_DETAILS]
    elif reason.code.startswith("flow.") and isinstance(flow := request.context.get("flow"), dict):
        from pdp.ledger.words import explanation  # noqa: PLC0415 - only if the manifest tracks flow

        return replace(reason, explanation=explanation(reason.code, reason.details, flow))
    if reason.code == _CUMULATIVE:
        reason = _with_left(reason)
    return replace(reason, details=frozen({**reason.details, **more})) if any(more.values()) else reason


def _with_left(reason: Reason) -> Reason:
    """Add to a reason the rest of a cumulative limit, which policies cannot compute: Rego has no exact decimals."""
    limit, used, ends = (reason.details.get(name) for name in ("held", "used", "window_ends"))
    left = max(Decimal(str(limit or 0)) - Decimal(str(used)), Decimal(0))
    until = f" until {ends}" if ends else ""
    explanation = f"Spent: {used} of {limit or 0}; left: {left}{until}."
    return replace(reason, explanation=explanation, details=frozen({**reason.details, "left": float(left)}))


def _scopes_elsewhere(claims: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(_NOT_SCOPES.intersection(claims)):
        yield f"{name}: no scopes are read from this claim; map the claim to emts"


def _ignored(claims: Mapping[str, Any], read: frozenset[str], missing: Any) -> Iterator[str]:
    """Yield why each of the claims named in `read` was ignored. Of scope claims, explain only the `missing` scopes."""
    granted, scope = claims.get("emts"), claims.get("scope")
    if "emts" in read:
        if isinstance(granted, dict):
            for name in missing:
                if not isinstance(granted.get(name), bool | None):
                    yield f"emts: {name}: only true grants a scope, found {_type(granted[name])}"
        elif granted is not None:
            yield f"emts: expected an object {{SCOPE: true}}, found {_type(granted)}"
        if scope is not None and not isinstance(scope, str):
            yield f"scope: expected one string of scopes separated by spaces, found {_type(scope)}"
        elif scope and not set(missing).isdisjoint(re.split(r"[\s,;]+", scope)):
            yield "scope: expected spaces between scopes, found another separator"
    for name in claims:
        for near in read.intersection(_near(name, _SUBJECT_CLAIMS)):
            yield f"{name:.40}: unknown claim, did you mean {near}?"


@lru_cache(256)
def _near(name: str, read: tuple[str, ...]) -> tuple[str, ...]:
    return () if name in read or name in _NOT_SCOPES else tuple(get_close_matches(name.lower(), read, 1, 0.75))


def _ignored_agent_claims(claims: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ignored claims of the acting agents. An agent gets its scopes only from its claim `scopes`."""
    at, agent = "act", claims.get("act")
    while isinstance(agent, dict):
        for name in agent:
            for near in ("scopes",) if name == "emts" else _near(name, _AGENT_CLAIMS):
                yield f"{at}.{name:.40}: unknown claim, did you mean {at}.{near}?"
        at, agent = f"{at}.act", agent.get("act")


def _faults(request: Request) -> Iterator[tuple[str, str, str]]:
    """Yield each malformed claim or marking: its field, expected type and actual type (policies/authz/lib/shape)."""
    yield from _field_faults(request.subject.properties, "claims", {**_HOLDER, "roles": _STRINGS, "act": _agents()})
    yield from _field_faults(request.resource.properties, "resource", {"markings": _STRINGS})


def _agents() -> Any:
    shape: Any = _NO_AGENT
    for _ in range(_MAX_AGENTS):
        shape = {**_HOLDER, "sub": _NAME, "purposes": _STRINGS, "act": shape}
    return shape


def _field_faults(value: Any, at: str, shape: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the malformed fields of a value. `shape` is the expected type, or a shape per field (`*`: any field)."""
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
                    yield from _field_faults(item, f"{at}.{field:.80}", inner)


def _type(value: Any) -> str:
    if isinstance(value, list):
        inner = sorted({_type(item).partition(" ")[0] for item in value})
        return f"array of {' and '.join(inner)}" if inner else "array"
    if _TYPES.get(type(value)) == "number" and value < 0:
        return "number below 0"
    if value == "":
        return "empty string"
    return "absent" if value is _ABSENT else _TYPES.get(type(value), "object")
