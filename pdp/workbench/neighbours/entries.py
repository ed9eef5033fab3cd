"""Entries that no manifest has, to try policies where no tool goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.json import canonical, digest
from pdp.manifest.fields import PATTERN_EFFECTS, EffectClass, Pattern, RiskTier
from pdp.workbench.neighbours.values import GONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MADE_UP: Final = "made."
"""What names of nobody and nothing begin with."""

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
"""Corpora and documents for the made-up entries, beside those that there are."""

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
"""What an entry states that demands little beside its scopes; None: not stated."""

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
    "made_by_many": {**_PLAIN, "approval": {**_BY_ONE, "quorum": 5}},
    "made_labelled": {**_LABELLED, "flow": {"profile": "balanced"}},
    "made_labelled_plain": {**_LABELLED, "flow": {"profile": "strict"}, "roles": {}, "destructive": True},
    "made_labelled_read": {**_LABELLED, "effect_class": EffectClass.READ_INTERNAL, "roles": {"page": "url"},
                           "flow": {"profile": "watch", "rules": ["address_untrusted"], "otherwise": "deny"}},
}  # fmt: skip
_FIELDS: Final[dict[str, tuple[Any, ...]]] = {
    "risk_tier": (*(tier.value for tier in RiskTier), "unheard-of", None, 7, GONE),
    "effect_class": (*(effect_class.value for effect_class in EffectClass), "unheard-of", None, 7, GONE),
    "pattern": (*(pattern.value for pattern in Pattern), "unheard-of", None, 7, GONE),
    "scopes": ([], None, "a text", GONE),
    "markings": ([], ["pii.medium"], None, "a text", GONE),
    "purposes": ([], ["somewhere.else"], None, "a text", GONE),
    "limits": ([], [{"limit": 7, "argument": "amount"}], [{"limit": "a.limit", "argument": 7}], None, GONE),
    "idempotency": ({"required": True}, {"required": False}, {"required": "yes"}, {}, None, GONE),
    "provenance": ({"required": []}, {"required": ["source_ids"]}, {"required": "a text"}, {}, None, GONE),
    "release": (
        {"gate": "passed", "drift": "ok"}, {"gate": "failed", "drift": "ok"}, {"gate": "passed", "drift": "high"},
        {"gate": "passed"}, {}, None, "a text",
    ),
    "approval": ({}, None, "a text", GONE),
    "version": ("9.9.9", None, GONE),
    "pdp_action": ("another_action", None, GONE),
}  # fmt: skip
_APPROVAL: Final[dict[str, tuple[Any, ...]]] = {
    "quorum": (0, 1, 2, 3, 4, 5, "1", None, GONE),
    "approvers": ([], ["another.role"], None, "a text", GONE),
    "expires_seconds": (0, 59, 60, 3600, "60", None, GONE),
    "unless_within_limits": (True, False, "true", None, GONE),
}


def made_up() -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return manifests that nobody wrote, as documents by their digest.

    Returns:
        those with an entry of every effect class, tier and pattern, one of them with pins; and one whose entries no
        loader admits, or that differ from another in a field: for these a few calls will do.
    """
    every: dict[str, dict[str, Any]] = {}
    few: dict[str, dict[str, Any]] = {}
    for effect in (*EffectClass, None):
        for tier in (*RiskTier, None):
            _add(every, f"made_{_word(effect)}_{_word(tier)}", effect_class=effect, risk_tier=tier)
        _add(every, f"made_{_word(effect)}_plain", effect_class=effect, risk_tier=RiskTier.LOW, **_PLAIN)
    for pattern in Pattern:
        name = f"made_{_word(pattern)}"
        _add(every, name, effect_class=PATTERN_EFFECTS[pattern], risk_tier=RiskTier.LOW, pattern=pattern)
        _add(few, f"{name}_elsewhere", effect_class=EffectClass.COMMIT_HIGH, risk_tier=RiskTier.LOW, pattern=pattern)
    for name, fields in _OTHERS.items():
        _add(every, name, **{"effect_class": EffectClass.COMMIT_LOW, "risk_tier": RiskTier.HIGH, **fields})
    pinned: dict[str, dict[str, Any]] = {}
    _add(pinned, "made_pinned", effect_class=EffectClass.STAGE, risk_tier=RiskTier.LOW)
    agents = {"agent:made": {"made_pinned": "1.0.0"}, "agent:other": {"made_pinned": "2.0.0"}}
    base = _add({}, "made_variant", effect_class=EffectClass.COMMIT_HIGH, risk_tier=RiskTier.HIGH)
    approvals = ({**base, "approval": approval} for approval in _with_others(base["approval"], _APPROVAL))
    for number, entry in enumerate((*_with_others(base, _FIELDS), *approvals)):
        name = f"made_variant_{number}"
        # A variant may be one of the action's name, which then has to stay wrong.
        action = {"pdp_action": name} if entry.get("pdp_action") == "made_variant" else {}
        few[name] = {**entry, "name": name, **action}
    return _manifests({"tools": every}, {"tools": pinned, "agents": agents}), _manifests({"tools": few})


def _manifests(*contents: dict[str, Any]) -> dict[str, dict[str, Any]]:
    documents = [{"manifest_version": "made-up", **content} for content in contents]
    return {digest(canonical(document)): document for document in documents}


def _add(entries: dict[str, dict[str, Any]], name: str, **fields: Any) -> dict[str, Any]:
    stated = {key: str(value) if isinstance(value, str) else value for key, value in fields.items()}
    whole = {**_ENTRY, **stated, "name": name, "pdp_action": name}
    entries[name] = {key: value for key, value in whole.items() if value is not None}
    return entries[name]


def _word(value: str | None) -> str:
    return "unstated" if value is None else value.replace("-", "_")


def _with_others(record: Mapping[str, Any], fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield records with one field changed each."""
    for name, values in fields.items():
        for value in values:
            if value is not GONE and record.get(name, GONE) != value:
                yield {**record, name: value}
            elif value is GONE and name in record:
                yield {key: other for key, other in record.items() if key != name}
