"""The base requests of the witnesses: six calls and a plan, which the unchanged policies allow."""

from copy import deepcopy
from typing import Any, Final

DIGEST: Final = f"sha256:{'0' * 64}"

# This custom concern returns the findings that the request contains, so that a witness can produce any finding.
PROBE_FILE: Final = "custom/concerns/probe/probe.rego"
PROBE: Final = "package custom.concerns.probe\n" + "".join(
    f"\n{part} contains item if some item in input.context.probe.{part}\n"
    for part in ("deny", "step_up", "allow", "obligations")
)

_WIRE: Final[dict[str, Any]] = {
    "request": {
        "subject": {
            "type": "user",
            "id": "officer-123",
            "properties": {
                "scopes": ["payments.wire.initiate"],
                "clearances": ["pii"],
                "limits": {"wire.auto_approved": 25000},
                "entitlements": {"corpora": ["hr"]},
            },
        },
        "action": {
            "name": "initiate_wire",
            "properties": {"tool": "initiate_wire", "manifest_version": "2026.07.1", "manifest_digest": DIGEST},
        },
        "resource": {"type": "wire_payment", "id": "bene-acme-441", "properties": {}},
        "context": {"arguments": {"amount": 20000, "reference": "INV-8842"}, "idempotency_key": "idm-4a2b"},
    },
    "entry": {
        "name": "initiate_wire",
        "pdp_action": "initiate_wire",
        "version": "2.1.0",
        "risk_tier": "high",
        "scopes": ["payments.wire.initiate"],
        "limits": [{"limit": "wire.auto_approved", "argument": "amount"}],
        "idempotency": {"required": True},
        "approval": {
            "approvers": ["payments.approver"], "quorum": 1, "expires_seconds": 3600, "unless_within_limits": True,
        },
        "provenance": {"required": []},
    },
    "manifest": {"manifest_version": "2026.07.1"},
    "directory": {
        "corpora": {"hr": {"markings": ["pii"]}, "open": {"markings": []}},
        "documents": {"handbook": {"corpus": "hr", "markings": []}},
        "entitlements": {},
        "planning": {
            "CITED": {"purposes": ["medical"], "requires": ["answer", "cite"]},
            "ONE_SEARCH": {"tool": "search", "at_most": 1},
            "READ_FIRST": {"tool": "write", "only_after": ["read", "lookup"]},
        },
    },
    "settings": {},
    "config": {"required_concerns": ["effects"], "bundle": None},
}  # fmt: skip


def _approved() -> dict[str, Any]:
    """Return a wire whose amount exceeds the limit of the wire, approved by a person."""
    base = deepcopy(_WIRE)
    context = base["request"]["context"]
    context["arguments"]["amount"] = 47500
    context["call_digest"] = "sha256:call"
    context["approval"] = {
        "id": "apr-1",
        "call_digest": "sha256:call",
        "age_seconds": 300,
        "grants": [{"sub": "ann", "iss": "a", "roles": ["payments.approver"]}],
    }
    return base


def _own() -> dict[str, Any]:
    """Return a wire that an agent requested and that the subject of the agent has approved."""
    base = _approved()
    subject = base["request"]["subject"]["properties"]
    subject |= {"iss": "a", "act": {"sub": "agent:a", "scopes": subject["scopes"]}}
    base["request"]["context"]["approval"]["grants"] = [{"sub": "officer-123", "iss": "a", "roles": ["$subject"]}]
    base["entry"]["approval"]["approvers"] = ["payments.approver", "$subject"]
    return base


def _corpus() -> dict[str, Any]:
    """Return a call that reads a corpus with markings."""
    base = deepcopy(_WIRE)
    base["request"]["resource"] = {"type": "corpus", "id": "hr", "properties": {}}
    base["entry"] |= {"effect_class": "read-internal", "risk_tier": "low", "limits": [], "markings": ["pii"]}
    return base


def _run() -> dict[str, Any]:
    """Return a wire in a run that has read untrusted text. The user named the recipient in the prompt."""
    base = deepcopy(_WIRE)
    base["entry"] |= {"risk_tier": "low", "limits": [], "flow": {"profile": "balanced"}}
    recipient = {
        "path": "/recipient", "role": "destination", "sources": ["prompt"], "from": [], "home": False, "links": [],
    }  # fmt: skip
    base["request"]["context"]["flow"] = {
        "tainted": True, "untrusted": ["read_mail"], "markings": [], "plan": None, "anchored": True,
        "intended": False, "arguments": [recipient],
    }  # fmt: skip
    return base


def _sum() -> dict[str, Any]:
    """Return a wire that uses up a daily limit."""
    base = deepcopy(_WIRE)
    window = {"days": 1, "from": "midnight"}
    base["entry"]["limits"] = [{"limit": "wire.daily", "argument": "amount", "per": "subject", "window": window}]
    base["request"]["subject"]["properties"]["limits"] = {"wire.daily": 100}
    spent = {"limit": "wire.daily", "used": 80, "amount": 20, "total": 100, "window_ends": "2026-07-02T00:00:00Z"}
    base["request"]["context"] |= {"arguments": {"amount": 20}, "spent": [spent]}
    return base


def _plan() -> dict[str, Any]:
    return {**deepcopy(_WIRE), "request": {"steps": [{"tool": "search"}], "context": {"purpose": "chat"}}}


BASES: Final = {
    "wire": _WIRE, "approved": _approved(), "own": _own(), "corpus": _corpus(), "run": _run(), "sum": _sum(),
    "plan": _plan(),
}  # fmt: skip
