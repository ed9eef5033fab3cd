"""A tool entry as a tool registry record (tool pattern library, 9.5). Read back, it is the same entry."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pdp.errors import UsageError

if TYPE_CHECKING:
    from pdp.manifest.model import DeclaredTool

_ORDER: Final = (
    "id", "version", "pattern", "ontologyPin", "effectClass", "scopes", "markings", "purposes", "signature",
    "idempotency", "sla", "evalPack", "release",
)  # fmt: skip
_WORD: Final = re.compile(r"_([a-z0-9])")


def registry_record(tool: DeclaredTool) -> dict[str, Any]:
    """Return the record: first the keys of the document in its order, then whatever else the entry states.

    Args:
        tool: a declared entry, as a manifest states it; a schema's references lead into the schema itself.

    Raises:
        UsageError: it has no id or no version, which the record is registered under.
    """
    for field in ("id", "version"):
        if getattr(tool, field) is None:
            raise UsageError(
                f"tool {tool.name} has no `{field}`, and is registered under it", hint=f"state its `{field}`"
            )
    stated: dict[str, Any] = tool.model_dump(mode="json", by_alias=True, exclude_unset=True)
    record = {_camel(name): value for name, value in stated.items() if value is not None}
    signature = {"request": record.pop("schema")}
    if "resultSchema" in record:
        signature["response"] = record.pop("resultSchema")
    record["signature"] = signature
    if tool.id is not None and record["name"] == tool.id.rpartition(".")[2]:
        del record["name"]
    first = {name: record.pop(name) for name in _ORDER if name in record}
    return first | record


def _camel(name: str) -> str:
    return _WORD.sub(lambda match: match[1].upper(), name)
