"""Entries near a tool's own, for a search that finds no difference in requests alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.manifest.fields import EffectClass, Pattern, RiskTier

if TYPE_CHECKING:
    from collections.abc import Iterator

_GONE: Final = object()
_FIELDS: Final[dict[str, tuple[Any, ...]]] = {
    "risk_tier": (*(tier.value for tier in RiskTier), "unheard-of", None, 7, _GONE),
    "effect_class": (*(each.value for each in EffectClass), "unheard-of", None, 7, _GONE),
    "pattern": (*(each.value for each in Pattern), "unheard-of", None, 7, _GONE),
    "scopes": ([], None, "a text", _GONE),
    "markings": ([], ["pii.medium"], None, "a text", _GONE),
    "purposes": ([], ["somewhere.else"], None, "a text", _GONE),
    "limits": ([], [{"limit": 7, "argument": "amount"}], [{"limit": "a.limit", "argument": 7}], None, _GONE),
    "idempotency": ({"required": True}, {"required": False}, {"required": "yes"}, {}, None, _GONE),
    "provenance": ({"required": []}, {"required": ["source_ids"]}, {"required": "a text"}, {}, None, _GONE),
    "release": (
        {"gate": "passed", "drift": "ok"}, {"gate": "failed", "drift": "ok"}, {"gate": "passed", "drift": "high"},
        {"gate": "passed"}, {}, None, "a text",
    ),
    "approval": ({}, None, "a text", _GONE),
    "version": ("9.9.9", None, _GONE),
    "pdp_action": ("another_action", None, _GONE),
}  # fmt: skip
_APPROVAL: Final[dict[str, tuple[Any, ...]]] = {
    "quorum": (0, 1, 2, 3, "1", None, _GONE),
    "approvers": ([], ["another.role"], None, "a text", _GONE),
    "expires_seconds": (0, 59, 60, 3600, "60", None, _GONE),
    "unless_within_limits": (True, False, "true", None, _GONE),
}


def variants(entry: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield entries with one field changed each, and what was changed, as a person would write it."""
    for name, value, changed in _each(entry, _FIELDS):
        yield _said(name, value), changed
    approval = entry.get("approval")
    if isinstance(approval, dict):
        for name, value, changed in _each(approval, _APPROVAL):
            yield _said(f"approval.{name}", value), entry | {"approval": changed}


def _each(record: dict[str, Any], fields: dict[str, tuple[Any, ...]]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for name, values in fields.items():
        for value in values:
            if value is _GONE:
                if name in record:
                    yield name, value, {key: each for key, each in record.items() if key != name}
            elif record.get(name, _GONE) != value:
                yield name, value, record | {name: value}


def _said(name: str, value: Any) -> str:
    return f"without {name}" if value is _GONE else f"{name}: {value}"
