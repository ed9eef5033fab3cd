"""A second implementation of the baseline's concerns, in Python. It returns findings and verdict of a valid call.

The source is docs/explanation/baseline.md, not the Rego. So a mistake stays unnoticed only if both implementations
have the mistake. The concern `flow` is left out, because the entries of the small universe have no labels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Json = Any

GATES: dict[str | None, tuple[str, ...]] = {
    None: ("scope",), "pure": (), "read-internal": ("scope",), "read-external": ("scope", "purpose"),
    "stage": ("scope",), "commit-low": ("scope", "policy"), "commit-high": ("scope", "policy"),
}  # fmt: skip
PATTERNS = {
    "extraction": "pure", "lookup": "read-external", "validation": "pure", "classification": "pure",
    "composition": "pure", "action-staging": "stage", "approval-request": "commit-low", "aggregation": "read-internal",
    "conversion": "pure", "search": "read-internal",
}  # fmt: skip


@dataclass(frozen=True)
class Findings:
    """The reason codes that the concerns return for a call. If the call is allowed, also the ids of its obligations."""

    deny: frozenset[str]
    step_up: frozenset[str]
    obligations: frozenset[str]
    granted: bool
    approved: bool

    @property
    def verdict(self) -> str:
        if self.deny or not self.granted:
            return "DENY"
        return "STEP_UP" if self.step_up and not self.approved else "ALLOW"

    @property
    def codes(self) -> frozenset[str] | None:
        """The reason codes of a DENY or a STEP_UP. None for ALLOW."""
        if self.verdict == "DENY":
            return self.deny or frozenset({"decision.nothing_allows"})
        return self.step_up if self.verdict == "STEP_UP" else None


class Call:
    """A request with its manifest entry, the whole manifest, and the directory."""

    def __init__(self, request: Json, manifest: Json, directory: Json) -> None:
        self.subject, self.properties = request["subject"], request["subject"]["properties"]
        self.action, self.resource, self.context = request["action"], request["resource"], request["context"]
        self.manifest, self.directory = manifest, directory
        self.tool = self.action["properties"]["tool"]
        self.entry = manifest["tools"][self.tool]
        self.agents: list[Json] = []
        act = self.properties.get("act")
        while act:
            self.agents.append(act)
            act = act.get("act")
        self.document = directory["documents"].get(self.resource["id"]) if self.resource["type"] == "document" else None

    def findings(self) -> Findings:
        exceeded = self._exceeded()
        approved = self._approved()
        step_up = {"limits.exceeded"} if exceeded else set()
        if self._person_needed() and not self._excused(exceeded) and not exceeded:
            step_up.add("approvals.required")
        return Findings(
            deny=frozenset(self._denials(approved=approved)),
            step_up=frozenset(step_up),
            obligations=frozenset(self._obligations()),
            granted=self._granted(),
            approved=approved,
        )

    def _denials(self, *, approved: bool) -> Iterator[str]:
        entry, properties = self.entry, self.properties
        markings = self._markings()
        if set(entry["scopes"]) - set(properties["scopes"]):
            yield "scopes.missing"
        yield from self._of_markings(markings)
        yield from self._of_purpose()
        if entry.get("pattern") and PATTERNS[entry["pattern"]] != entry.get("effect_class", "unclassified"):
            yield "effects.pattern_mismatch"
        if any(not self._is_amount(limit["argument"]) for limit in entry["limits"]):
            yield "limits.invalid"
        if self.context.get("approval") is not None and not approved:
            yield "approvals.invalid"
        if entry["idempotency"]["required"] and not self.context.get("idempotency_key"):
            yield "idempotency.key_missing"
        if any(self.context["arguments"].get(name) in (None, "") for name in entry["provenance"]["required"]):
            yield "provenance.missing"
        if self._entitlement_needed() and not (
            self._covers(properties.get("entitlements", {}))
            or self._covers(self.directory["entitlements"].get(self.subject["id"], {}))
        ):
            yield "documents.not_entitled"
        if any(self._exceeds(agent, markings) for agent in self.agents):
            yield "delegation.exceeds_agent"
        yield from self._of_manifest()

    def _of_markings(self, markings: set[str]) -> Iterator[str]:
        if markings - set(self.properties["clearances"]):
            yield "markings.not_cleared"
        if markings - set(self.entry.get("markings", [])):
            yield "markings.not_allowed"
        if self.document and "corpus" in self.document and self.document["corpus"] not in self.directory["corpora"]:
            yield "markings.unreadable"

    def _of_purpose(self) -> Iterator[str]:
        stated = bool(self.context.get("purpose"))
        if not stated and ("purposes" in self.entry or self.entry.get("effect_class") == "read-external"):
            yield "purposes.missing"
        if stated and not self._purpose_allowed():
            yield "purposes.not_allowed"

    def _of_manifest(self) -> Iterator[str]:
        if self.manifest["manifest_version"] != self.action["properties"]["manifest_version"]:
            yield "manifest.mismatch"
        elif self.entry["pdp_action"] != self.action["name"]:
            yield "manifest.unknown_action"
        pins = self.manifest.get("agents")
        if pins is not None:
            names = {agent["sub"] for agent in self.agents} | ({self.context.get("agent")} - {None})
            if not names or any(pins.get(name, {}).get(self.tool) != self.entry["version"] for name in names):
                yield "manifest.not_pinned"
        release = self.entry.get("release")
        if release is not None and release != {"gate": "passed", "drift": "ok"}:
            yield "manifest.not_released"

    def _granted(self) -> bool:
        gate = list(GATES[self.entry.get("effect_class")])
        if self.entry.get("pattern") == "extraction" and self.entry.get("effect_class") == "pure":
            gate = ["scope"]
        holds = {
            "scope": bool(self.entry["scopes"]) and set(self.entry["scopes"]) <= set(self.properties["scopes"]),
            "purpose": bool(self.context.get("purpose")) and self._purpose_allowed(),
            "policy": self.entry.get("risk_tier") in ("low", "medium", "high"),
        }
        return all(holds[clause] for clause in gate)

    def _purpose_allowed(self) -> bool:
        return "purposes" not in self.entry or self.context.get("purpose") in self.entry["purposes"]

    def _is_amount(self, argument: str) -> bool:
        value = self.context["arguments"].get(argument)
        return type(value) in (int, float) and value >= 0

    def _exceeded(self) -> bool:
        held = [self.properties.get("limits", {}), *(agent["limits"] for agent in self.agents if "limits" in agent)]
        return any(
            self._is_amount(limit["argument"])
            and any(limit["limit"] not in caps or self.context["arguments"][limit["argument"]] > caps[limit["limit"]]
                    for caps in held)
            for limit in self.entry["limits"]
        )  # fmt: skip

    def _person_needed(self) -> bool:
        return self.entry.get("risk_tier") not in ("low", "medium") or self.entry.get("effect_class") == "commit-high"

    def _excused(self, exceeded: bool) -> bool:
        kept = (
            self.entry["limits"] and not exceeded and all(self._is_amount(o["argument"]) for o in self.entry["limits"])
        )
        return bool(kept) and self.entry.get("approval", {}).get("unless_within_limits") is True

    def _markings(self) -> set[str]:
        records = [self.document] if self.document else []
        if self.document and self.document.get("corpus") in self.directory["corpora"]:
            records.append(self.directory["corpora"][self.document["corpus"]])
        if self.resource["type"] == "corpus" and self.resource["id"] in self.directory["corpora"]:
            records.append(self.directory["corpora"][self.resource["id"]])
        stated = [part["markings"] for part in (self.resource["properties"], *records) if "markings" in part]
        return {marking for part in stated or [self.entry.get("markings", [])] for marking in part}

    def _entitlement_needed(self) -> bool:
        return self.resource["type"] in ("corpus", "document") or self.entry.get("pattern") == "search"

    def _covers(self, entitlements: Json) -> bool:
        kind, name = self.resource["type"], self.resource["id"]
        if kind == "corpus":
            return name in entitlements.get("corpora", [])
        if kind != "document":
            return False
        of_corpus = self.document and not self.document.get("restricted") and self.document.get("corpus")
        return bool(name in entitlements.get("documents", []) or of_corpus in entitlements.get("corpora", []))

    def _exceeds(self, agent: Json, markings: set[str]) -> bool:
        return bool(
            set(self.entry["scopes"]) - set(agent.get("scopes", []))
            or ("clearances" in agent and markings - set(agent["clearances"]))
            or ("purposes" in agent and self.context.get("purpose") not in agent["purposes"])
            or ("entitlements" in agent and self._entitlement_needed() and not self._covers(agent["entitlements"]))
        )

    def _approved(self) -> bool:
        approval, asked = self.context.get("approval"), self.entry.get("approval", {})
        if approval is None or approval["call_digest"] != self.context.get("call_digest"):
            return False
        if approval["age_seconds"] > asked.get("expires_seconds", -1) or asked.get("quorum", 0) < 1:
            return False
        people = {(grant.get("iss"), grant["sub"]) for grant in approval["grants"] if self._counts(grant)}
        # A grant without an issuer does not count if a grant of the same name has an issuer, because one person may
        # have made both grants.
        known = {name for issuer, name in people if issuer}
        return bool(sum(1 for issuer, name in people if issuer or name not in known) >= asked["quorum"])

    def _counts(self, grant: Json) -> bool:
        me = {"sub": self.subject["id"], "iss": self.properties.get("iss")}
        if any(_may_be_same(grant, agent) for agent in self.agents) or grant["sub"] == self.context.get("agent"):
            return False
        approvers = set(self.entry["approval"].get("approvers", []))
        if (set(grant["roles"]) & approvers) - {"$subject"} and not _may_be_same(grant, me):
            return True
        return (
            "$subject" in approvers
            and grant["roles"] == ["$subject"]
            and self.entry.get("effect_class") != "commit-high"
            and bool(self.agents or self.context.get("agent"))
            and (grant["sub"], grant.get("iss")) == (me["sub"], me["iss"])
        )

    def _obligations(self) -> Iterator[str]:
        pattern = self.entry.get("pattern")
        if pattern == "search":
            yield "pin_retrieval_snapshot"
        if pattern == "composition":
            yield "draft_only"
        inherits = pattern in ("search", "aggregation") or self.resource["type"] in ("corpus", "document")
        if inherits and self._markings():
            yield "mark_result"


def _may_be_same(first: Json, second: Json) -> bool:
    """Return whether both names may belong to the same person: the names are equal and the issuers do not differ."""
    return first["sub"] == second["sub"] and (
        not first.get("iss") or not second.get("iss") or first["iss"] == second["iss"]
    )
