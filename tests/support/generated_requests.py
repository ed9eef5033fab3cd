"""Generate valid, hostile and mistyped requests for comparing engines. Every run generates the same requests."""

import copy
import random
from collections.abc import Iterator
from typing import Any

from pdp.json import canonical, digest

_TIERS = ("low", "medium", "high", "extreme")
_CLASSES = (None, "pure", "read-internal", "read-external", "stage", "commit-low", "commit-high", "teleport")
_PATTERNS: dict[str | None, str] = {
    "pure": "composition",
    "read-internal": "search",
    "commit-low": "approval-request",
    "stage": "extraction",  # A tool of the pattern `extraction` has the effect class `pure`.
}
_RESOURCE = {"type": "t", "id": "r", "properties": {}}
_DIRECTORY: dict[str, Any] = {
    "corpora": {"c": {"markings": ["pii"]}, "open": {"markings": []}, "odd": {"markings": "pii"}, "no": False},
    "documents": {
        "d": {"corpus": "c", "markings": ["secret"]},
        "shut": {"corpus": "c", "restricted": True},
        "odd": {"corpus": 1, "restricted": "no"},
        "text": "c",
        "listed": {"corpus": ["c"], "markings": []},
        "stray": {"corpus": "C", "markings": []},
        "false": {"corpus": "no", "markings": []},
    },
    "entitlements": {"u": {"corpora": ["open"]}},
}


# The manifest loader rejects these entries, but a bundle that was made by hand could contain such entries.
_SPOILED: dict[str | None, dict[str, Any]] = {
    "pure": {"limits": "s"},
    "stage": {"limits": [{"limit": "l"}]},
    "read-internal": {"scopes": True},
    "commit-low": {"provenance": {"required": "s"}},
}


def _tools() -> dict[str, Any]:
    """Return manifest entries for every risk tier and effect class, some of which the loader rejects."""
    tools: dict[str, Any] = {}
    for tier in _TIERS:
        for effect in _CLASSES:
            for variant in range(4):
                name = f"{tier}_{effect}_{variant}"
                entry: dict[str, Any] = {
                    "name": name,
                    "pdp_action": name if variant != 3 else "shared",
                    "version": "1.0.0",
                    "risk_tier": tier,
                    "scopes": [[], ["a"], ["a", "b"], ["c"]][variant],
                    "limits": [[], [{"limit": "l", "argument": "amount"}]][variant % 2],
                    "idempotency": {"required": variant == 2},
                    "approval": {
                        "approvers": ["approver"],
                        "quorum": 1 + (tier == "medium"),
                        "expires": "PT1H",
                        "expires_seconds": 3600,
                        "unless_within_limits": variant == 1,
                    },
                    "provenance": {"required": [[], ["sources"]][variant == 3]},
                    "writes": "none",
                }
                if effect is not None:
                    entry["effect_class"] = effect
                if variant == 1:
                    entry |= {"markings": ["pii"], "purposes": ["care"]}
                    entry |= {"pattern": _PATTERNS[effect]} if effect in _PATTERNS else {}
                if variant == 2:
                    entry |= {"release": {"gate": "passed", "drift": "ok"}, "purposes": []}
                if variant == 3:
                    entry |= {"release": {"gate": "failed", "drift": "ok"}, "markings": []}
                    entry |= _SPOILED.get(effect, {})
                tools[name] = entry
    return tools | _labelled()


_PROFILES: tuple[dict[str, Any], ...] = (
    {"profile": "watch"}, {"profile": "balanced"}, {"profile": "strict"}, {"profile": "strict", "otherwise": "deny"},
    {"profile": "watch", "rules": ["egress", "not_anchored"]}, {"profile": "balanced", "otherwise": "deny"},
)  # fmt: skip


def _labelled() -> dict[str, Any]:
    """Return manifest entries with flow rules: three tools for each flow profile."""
    kinds: dict[str, dict[str, Any]] = {
        "fetch": {"effect_class": "read-external"},
        "write": {"effect_class": "stage", "admits": ["pii"]},
        "erase": {"effect_class": "stage", "destructive": True},
    }
    return {
        f"{kind}_{number}": {
            "name": f"{kind}_{number}", "pdp_action": f"{kind}_{number}", "version": "1.0.0", "risk_tier": "low",
            "scopes": ["a"], "limits": [], "idempotency": {"required": False}, "provenance": {"required": []},
            "flow": flow, **extra,
        }
        for kind, extra in kinds.items()
        for number, flow in zip("abcdef", _PROFILES, strict=True)
    }  # fmt: skip


_TOOLS = _tools()
_LABELLED = [name for name, entry in _TOOLS.items() if "flow" in entry]
_ANYBODYS = {"manifest_version": "1", "tools": _TOOLS}
_PINNED = {**_ANYBODYS, "agents": {"agent:0": dict.fromkeys(list(_TOOLS)[::2], "1.0.0")}}
DIGEST, PINNED = digest(canonical(_ANYBODYS)), digest(canonical(_PINNED))


SOURCES: tuple[Any, ...] = (
    "", [], ["s"], 0, False, None, {}, True, "s", " s ", " \t\r\n", "\u2003\u3000\u0085\u00a0", "\u200b", "\x1c",
    [""], ["s", " "], [None], [[]], [{}], [False], [0, True], [["s"], []], {"a": None}, {"a": "s"},
    {"": ["s", {"b": ""}]}, [[[["s"]]]], [[[[["s"]]]]], [[[[[]]]]], [[[[None]]]],
)  # fmt: skip
"""Argument values that should name a source: valid names, and values that are not names."""


def directory() -> dict[str, Any]:
    """Return a directory of corpora, documents and entitlements, in which some values have the wrong type."""
    return _DIRECTORY


def manifests() -> dict[str, Any]:
    """Return two effective manifests by digest: one for all agents, and one that pins tools to an agent."""
    return {DIGEST: _ANYBODYS, PINNED: _PINNED}


def _valid(rng: random.Random, tools: list[str]) -> dict[str, Any]:
    tool = rng.choice(_LABELLED if rng.random() < 0.25 else tools)
    action = tool if rng.random() < 0.8 and not tool.endswith("3") else "shared"
    properties: dict[str, Any] = {
        "scopes": rng.choice([["a", "b", "c"], ["a", "b", "c"], ["c"], ["a"], []]),
        "clearances": rng.sample(["pii", "secret"], rng.randrange(3)),
        "limits": rng.choice([{"l": 100}, {"l": 100}, {"l": 0.5}, {"other": 1}, {}]),
    }
    if rng.random() < 0.3:
        properties["act"] = _act(rng, 0)
    context: dict[str, Any] = {
        "arguments": rng.choice(
            [{"amount": 50}, {"amount": rng.choice([0, 1, 99.5, 100, 100.5, 250, -1, "100", None, True, [], {}])}]
        ),
        "idempotency_key": rng.choice(["k", "k", "k", "", None]),
        "purpose": rng.choice(["care", "care", "care", "war", "", None]),
        "time": "2026-07-01T10:00:00Z",
        "call_digest": "sha256:1",
        "approval": _approval(rng) if rng.random() < 0.3 else None,
        "sanctions_status": rng.choice(["clear", "hit", None, 1]),
    }
    if rng.random() < (0.9 if "flow" in _TOOLS[tool] else 0.05):
        context["flow"] = _flow(rng)
    if rng.random() < 0.3:
        context["arguments"]["sources"] = rng.choice(copy.deepcopy(SOURCES))
    properties["entitlements"] = rng.choice([{}, {"corpora": ["c"]}, {"documents": ["d", "shut"]}])
    resource: dict[str, Any] = {
        "type": rng.choice(["t", "t", "corpus", "document"]),
        "id": rng.choice(["r", "c", "d", "open", "shut", "odd", "text", "listed", "stray", "false"]),
        "properties": {},
    }
    if rng.random() < 0.5:
        resource["properties"]["markings"] = rng.choice([[], [], ["pii"], ["secret", "pii"]])
    return {
        "subject": {"type": "user", "id": "u", "properties": properties},
        "action": {
            "name": action,
            "properties": {
                "tool": tool,
                "manifest_version": "1",
                "manifest_digest": rng.choice([DIGEST, DIGEST, DIGEST, PINNED]),
            },
        },
        "resource": resource,
        "context": context,
    }


def _ease(rng: random.Random, request: dict[str, Any]) -> None:
    """Change a request so that it meets most requirements. Otherwise, the verdict would nearly always be DENY."""
    tool = request["action"]["properties"]["tool"]
    request["action"]["name"] = tool if not tool.endswith("3") else "shared"
    request["action"]["properties"]["manifest_digest"] = DIGEST
    request["subject"]["properties"] |= {"scopes": ["a", "b", "c"], "clearances": ["pii", "secret"]}
    request["subject"]["properties"].pop("act", None)
    request["context"] |= {"idempotency_key": "k", "purpose": None if tool.endswith("2") else "care"}
    request["resource"] = {"type": "corpus", "id": "c", "properties": {}} if "_1" in tool else _RESOURCE
    request["subject"]["properties"]["entitlements"] = {"corpora": ["c"]}
    if rng.random() < 0.8:
        request["context"]["approval"] = None
    if rng.random() < 0.8:
        request["context"]["arguments"] = {"amount": rng.choice([50, 50, 250]), "sources": ["s"]}


_VALUE_SOURCES = ("prompt", "fact", "trusted", "party", "created", "named", "untrusted", "endorsed", "model")
_ROLES = ("destination", "object", "value", "url", "address", "body")


def _flow(rng: random.Random) -> dict[str, Any]:
    """Return the field `context.flow` of a request. In most cases, the run has read untrusted data."""

    def origin() -> dict[str, Any]:
        return {
            "sources": sorted(rng.sample(_VALUE_SOURCES, rng.choice([1, 1, 2, 3]))),
            "from": rng.choice([[], [{"tool": "read", "call": "c-1"}]]),
        }

    return {
        "tainted": rng.random() < 0.8,
        "untrusted": rng.choice([[], ["read"]]),
        "markings": rng.choice([[], ["pii"], ["secret"], ["pii", "secret"]]),
        "plan": rng.choice([None, None, [], ["write_b", "erase_c", "fetch_a"]]),
        "anchored": rng.random() < 0.3,
        "intended": rng.random() < 0.3,
        "arguments": [
            {
                "path": f"/{index}", "role": rng.choice(_ROLES), **origin(), "home": rng.random() < 0.2,
                "links": [origin() for _ in range(rng.choice([0, 0, 1, 2]))],
            }
            for index in range(rng.choice([0, 1, 1, 2, 3]))
        ],
    }  # fmt: skip


def _approval(rng: random.Random) -> dict[str, Any]:
    """Return an approval for a request. Most of the generated approvals are valid."""
    people = [
        {"iss": rng.choice([None, "i", "j"]), "sub": sub, "roles": rng.choice([["approver"]] * 4 + [["other"], []])}
        for sub in rng.sample(["boss", "chief", "u", "agent:0", "boss"], rng.randrange(1, 4))
    ]
    return {
        "id": "apr",
        "call_digest": rng.choice(["sha256:1"] * 8 + ["sha256:2", None]),
        "age_seconds": rng.choice([0, 60, 3600, 3600, 3601, -1]),
        "grants": people,
    }


def _act(rng: random.Random, depth: int) -> dict[str, Any]:
    act: dict[str, Any] = {"sub": f"agent:{depth}"}
    if rng.random() < 0.8:
        act["scopes"] = rng.sample(["a", "b", "c"], rng.randrange(4))
    if rng.random() < 0.3:
        act["limits"] = rng.choice([{}, {"l": 50}])
    if rng.random() < 0.3:
        act["clearances"] = rng.choice([[], ["pii"]])
    if rng.random() < 0.2:
        act["entitlements"] = rng.choice([{}, {"corpora": ["c", "open"]}])
    if rng.random() < 0.2:
        act["purposes"] = rng.choice([[], ["care"]])
    if rng.random() < 0.4 and depth < 6:
        act["act"] = _act(rng, depth + 1)
    return act


_HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 2**53 - 1, -(2**53) + 1, 1e-300, "", "x", "pii", "\u0000", "\U0001f600", "é" * 40,
    [], [[]], [None], ["a", 1], {}, {"": {}}, {"__proto__": {}}, {"code": "x"}, "x" * 5000, [0] * 200,
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from _places(item, (*path, key))


def _spoiled(rng: random.Random, request: dict[str, Any]) -> Any:
    spoiled = copy.deepcopy(request)
    for _ in range(rng.randrange(1, 4)):
        places = list(_places(spoiled))
        if not places:
            return spoiled
        *way, last = rng.choice(places)
        holder = spoiled
        for step in way:
            holder = holder[step]
        change = rng.random()
        if change < 0.25:
            del holder[last]
        elif change < 0.4 and isinstance(holder, dict):
            holder[
                rng.choice(
                    ["act", "limits", "markings", "purpose", "agent", "approval", "flow", "sources", "plan", "zz"]
                )
            ] = rng.choice(copy.deepcopy(_HOSTILE))
        else:
            holder[last] = copy.deepcopy(rng.choice(_HOSTILE))
    return spoiled


def requests(count: int) -> Iterator[Any]:
    """Yield `count` requests. After each valid request comes a copy of this request with up to three faults."""
    rng = random.Random(20260701)  # noqa: S311 - the same requests in every run
    tools = list(_TOOLS)
    yield from copy.deepcopy(_HOSTILE)
    for number in range(count - len(_HOSTILE)):
        request = _valid(rng, tools)
        if rng.random() < (0.9 if number % 2 else 0.2):
            _ease(rng, request)
        yield request if number % 2 else _spoiled(rng, request)
