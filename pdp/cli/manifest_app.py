"""The commands of `pdp manifest`; see pdp/cli/app.py."""

# A command's options are its function's parameters, switches and all; typer reads their annotations.
# ruff: noqa: FBT002, PLR0917, TC001, TC003

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pdp.cli.options import AsJson, Governance, ManifestFile

manifest_app = typer.Typer(help="Check a tool manifest; export what a model may see of it.", no_args_is_help=True)


@manifest_app.command("lint")
def manifest_lint(
    file: ManifestFile,
    governance: Governance = None,
    strict: Annotated[bool, typer.Option("--strict", help="Take warnings for faults, as CI should.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report every fault of a manifest, and which clauses of the tool contract each tool meets.

    Exit code: 0 no fault, 2 faults (with --strict: or warnings).
    """
    from pdp.cli.manifest import lint  # noqa: PLC0415

    raise typer.Exit(lint(file, governance, strict=strict, as_json=as_json))


@manifest_app.command("export")
def manifest_export(
    file: ManifestFile,
    form: Annotated[
        Literal["plain", "openai", "anthropic", "mcp"], typer.Option("--format", help="Whose form of a tool list.")
    ] = "plain",
) -> None:
    """Print what a model may see of a manifest, as JSON: nothing of its governance."""
    from pdp.cli.manifest import export  # noqa: PLC0415

    raise typer.Exit(export(file, form))


@manifest_app.command("diff")
def manifest_diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", readable=False, help="The manifest as it was; - for stdin.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", readable=False, help="The manifest as it is; - for stdin.")],
    governance: Governance = None,
    old_governance: Annotated[
        Path | None,
        typer.Option(
            "--old-governance",
            metavar="FILE",
            readable=False,
            help="The governance file of OLD. --governance is NEW's.",
        ),
    ] = None,
    fail_on: Annotated[
        Literal["loosening", "unclear"] | None,
        typer.Option(help="Also fail on a change of governance that loosens; unclear: or of which it cannot be told."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what breaks callers, which versions miss a bump, and what is governed otherwise.

    Exit code: 0 nothing amiss, 1 a version misses its bump or --fail-on applies, 2 a faulty file.
    """
    from pdp.cli.manifest import diff  # noqa: PLC0415

    raise typer.Exit(
        diff(old, new, old_governance=old_governance, governance=governance, fail_on=fail_on, as_json=as_json)
    )
