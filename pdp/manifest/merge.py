"""Merge what the manifest and the governance file state of one action: where both state a field, the stricter holds.

A field that only one side states holds as stated. Where both do: union of scopes, limits, provenance and sensitive
arguments; intersection of markings, purposes and approvers, and an empty intersection admits nobody; the higher tier,
the heavier effect class, the larger quorum, the shorter expiry; required when either requires, not excepted when either
does not except. Members of the two mappings that both state are the governance file's: the mapping feeds the policy, so
its author has the last word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pdp.manifest.fields import EffectClass, Writes, duration_seconds
from pdp.manifest.fields import RiskTier as Tier
from pdp.manifest.model import ActionRules
from pdp.manifest.records import Approval, Idempotency, Limit, Provenance

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import StrEnum

    from pdp.manifest.model import Governable

Value = TypeVar("Value")
Ranked = TypeVar("Ranked", bound="StrEnum")
Terms = tuple[str, ...] | None


def merged_fields(tool: Governable, rules: ActionRules | None) -> dict[str, Any]:
    """Return the governable fields of the effective entry; what neither side states is None.

    Lists in which order means nothing are sorted, each item once, so that the same content is the same value.
    """
    other = rules or ActionRules()
    return {
        "effect_class": _both(tool.effect_class, other.effect_class, _heavier(EffectClass)),
        "risk_tier": _both(tool.risk_tier, other.risk_tier, _heavier(Tier)),
        "scopes": _union(tool.scopes, other.scopes),
        "markings": _intersection(tool.markings, other.markings),
        "purposes": _intersection(tool.purposes, other.purposes),
        "idempotency": _both(tool.idempotency, other.idempotency, _idempotency),
        "limits": _limits(tool.limits, other.limits),
        "resource": _both(tool.resource, other.resource, _mapping),
        "context": _both(tool.context, other.context, _mapping),
        "approval": _approval(tool.approval, other.approval),
        "provenance": _provenance(tool.provenance, other.provenance),
        "writes": _both(tool.writes, other.writes, _heavier(Writes)),
        "sensitive": _union(tool.sensitive, other.sensitive),
    }


def _both(first: Value | None, second: Value | None, join: Callable[[Value, Value], Value]) -> Value | None:
    if first is None:
        return second
    return first if second is None else join(first, second)


def _heavier(ranks: type[Ranked]) -> Callable[[Ranked, Ranked], Ranked]:
    order = list(ranks)  # lightest first
    return lambda first, second: max(first, second, key=order.index)


def _union(first: Terms, second: Terms) -> Terms:
    joined = _both(first, second, lambda one, other: (*one, *other))
    return None if joined is None else tuple(sorted(set(joined)))


def _intersection(first: Terms, second: Terms) -> Terms:
    joined = _both(first, second, lambda one, other: tuple(set(one) & set(other)))
    return None if joined is None else tuple(sorted(set(joined)))


def _limits(first: tuple[Limit, ...] | None, second: tuple[Limit, ...] | None) -> tuple[Limit, ...] | None:
    joined = _both(first, second, lambda one, other: (*one, *other))
    if joined is None:
        return None
    each = {(limit.limit, limit.argument): limit for limit in joined}
    return tuple(each[key] for key in sorted(each))


def _mapping(declared: dict[str, Any], governed: dict[str, Any]) -> dict[str, Any]:
    return {**declared, **governed}


# A key that is remembered for longer protects for longer from a second effect.
def _idempotency(first: Idempotency, second: Idempotency) -> Idempotency:
    return Idempotency(
        required=first.required or second.required,
        key=first.key or second.key,
        ttl=_both(first.ttl, second.ttl, lambda one, other: max(one, other, key=duration_seconds)),
    )


def _approval(first: Approval | None, second: Approval | None) -> Approval | None:
    if first is None and second is None:
        return None
    one, other = first or Approval(), second or Approval()
    return Approval(
        approvers=_intersection(one.approvers, other.approvers),
        quorum=_both(one.quorum, other.quorum, max),
        expires=_both(one.expires, other.expires, lambda left, right: min(left, right, key=duration_seconds)),
        unless_within_limits=_both(
            one.unless_within_limits, other.unless_within_limits, lambda left, right: left and right
        ),
    )


def _provenance(first: Provenance | None, second: Provenance | None) -> Provenance | None:
    if first is None and second is None:
        return None
    required = {*(first or Provenance()).required, *(second or Provenance()).required}
    return Provenance(required=tuple(sorted(required)))
