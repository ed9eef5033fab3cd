"""Requests written by hand, for a step `request`: what a scenario cannot know by itself is filled in.

Digests change with every edit of the manifest, so a scenario writes `$manifest_digest`, `$manifest_version` or
`$call_digest` as the whole of a string, wherever the value belongs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.contract.mapping import call_digest
from pdp.errors import UsageError
from pdp.request import Entity, Request, RequestedAction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.manifest.effective import EffectiveManifest


CALL_DIGEST: Final = "$call_digest"
"""The digest of the request itself, without its time, request ids and approval."""


def filled_in(request: Any, manifest: EffectiveManifest) -> Any:
    """Return the request with the names above replaced; the rest is as it was written.

    Raises:
        UsageError: it has `$call_digest`, and not the shape of which that could be made.
    """
    known = {"$manifest_digest": manifest.digest, "$manifest_version": manifest.version}
    filled = _replaced(request, known)
    if _has(filled, CALL_DIGEST):
        filled = _replaced(filled, {CALL_DIGEST: _digest(filled)})
    return filled


def _replaced(value: Any, known: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(each, known) for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, known) for each in value]
    return known.get(value, value) if isinstance(value, str) else value


def _has(value: Any, text: str) -> bool:
    if isinstance(value, dict):
        return any(_has(each, text) for each in value.values())
    if isinstance(value, list):
        return any(_has(each, text) for each in value)
    return bool(value == text)


def _digest(request: Any) -> str:
    try:
        return call_digest(
            Request(
                Entity(**request["subject"]),
                RequestedAction(**request["action"]),
                Entity(**request["resource"]),
                dict(request["context"]),
            )
        )
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            f"`{CALL_DIGEST}` cannot be made of a request without whole subject, action, resource and context",
            hint="write any text that looks like a digest instead",
        ) from None
