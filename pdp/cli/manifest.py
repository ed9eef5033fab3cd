"""`pdp manifest`: a tool manifest as its author and as a model sees it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import orjson
from rich.table import Table
from rich.text import Text

from pdp.cli import Exit
from pdp.cli.display import console
from pdp.errors import FileFaultsError
from pdp.manifest.exports import export as exported
from pdp.manifest.lint import lint as contracts
from pdp.manifest.loading import load_manifest, read_effective

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pdp.errors import Fault
    from pdp.manifest.lint import ToolContract


def lint(file: Path, governance: Path | None, *, strict: bool, as_json: bool) -> int:
    """Report faults, warnings and, when there is no fault, the contract clauses of each tool."""
    try:
        loaded = read_effective(file, governance, strict=strict)
    except FileFaultsError as error:
        if not as_json:
            raise
        _print_json({"faults": [_fault_json(fault) for fault in error.faults], "tools": []})
        return Exit.USAGE
    tools = contracts(loaded.model)
    if as_json:
        _print_json(
            {
                "faults": [_fault_json(warning) for warning in loaded.warnings],
                "tools": [{"tool": tool.tool, "missing": {**tool.missing}} for tool in tools],
            }
        )
    else:
        _print_report(file, loaded.warnings, tools)
    return Exit.OK


def export(file: Path, form: str) -> int:
    """Print what a model may see of a manifest."""
    _print_json(exported(load_manifest(file), form))
    return Exit.OK


def _print_json(value: Any) -> None:
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")


def _fault_json(fault: Fault) -> dict[str, Any]:
    place = fault.place
    return {
        "file": place.file, "line": place.line, "column": place.column,
        "kind": "warning" if fault.warning else "fault", "message": fault.message, "hint": fault.hint,
    }  # fmt: skip


def _print_report(file: Path, warnings: Sequence[Fault], tools: Sequence[ToolContract]) -> None:
    for warning in warnings:
        print(warning, file=sys.stderr)
    out = console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tool")
    for clause in tools[0].missing if tools else ():
        table.add_column(clause.value)
    for tool in tools:
        marks = [
            Text("no", style="yellow") if missing else Text("yes", style="green") for missing in tool.missing.values()
        ]
        table.add_row(tool.tool, *marks)
    out.print(table)
    for tool in tools:
        for clause, missing in tool.missing.items():
            if missing:
                out.print(Text(f"  {tool.tool} is not {clause.value}: misses {', '.join(missing)}"))
    out.print(f"{file}: no fault, {len(warnings)} warnings")
