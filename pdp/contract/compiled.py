"""A manifest entry made ready for calls: its schema and its mappings compiled once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from pdp.manifest.expressions import Expression, compile_expression
from pdp.manifest.schemas import closed_schema, compile_schema
from pdp.request import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.manifest.effective import EffectiveManifest
    from pdp.manifest.models import Tool


class Validator(Protocol):
    """What this package needs of a JSON Schema validator."""

    def is_valid(self, instance: Any) -> bool:
        """Return whether the instance is valid."""

    def iter_errors(self, instance: Any) -> Any:
        """Return the errors, each with `message` and `instance_path`."""


class CompiledTool:
    """One effective entry with its validator, its mappings and the request's action.

    Attributes:
        entry: the effective entry.
        action: the request's action; the same for every call of the tool.
        validator: of the arguments, closed against unknown ones.
        resource_type, resource_id, resource_markings, resource_properties: the resource mapping; None without one.
        context: the context mapping.
    """

    def __init__(self, entry: Tool, manifest: EffectiveManifest) -> None:
        self.entry = entry
        self.validator: Validator = compile_schema(closed_schema(entry.schema_))
        self.action = Action(
            name=entry.pdp_action,
            properties={
                "tool": entry.name,
                "manifest_version": manifest.version,
                "manifest_digest": manifest.digest,
            },
        )
        self.resource = _compiled(entry.resource)
        self.context = _compiled(entry.context)


def _compiled(mapping: Mapping[str, Any] | None) -> dict[str, Expression]:
    return {name: compile_expression(text) for name, text in (mapping or {}).items()}


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
                found = self._tools.setdefault(name, CompiledTool(entry, self.manifest))
        return found
