"""Entries that no manifest of the bundles has: every tier, effect class and pattern, and such as no loader admits.

They are given to both engines as manifests of their own, so that a policy is tried also where today's tools do not go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pdp.json import canonical, digest
from pdp.manifest.fields import PATTERN_EFFECTS, EffectClass, Pattern, RiskTier
from pdp.workbench.diff.grid.entry_variants import variants

VERSION: Final = "grid"
AGENT: Final = "agent:grid"
CORPUS: Final = "grid.corpus"
DIRECTORY: Final[dict[str, Any]] = {
    "corpora": {
        CORPUS: {"markings": ["grid.marking"]},
        "grid.plain": {"markings": []},
        "grid.mistyped": {"markings": "x"},
    },
    "documents": {
        "grid.document": {"corpus": CORPUS, "markings": ["grid.secret"]},
        "grid.restricted": {"corpus": CORPUS, "restricted": True},
        "grid.mistyped": {"markings": [], "restricted": "no"},
        "grid.dangling": {"corpus": "grid.nowhere", "markings": []},
    },
    "entitlements": {"grid.entitled": {"corpora": [CORPUS], "documents": ["grid.restricted"]}},
}
"""Corpora and documents for the entries below, beside those of the bundles."""

_ENTRY: Final[dict[str, Any]] = {
    "scopes": ["grid.read", "grid.write"],
    "markings": ["grid.marking", "grid.secret"],
    "purposes": ["grid.purpose"],
    "limits": [{"limit": "grid.limit", "argument": "amount"}],
    "idempotency": {"required": True},
    "approval": {
        "approvers": ["grid.approver"], "quorum": 2, "expires": "PT1H", "expires_seconds": 3600,
        "unless_within_limits": True,
    },
    "provenance": {"required": ["sources"]},
    "writes": "none",
    "version": "1.0.0",
    "release": {"gate": "passed", "drift": "ok"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Probe:
    """One entry, and how thoroughly it is tried.

    Attributes:
        tool: its name.
        digest: of its manifest.
        entry: itself.
        pairs: whether pairs of departures are tried.
        hostile: whether mistyped requests are tried.
        brief: whether only a few calls of it are tried.
    """

    tool: str
    digest: str
    entry: dict[str, Any]
    pairs: bool = False
    hostile: bool = False
    brief: bool = False


def probes() -> tuple[dict[str, dict[str, Any]], tuple[Probe, ...]]:
    """Return the manifests of the probes by digest, and the probes."""
    plain: dict[str, tuple[dict[str, Any], bool, bool, bool]] = {}
    for effect in (*EffectClass, None):
        for tier in (*RiskTier, None):
            first = tier is RiskTier.LOW
            name = f"grid_{_word(effect)}_{_word(tier)}"
            hostile = first and effect in (EffectClass.COMMIT_HIGH, EffectClass.READ_EXTERNAL)
            plain[name] = _made(name, effect_class=effect, risk_tier=tier), first, hostile, False
        name = f"grid_{_word(effect)}_plain"
        plain[name] = _made(name, effect_class=effect, risk_tier=RiskTier.LOW, **_PLAIN), True, False, False
    for pattern in Pattern:
        name = f"grid_pattern_{_word(pattern)}"
        made = _made(name, effect_class=PATTERN_EFFECTS[pattern], risk_tier=RiskTier.LOW, pattern=pattern)
        plain[name] = made, pattern is Pattern.SEARCH, pattern is Pattern.SEARCH, False
        wrong = f"{name}_elsewhere"
        plain[wrong] = _made(wrong, effect_class=EffectClass.COMMIT_HIGH, risk_tier="low", pattern=pattern), *_BRIEF
    for name, fields in _SIMPLER.items():
        plain[name] = _made(name, **{"effect_class": "commit-low", "risk_tier": "high", **fields}), True, False, False
    base = _made("grid_variant", effect_class="commit-high", risk_tier="high")
    for at, (_, entry) in enumerate(variants(base)):
        name = f"grid_variant_{at}"
        plain[name] = _spelled(entry, name), *_BRIEF
    found = [_manifest({name: entry for name, (entry, *_) in plain.items()})]
    pinned = {"grid_pinned": _made("grid_pinned", effect_class="stage", risk_tier="low")}
    found.append(_manifest(pinned, agents={AGENT: {"grid_pinned": "1.0.0"}, "agent:other": {"grid_pinned": "2.0.0"}}))
    (everybody, first_document), (agents, second_document) = found
    found_probes = [
        Probe(name, everybody, entry, pairs=pairs, hostile=hostile, brief=brief)
        for name, (entry, pairs, hostile, brief) in plain.items()
    ]
    found_probes += [Probe(name, agents, entry, pairs=True) for name, entry in pinned.items()]
    return {everybody: first_document, agents: second_document}, tuple(found_probes)


_BRIEF: Final = (False, False, True)
_ONE: Final = {**_ENTRY["approval"], "quorum": 1, "unless_within_limits": False}
_PLAIN: Final[dict[str, Any]] = {
    "purposes": None, "limits": [], "provenance": {"required": []}, "approval": _ONE, "release": None,
}  # fmt: skip
"""What an entry states that demands little beside its scopes; None: not stated."""

_SIMPLER: Final[dict[str, dict[str, Any]]] = {
    "grid_bare": {"scopes": [], "markings": [], "purposes": None, "limits": [], "provenance": {"required": []},
                  "idempotency": {"required": False}, "approval": _ONE, "release": None},
    "grid_unlimited": {"limits": [], "approval": _ONE, "purposes": None, "provenance": {"required": []}},
    "grid_for_nobody": {"purposes": [], "markings": []},
    "grid_two_limits": {"limits": [*_ENTRY["limits"], {"limit": "grid.other", "argument": "count"}],
                        "approval": {**_ONE, "unless_within_limits": True}},
}  # fmt: skip
"""Entries that demand less, or otherwise; None: not stated."""


def _made(name: str, **fields: Any) -> dict[str, Any]:
    stated = {key: str(value) if isinstance(value, str) else value for key, value in fields.items()}
    whole = {**_ENTRY, **stated, "name": name, "pdp_action": name}
    return {key: value for key, value in whole.items() if value is not None}


def _spelled(entry: dict[str, Any], name: str) -> dict[str, Any]:
    known = {**entry, "name": name}
    # A variant may be one of the action's name, which then has to stay wrong.
    return {**known, "pdp_action": name} if known.get("pdp_action") == "grid_variant" else known


def _manifest(tools: dict[str, dict[str, Any]], **more: Any) -> tuple[str, dict[str, Any]]:
    document = {"manifest_version": VERSION, "tools": tools, **more}
    return digest(canonical(document)), document


def _word(value: str | None) -> str:
    return "unstated" if value is None else value.replace("-", "_")
