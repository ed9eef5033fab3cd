"""Random calls with so few names that unrelated fields often have the same name.

A person, an agent, a scope, a purpose, a tool and a limit may have the same name, even that of a concern, an obligation
or an effect class. Examples written by hand do not find an exemption for one name, or a rule that compares two wrong
fields.
"""

import random
from dataclasses import dataclass
from typing import Any

from pdp.json import canonical, digest
from tests.policies.oracle import GATES, PATTERNS

CALLS = 40
"""The number of calls in a universe. Each call has a separate manifest."""

WORDS = (
    "a", "approvals", "b", "commit-high", "corpus", "delegation", "documents", "draft_only", "effects", "high",
    "idempotency", "limits", "manifest", "mark_result", "markings", "pin_retrieval_snapshot", "policy", "provenance",
    "purposes", "reserve", "risk", "scopes", "search", "user",
)  # fmt: skip
_AMOUNTS = (0, 1, 2, 2.5)
_RARE = 0.12
_DEEPEST = 3


@dataclass(frozen=True)
class Case:
    """A call and its manifest."""

    request: dict[str, Any]
    manifest: dict[str, Any]

    @property
    def body(self) -> bytes:
        return canonical(self.request)


class Universe:
    """Two or three names, a directory and calls, all random. The same seed gives the same universe."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable test data
        self.names = self._random.sample(WORDS, self._choice(2, 2, 3))
        self.directory = self._directory()
        self.cases = [self._case() for _ in range(CALLS)]

    @property
    def manifests(self) -> dict[str, Any]:
        return {case.request["action"]["properties"]["manifest_digest"]: case.manifest for case in self.cases}

    def _choice(self, *values: Any) -> Any:
        return self._random.choice(values)

    def _rarely(self) -> bool:
        return self._random.random() < _RARE

    def _often(self, value: Any, *others: Any) -> Any:
        return self._choice(*others) if self._rarely() else value

    def _name(self) -> str:
        return self._random.choice(self.names)

    def _some(self) -> list[str]:
        return self._random.sample(self.names, self._random.randrange(len(self.names) + 1))

    def _stated(self, **fields: Any) -> dict[str, Any]:
        """Return a random selection of the fields. A field is left out with a probability of one third."""
        return {name: value for name, value in fields.items() if self._random.randrange(3)}

    def _case(self) -> Case:
        entry, tool = self._entry(), self._name()
        manifest: dict[str, Any] = {"manifest_version": "1", "tools": {tool: entry}}
        request = self._request(entry, tool)
        if self._rarely():
            named = request["context"].get("agent") or self._name()
            pins = {self._name(): {self._name(): "1.0.0"}, named: {tool: self._often("1.0.0", "2.0.0")}}
            manifest["agents"] = pins
        request["action"]["properties"]["manifest_digest"] = digest(canonical(manifest))
        return Case(request, manifest)

    def _entry(self) -> dict[str, Any]:
        effect = self._choice(*GATES)
        fitting = [name for name, fixed in PATTERNS.items() if fixed == effect]
        pattern = self._often(self._choice(None, None, *fitting), *PATTERNS)
        entry = {
            "version": "1.0.0",
            "pdp_action": self._name(),
            "scopes": self._some() or self._some(),
            "limits": [{"limit": self._name(), "argument": self._name()} for _ in range(self._choice(0, 0, 1, 2))],
            "idempotency": {"required": self._often(False, True)},
            "provenance": {"required": self._choice([], [self._name()])},
            "approval": {
                "approvers": self._choice(self.names, self._some(), [self._name(), "$subject"], ["$subject"]),
                "quorum": self._choice(1, 1, 2),
                "expires_seconds": 60,
                **self._stated(unless_within_limits=self._choice(True, False)),
            },
            **self._stated(risk_tier=self._choice("low", "low", "medium", "high"), markings=self._some()),
        }
        if effect:
            entry["effect_class"] = effect
        if pattern:
            entry["pattern"] = pattern
        if self._rarely():
            entry["purposes"] = self._some()
        if self._rarely():
            entry["release"] = {"gate": self._often("passed", "failed"), "drift": self._often("ok", "found")}
        return entry

    def _directory(self) -> dict[str, Any]:
        def record() -> dict[str, Any]:
            return {"markings": self._some()} if self._rarely() else {}

        return {
            "corpora": {name: record() for name in self.names if self._random.randrange(4)},
            "documents": {
                name: {**record(), **self._stated(corpus=self._name(), restricted=self._choice(True, False))}
                for name in self._some()
            },
            "entitlements": {name: self._entitlements() for name in self._some()},
        }

    def _entitlements(self) -> dict[str, Any]:
        return self._stated(corpora=self._some(), documents=self._some())

    def _caps(self) -> dict[str, Any]:
        return {name: self._choice(*_AMOUNTS) for name in self.names if not self._rarely()}

    def _act(self, depth: int = 0) -> dict[str, Any]:
        act: dict[str, Any] = {"sub": self._name(), "scopes": self._often(self.names, self._some())}
        if self._rarely():
            act |= self._stated(clearances=self._some(), purposes=self._some(), limits=self._caps())
        if self._rarely():
            act["entitlements"] = self._entitlements()
        if self._rarely():
            act["iss"] = self._name()
        if depth < _DEEPEST and self._random.randrange(3) == 0:
            act["act"] = self._act(depth + 1)
        return act

    def _approval(self) -> dict[str, Any]:
        grants = [
            {
                "sub": self._name(),
                "roles": self._choice(self.names, self._some(), ["$subject"]),
                **({"iss": self._name()} if self._rarely() else {}),
            }
            for _ in range(self._choice(1, 2, 3))
        ]
        return {
            "id": "1",
            "call_digest": self._often("c", "d"),
            "age_seconds": self._often(1, 60, 61),
            "grants": grants,
        }

    def _request(self, entry: dict[str, Any], tool: str) -> dict[str, Any]:
        properties: dict[str, Any] = {
            "scopes": self._often(self.names, self._some()),
            "clearances": self._often(self.names, self._some()),
            "roles": self._some(),
            **self._stated(limits=self._caps(), entitlements=self._entitlements()),
        }
        if self._random.randrange(4) == 0:
            properties["act"] = self._act()
        if self._rarely():
            properties["iss"] = self._name()
        kind = self._choice("tool", "tool", "tool", "corpus", "document")
        if entry.get("pattern") == "search":
            kind = self._often("corpus", "document")
        marked = {"markings": self._often([], self._some())} if self._random.randrange(2) else {}
        return {
            "subject": {"type": "user", "id": self._name(), "properties": properties},
            "action": {
                "name": self._often(entry["pdp_action"], self._name()),
                "properties": {"tool": tool, "manifest_version": self._often("1", "2")},
            },
            "resource": {"type": kind, "id": self._name(), "properties": marked},
            "context": self._context(entry),
        }

    def _context(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return a random context. A field with the value None is left out with a probability of one half."""
        context = {
            "arguments": {name: self._often(self._choice(*_AMOUNTS), -1, "1", None, True, "") for name in self.names},
            "agent": self._choice(None, None, self._name()),
            "purpose": self._often(self._choice(*(entry.get("purposes") or self.names)), "", None, self._name()),
            "idempotency_key": self._choice(self._name(), self._name(), "", None),
            "call_digest": "c",
            "approval": self._approval() if self._random.randrange(4) == 0 else None,
        }
        return {name: value for name, value in context.items() if value is not None or self._random.randrange(2)}
