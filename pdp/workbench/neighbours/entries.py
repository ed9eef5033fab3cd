"""Synthetic tools: manifest entries with combinations of fields that the tools of a project may not have."""

from typing import Any, Final

from pdp.json import canonical, digest
from pdp.manifest.fields import PATTERN_EFFECTS, SUBJECT, EffectClass, Pattern, RiskTier

MADE_UP: Final = "made."
"""The prefix of all synthetic names and ids."""

_MARKING: Final = "made.marking"
_OTHER_MARKING: Final = "made.other-marking"
CORPUS: Final = "made.corpus"
DIRECTORY: Final[dict[str, Any]] = {
    "corpora": {
        CORPUS: {"markings": [_MARKING]},
        "made.plain": {"markings": []},
        "made.mistyped": {"markings": "x"},
    },
    "documents": {
        "made.document": {"corpus": CORPUS, "markings": [_OTHER_MARKING]},
        "made.restricted": {"corpus": CORPUS, "restricted": True},
        "made.mistyped": {"markings": [], "restricted": "no"},
        "made.dangling": {"corpus": "made.nowhere", "markings": []},
    },
    "entitlements": {"made.entitled": {"corpora": [CORPUS], "documents": ["made.restricted"]}},
}
"""Corpora and documents for the synthetic tools, in addition to those of the bundle."""

_ENTRY: Final[dict[str, Any]] = {
    "scopes": ["made.read", "made.write"], "markings": [_MARKING, _OTHER_MARKING], "purposes": ["made.purpose"],
    "limits": [{"limit": "made.limit", "argument": "amount"}], "idempotency": {"required": True},
    "approval": {
        "approvers": ["made.approver"], "quorum": 2, "expires": "PT1H", "expires_seconds": 3600,
        "unless_within_limits": True,
    },
    "provenance": {"required": ["sources"]}, "writes": "none", "version": "1.0.0",
    "release": {"gate": "passed", "drift": "ok"},
}  # fmt: skip
_BY_ONE: Final = {**_ENTRY["approval"], "quorum": 1, "unless_within_limits": False}
_PLAIN: Final[dict[str, Any]] = {
    "purposes": None, "limits": [], "provenance": {"required": []}, "approval": _BY_ONE, "release": None,
}  # fmt: skip
"""The fields of an entry that requires only scopes and idempotency; None removes a field."""

_LABELLED: Final[dict[str, Any]] = {
    **_PLAIN, "risk_tier": RiskTier.LOW, "effect_class": EffectClass.STAGE, "admits": [_MARKING],
    "roles": {"amount": "value", "file": "object", "text": "body", "to": "destination"},
}  # fmt: skip
_OTHERS: Final[dict[str, dict[str, Any]]] = {
    "made_bare": {**_PLAIN, "scopes": [], "markings": [], "idempotency": {"required": False}},
    "made_unlimited": {**_PLAIN, "release": _ENTRY["release"]},
    "made_for_nobody": {"purposes": [], "markings": []},
    "made_two_limits": {"limits": [*_ENTRY["limits"], {"limit": "made.other", "argument": "count"}],
                        "approval": {**_BY_ONE, "unless_within_limits": True}},
    **{f"made_by_{quorum}": {**_PLAIN, "approval": {**_BY_ONE, "quorum": quorum}} for quorum in (3, 4, 5)},
    "made_by_own": {**_PLAIN, "approval": {**_BY_ONE, "approvers": [SUBJECT]}},
    "made_soon": {**_PLAIN, "approval": {**_BY_ONE, "expires": "PT1M", "expires_seconds": 60}},
    "made_lasting": {**_PLAIN, "limits": _ENTRY["limits"], "approval": {
        **_BY_ONE, "lasting": {"reaches": ["run", "until"], "max_seconds": 86400, "uses": 100},
    }},
    "made_labelled": {**_LABELLED, "flow": {"profile": "balanced"}},
    "made_labelled_plain": {**_LABELLED, "flow": {"profile": "strict"}, "roles": {}, "destructive": True},
    "made_labelled_read": {**_LABELLED, "effect_class": EffectClass.READ_INTERNAL, "roles": {"page": "url"},
                           "flow": {"profile": "watch", "rules": ["address_untrusted"], "otherwise": "deny"}},
}  # fmt: skip


def synthetic_manifests() -> dict[str, dict[str, Any]]:
    """Return the documents of synthetic manifests by digest. Their tools have every effect class, tier and pattern."""
    tools: dict[str, dict[str, Any]] = {}

    def add(name: str, **fields: Any) -> None:
        stated = {key: str(value) if isinstance(value, str) else value for key, value in fields.items()}
        whole = {**_ENTRY, **stated, "name": name, "pdp_action": name}
        tools[name] = {key: value for key, value in whole.items() if value is not None}

    for effect in (*EffectClass, None):
        for tier in (*RiskTier, None):
            add(f"made_{_word(effect)}_{_word(tier)}", effect_class=effect, risk_tier=tier)
        add(f"made_{_word(effect)}_plain", effect_class=effect, risk_tier=RiskTier.LOW, **_PLAIN)
    for pattern in Pattern:
        name = f"made_{_word(pattern)}"
        add(name, effect_class=PATTERN_EFFECTS[pattern], risk_tier=RiskTier.LOW, pattern=pattern)
    for name, fields in _OTHERS.items():
        add(name, **{"effect_class": EffectClass.COMMIT_LOW, "risk_tier": RiskTier.HIGH, **fields})
    add("made_pinned", effect_class=EffectClass.STAGE, risk_tier=RiskTier.LOW)
    pinned = {"made_pinned": tools.pop("made_pinned")}
    agents = {"agent:made": {"made_pinned": "1.0.0"}, "agent:other": {"made_pinned": "2.0.0"}}
    contents: tuple[dict[str, Any], ...] = ({"tools": tools}, {"tools": pinned, "agents": agents})
    documents = ({"manifest_version": "made-up", **content} for content in contents)
    return {digest(canonical(document)): document for document in documents}


def _word(value: str | None) -> str:
    return "unstated" if value is None else value.replace("-", "_")
