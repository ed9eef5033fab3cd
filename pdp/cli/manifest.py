"""`pdp manifest`: a tool manifest as its author and as a model sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from pdp.cli import Exit
from pdp.cli.display import console
from pdp.cli.files import check_standard_input
from pdp.cli.output import complain, print_json
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
    """Report faults, warnings and, when there is no fault, the contract clauses of each tool.

    Raises:
        UsageError: a file cannot be read.
        FileFaultsError: without `as_json`: a file is faulty.
    """
    check_standard_input(file, governance)
    try:
        loaded = read_effective(file, governance, strict=strict)
    except FileFaultsError as error:
        if not as_json:
            raise
        print_json({"faults": [_fault_json(fault) for fault in error.faults], "tools": []})
        return Exit.USAGE
    tools = contracts(loaded.model)
    if as_json:
        print_json(
            {
                "faults": [_fault_json(warning) for warning in loaded.warnings],
                "tools": [{"tool": tool.tool, "missing": {**tool.missing}} for tool in tools],
            }
        )
    else:
        _print_report(file, loaded.warnings, tools)
    return Exit.OK


def export(file: Path, form: str) -> int:
    """Print what a model may see of a manifest.

    Raises:
        UsageError: the file cannot be read, or is faulty.
    """
    check_standard_input(file)
    print_json(exported(load_manifest(file), form))
    return Exit.OK


def _fault_json(fault: Fault) -> dict[str, Any]:
    place = fault.place
    return {
        "file": place.file, "line": place.line, "column": place.column,
        "kind": "warning" if fault.warning else "fault", "message": fault.message, "hint": fault.hint,
    }  # fmt: skip


def _print_report(file: Path, warnings: Sequence[Fault], tools: Sequence[ToolContract]) -> None:
    for warning in warnings:
        complain(str(warning))
    out = console()
    for tool in tools:
        met = ", ".join(tool.met) or "none"
        out.print(Text.assemble((tool.tool, "bold"), f" meets {len(tool.met)} of {len(tool.missing)} clauses: {met}"))
        for clause, missing in tool.missing.items():
            if missing:
                out.print(Text.assemble("  ", (f"{clause:<12}", "yellow"), f"  misses {', '.join(missing)}"))
    count = len(warnings)
    out.print(Text(f"{file}: no fault, {count or 'no'} {'warning' if count == 1 else 'warnings'}"))
