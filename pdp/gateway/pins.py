"""What servers declare of their tools, pinned: one that changes is neither shown nor called until it is pinned anew."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.documents import read_document
from pdp.engine.protocol import DECISION, Engine
from pdp.errors import EngineError, UsageError
from pdp.json import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import mcp_types as types

Pins = dict[str, dict[str, dict[str, Any]]]
"""By server and tool, as the server names it: its declaration."""

_PINNED: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")


class ToolChangedError(EngineError):
    """A server declares a tool otherwise than it is pinned, or not at all."""

    code = "gateway.tool_changed"


class PinnedEngine(Engine):
    """Denies what is asked of a tool that is not in `unchanged`; of all else, `engine` decides. Closed with it."""

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self.unchanged: set[str] = set()
        self._engine = engine

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a document; errors as of the engine, and ToolChangedError."""
        self._check(body, document)
        return self._engine.evaluate(body, document)

    async def aevaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Async variant of `evaluate`."""
        self._check(body, document)
        return await self._engine.aevaluate(body, document)

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()

    def _check(self, body: bytes, document: str) -> None:
        if document == DECISION and orjson.loads(body)["action"]["properties"]["tool"] not in self.unchanged:
            raise ToolChangedError("its server does not declare this tool as it is pinned")


def declarations(tools: Iterable[types.Tool]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return what is pinned of tools, by name, and the names that are there twice: those are not among them."""
    found: dict[str, dict[str, Any]] = {}
    twice: dict[str, None] = {}
    for tool in tools:
        whole = tool.model_dump(by_alias=True, mode="json", exclude_none=True)
        if tool.name in found:
            twice[tool.name] = None
        found[tool.name] = {key: whole[key] for key in _PINNED if key in whole}
    return {name: stated for name, stated in found.items() if name not in twice}, list(twice)


def unchanged(pinned: Mapping[str, Any], tools: Iterable[types.Tool]) -> set[str]:
    """Return the names of the tools that are declared as they are pinned."""
    now, _ = declarations(tools)
    return {name for name, stated in now.items() if name in pinned and canonical(stated) == canonical(pinned[name])}


def read_pinned(file: Path) -> Pins:
    """Return what is pinned; UsageError: nothing is, or it cannot be read."""
    if not file.exists():
        raise UsageError(f"{file}: no tool is pinned yet", hint="look at what the servers declare: pdp mcp-gateway pin")
    pins = read_document(file).value
    if not isinstance(pins, dict) or not all(isinstance(tools, dict) for tools in pins.values()):
        raise UsageError(f"{file}: not a file of pins", hint="make it anew: pdp mcp-gateway pin")
    return pins


def pins_text(pins: Pins) -> str:
    """Return the text of a file of pins, the same for the same pins."""
    return json.dumps(pins, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def pins_difference(old: Pins, new: Pins) -> list[str]:
    """Return what changes from one to the other, as lines of a diff; what does not print is for the reader to show."""
    before, after = (pins_text(pins).splitlines() for pins in (old, new))
    return list(difflib.unified_diff(before, after, "pinned", "declared", lineterm="", n=6))
