"""Whether a tool really takes what its manifest says that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdp.manifest.schema.differences import DEFAULT, Bump, schema_changes

if TYPE_CHECKING:
    from collections.abc import Mapping


def drift(declared: Mapping[str, Any], real: Mapping[str, Any]) -> list[str]:
    """Return, a line each, where the real schema of a tool's arguments is not what is declared of them.

    A tool may take more values than it is declared to: none of them reaches it. It may not take fewer, nor other
    arguments or defaults: what it has by itself for one that is not declared, or is left out, nobody decides upon.
    """
    changes = schema_changes(declared, real, "request")
    return [
        f"{change.path or 'arguments'}: {change.what}"
        for change in changes
        if change.bump is Bump.MAJOR or change.what.startswith(("is new", DEFAULT))
    ]
