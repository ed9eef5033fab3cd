"""Read one tool entry, or one action of a governance file, with all that is wrong in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.manifest.fields import PATTERN_EFFECTS
from pdp.manifest.file_faults import Salvaged
from pdp.manifest.model import ActionRules, DeclaredTool
from pdp.manifest.rules.forbidden import forbidden_findings
from pdp.manifest.rules.rules import governable_findings, tool_findings
from pdp.manifest.schema.faults import schema_findings
from pdp.manifest.schema.references import ReferenceFault, self_contained
from pdp.manifest.schema.shapes import shape_findings
from pdp.manifest.schema.walk import arguments_of
from pdp.manifest.spellings.spellings import reshaped_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pdp.documents.document import Path
    from pdp.manifest.file_faults import FaultyFile
    from pdp.manifest.findings import Finding
    from pdp.manifest.schema.walk import SchemaNode

_STAND_INS: Final = {"name": "unnamed_tool", "schema": {"type": "object"}}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tool entry as far as it could be read.

    Attributes:
        tool: the entry, or None when nothing of it can be used.
        unusable: fields that were faulty and are left out of it.
        where: gives the path in the document for a path in the entry.
        arguments: the schemas of its arguments, or None when its schema is faulty.
    """

    tool: DeclaredTool | None
    unusable: frozenset[str]
    where: Callable[[Path], Path]
    arguments: Mapping[str, SchemaNode] | None


def read_entry(record: Any, base: Path, definitions: Mapping[str, Any], file: FaultyFile) -> Entry:
    """Read one tool entry, adding its faults and warnings to `file`.

    Args:
        record: the entry as the file states it.
        base: where it stands.
        definitions: the `$defs` of the file.
        file: the file that it stands in.
    """
    reshaped = reshaped_tool(record, definitions)
    file.add_findings(reshaped.findings, lambda path: (*base, *path))
    salvaged = Salvaged(DeclaredTool, reshaped.value, _STAND_INS)

    def where(path: Path) -> Path:
        return (*base, *reshaped.where(salvaged.where(path)))

    if salvaged.error:
        file.add_error(salvaged.error, DeclaredTool, lambda path: (*base, *reshaped.where(path)))
    tool, unusable = salvaged.model, salvaged.unusable
    if tool is None:
        return Entry(None, unusable, where, None)
    faulty = len(file.faults)
    file.add_findings(_schema_findings(tool, definitions, unusable), where)
    sound = "schema" not in unusable and all(fault.warning for fault in file.faults[faulty:])
    if sound:
        tool = tool.model_copy(update=_standing_alone(tool, definitions))
    if tool.pattern and tool.effect_class is None and "effect_class" not in unusable:
        tool = tool.model_copy(update={"effect_class": PATTERN_EFFECTS[tool.pattern]})
    arguments = arguments_of(tool.schema_) if sound else None
    if sound:
        file.add_findings(forbidden_findings(tool), where)
        # An answer whose schema was faulty is left out, and may well have had the shape.
        if "result_schema" not in unusable:
            file.add_findings(shape_findings(tool), where)
    file.add_findings(tool_findings(tool, unusable, arguments), where)
    return Entry(tool, unusable, where, arguments)


def read_rules(value: Any, where: Callable[[Path], Path], file: FaultyFile) -> ActionRules | None:
    """Read what a governance file states for one action, adding its faults to `file`.

    Args:
        value: the rules, in the models' spelling.
        where: gives the path in the document for a path in the rules.
        file: the file that they stand in.
    """
    salvaged = Salvaged(ActionRules, value, {})
    if salvaged.error:
        file.add_error(salvaged.error, ActionRules, where)
    if salvaged.model is not None:
        file.add_findings(governable_findings(salvaged.model, None), lambda path: where(salvaged.where(path)))
    return salvaged.model


def _schema_findings(tool: DeclaredTool, definitions: Mapping[str, Any], unusable: frozenset[str]) -> Iterator[Finding]:
    if "schema" not in unusable:
        yield from schema_findings(tool.schema_, definitions, ("schema",), root_object=True)
    if tool.result_schema is not None:
        yield from schema_findings(tool.result_schema, definitions, ("result_schema",), root_object=False)


def _standing_alone(tool: DeclaredTool, definitions: Mapping[str, Any]) -> dict[str, Any]:
    result = tool.result_schema
    try:
        return {
            "schema_": self_contained(tool.schema_, definitions),
            "result_schema": None if result is None else self_contained(result, definitions),
        }
    except ReferenceFault:  # of the result's schema: the file has that fault already
        return {}
