"""A manifest entry made ready for calls: its schema and its mappings compiled once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pdp.manifest.expressions import Expression, compile_check, compile_expression
from pdp.manifest.fields import duration_seconds
from pdp.manifest.schemas import closed_schema, compile_schema
from pdp.request import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.manifest.effective import EffectiveManifest
    from pdp.manifest.models import Tool


class CompiledTool:
    """One effective entry, ready for calls.

    Attributes:
        entry: the effective entry.
        action: the request's action, the same for every call of the tool.
        validator: of the arguments; closed against unknown ones.
        invariants: the structural rules, each with its condition.
        resource, context: the mappings, by the field that each fills; without one, empty.
        timeout: seconds that the tool may take, or None.
    """

    def __init__(self, entry: Tool, manifest: EffectiveManifest) -> None:
        self.entry = entry
        self.action = Action(
            name=entry.pdp_action,
            properties={"tool": entry.name, "manifest_version": manifest.version, "manifest_digest": manifest.digest},
        )
        self.validator = compile_schema(closed_schema(entry.schema_))
        self.invariants = tuple((invariant, compile_check(invariant.check)) for invariant in entry.invariants)
        self.resource = _compiled(entry.resource)
        self.context = _compiled(entry.context)
        self.timeout = duration_seconds(entry.timeout) if entry.timeout else None


def _compiled(mapping: Mapping[str, Any] | None) -> dict[str, Expression]:
    return {name: compile_expression(value) for name, value in (mapping or {}).items()}


class CompiledManifest:
    """The tools of one effective manifest, each compiled when it is first called.

    Compiling all at once would make a manifest of 10,000 tools slow to start with, for tools that nobody calls.
    """

    def __init__(self, manifest: EffectiveManifest) -> None:
        self.manifest = manifest
        self._tools: dict[str, CompiledTool] = {}
        self._lock = threading.Lock()

    def tool(self, name: str) -> CompiledTool | None:
        """Return the tool of that exact name, or None when the manifest has none."""
        found = self._tools.get(name)
        if found is None:
            entry = self.manifest.tools.get(name)
            if entry is None:
                return None
            with self._lock:
                found = self._tools.get(name)
                if found is None:
                    found = self._tools[name] = CompiledTool(entry, self.manifest)
        return found
