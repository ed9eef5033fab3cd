"""`pdp manifest`: the group of commands, and its commands lint, export and diff."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from pdp.cli import Exit
from pdp.cli.display import show
from pdp.cli.files import project_with, required
from pdp.cli.findings import coded, reported
from pdp.cli.options import AsJson, Format, Governance, ManifestFile, command_app, file_argument, file_option
from pdp.cli.output import fault_json, print_answer, print_error, print_json
from pdp.errors import Fault, FileFaultsError
from pdp.manifest.diff import ContentChange
from pdp.manifest.exports import export_tools
from pdp.manifest.load import load_effective, load_manifest
from pdp.manifest.rules.lint import ContractReport
from pdp.manifest.rules.lint import lint as contracts
from pdp.manifest.schema.differences import Bump
from pdp.manifest.versions import ManifestDiff, manifest_diff

_BUMPS: Final = {Bump.PATCH: "dim", Bump.MINOR: "yellow", Bump.MAJOR: "bold red"}
_DIRECTIONS: Final = {"loosens": "bold red", "unclear": "yellow", "tightens": "green"}


app = command_app("Check, compare and import tool manifests, and export them for a model.")


@app.command("lint")
def lint(
    file: ManifestFile = None,
    governance: Governance = None,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as faults; recommended in CI.")] = False,
    form: Format = "text",
    as_json: AsJson = False,
) -> None:
    """Report every fault of a manifest, and which clauses of the tool contract each tool meets.

    Exit code: 0 no fault, 2 faults, or with --strict also warnings.
    """
    project = project_with(manifest=file, governance=governance)
    file = required(project.manifest, "manifest", "MANIFEST")
    warnings: list[Fault] = []
    form = "text" if as_json else form
    try:
        with reported(form) as found:
            effective = load_effective(file, project.governance, strict=strict, warnings=warnings)
            found.extend(coded(warnings))
    except FileFaultsError as error:
        if not as_json:
            raise
        print_json({"faults": [fault_json(fault) for fault in error.faults], "tools": []})
        raise typer.Exit(Exit.USAGE) from None
    if form == "sarif":
        return
    tools = contracts(effective)
    answer: dict[str, Any] = {
        "faults": [fault_json(warning) for warning in warnings],
        "tools": [{"tool": tool.tool, "missing": {**tool.missing}} for tool in tools],
    }
    print_answer(answer, lambda: _print_report(file, warnings, tools), as_json=as_json)


@app.command("export")
def export(
    file: ManifestFile = None,
    form: Annotated[
        Literal["plain", "openai", "anthropic", "mcp"], typer.Option("--format", help="The format of the tool list.")
    ] = "plain",
    as_json: AsJson = False,  # noqa: ARG001 - every command has this option; here the output is JSON anyway
) -> None:
    """Print the parts of a manifest that a model may see, as JSON. Governance is left out.

    Exit code: 0 printed, 2 a faulty file.
    """
    file = required(project_with(manifest=file).manifest, "manifest", "MANIFEST")
    print_json({"tools": export_tools(load_manifest(file).tools, form)})


@app.command("diff")
def diff(
    old: Annotated[Path, file_argument("OLD", help="The old manifest; - for stdin.")],
    new: Annotated[Path, file_argument("NEW", help="The new manifest; - for stdin.")],
    governance: Annotated[Path | None, file_option("--governance", "-g", help="The governance file of NEW.")] = None,
    old_governance: Annotated[Path | None, file_option("--old-governance", help="The governance file of OLD.")] = None,
    fail_on: Annotated[
        Literal["loosening", "unclear"] | None,
        typer.Option(help="Also fail if governance loosens the policy; unclear: or may loosen the policy."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two manifests: changes that break callers, missing increases of versions, changes of governance.

    Exit code: 0 no fault, 1 a version was not increased or --fail-on applies, 2 a faulty file.
    """
    if (governance is None) != (old_governance is None):
        stated, option = ("OLD", "--governance") if governance is None else ("NEW", "--old-governance")
        print_error(f"note: only {stated} has a governance file, so all its rules are shown as changed; use {option}")
    difference = manifest_diff(load_effective(old, old_governance), load_effective(new, governance))
    print_answer(difference.as_json(), lambda: _print_diff(difference), as_json=as_json)
    refused = {None: set(), "loosening": {"loosens"}, "unclear": {"loosens", "unclear"}}[fail_on]
    raise typer.Exit(Exit.FAILED if difference.faults or refused & difference.directions() else Exit.OK)


def _print_diff(difference: ManifestDiff) -> None:
    for tool in difference.tools:
        versions = f", {tool.old_version or 'no version'} -> {tool.new_version or 'no version'}"
        show((tool.tool, "bold"), f" {tool.kind}", versions if tool.kind == "changed" else "")
        for change in tool.signature:
            place = " ".join(part for part in (change.part, change.path, change.what) if part)
            show((f"  {change.bump.word:<9}", _BUMPS[change.bump]), place)
        _print_governance(tool.governance)
        if tool.fault:
            show(("  version  ", "bold red"), tool.fault)
    if difference.pins:
        show(("agents", "bold"))
        _print_governance(difference.pins)
    counted = len(difference.faults)
    differ = f"{len(difference.tools)} of the tools differ" if difference.tools else "no tool differs"
    show(f"{differ}, {counted or 'no'} {'version is' if counted == 1 else 'versions are'} missing a bump")


def _print_governance(changes: Sequence[ContentChange]) -> None:
    for change in changes:
        show((f"  {change.word:<9} ", _DIRECTIONS[change.direction]), change.line)


def _print_report(file: Path, warnings: Sequence[Fault], tools: Sequence[ContractReport]) -> None:
    for warning in warnings:
        print_error(str(warning))
    for tool in tools:
        met = ", ".join(tool.met) or "none"
        show((tool.tool, "bold"), f" meets {len(tool.met)} of {len(tool.missing)} clauses: {met}")
        for clause, missing in tool.missing.items():
            if missing:
                show((f"  {clause:<12}", "yellow"), f"  misses {', '.join(missing)}")
    count = len(warnings)
    show(f"{file}: no fault, {count or 'no'} {'warning' if count == 1 else 'warnings'}")
