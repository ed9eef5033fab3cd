"""`pdp bundle`: what engines decide by. Imported when one of its commands is run.

build       build, inspect
signing     keygen, sign, verify; and keys as commands are given them
repository  publish, rollback, list
"""

# A command's options are its function's parameters, switches and all; typer reads their annotations.
# ruff: noqa: FBT002, PLR0917, TC001, TC003

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pdp.cli.bundle.build import GovernanceFiles, build, inspect
from pdp.cli.bundle.repository import listing, publish, rollback
from pdp.cli.bundle.signing import keygen, sign, verify
from pdp.cli.options import AsJson, HtmlFile

app = typer.Typer()
for command in (build, keygen, sign, verify, inspect, publish, rollback):
    app.command()(command)
app.command("list")(listing)


@app.command("diff")
def bundle_diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", readable=False, help="The bundle as it was.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", readable=False, help="The bundle as it is.")],
    scenarios: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", readable=False, help="Scenarios to decide by both. May be repeated."),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", readable=False, help="Recorded requests to decide by both, JSON lines. May be repeated."
        ),
    ] = None,
    manifest: Annotated[
        list[Path] | None,
        typer.Option(
            "--manifest",
            "-m",
            metavar="FILE",
            readable=False,
            help="A manifest of either bundle, to compare schemas and versions. May be repeated.",
        ),
    ] = None,
    governance: GovernanceFiles = None,
    grid: Annotated[
        int, typer.Option(min=0, max=1_000_000, metavar="NUMBER", help="How many calls to make up at most; 0: none.")
    ] = 50_000,
    html: HtmlFile = None,
    fail_on: Annotated[
        Literal["loosening", "any"] | None, typer.Option(help="Exit 1 when something admits more, or differs at all.")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a new bundle changes: in structure, on known calls, and on calls that nobody wrote down.

    Exit code: 0, or 1 when --fail-on applies, 2 bad usage or file.
    """
    from pdp.cli.bundle_diff import diff  # noqa: PLC0415

    raise typer.Exit(
        diff(
            old, new, scenarios=scenarios or [], logs=log or [], manifests=manifest or [], governance=governance or [],
            most=grid, html=html, fail_on=fail_on, as_json=as_json, as_markdown=as_markdown,
        )
    )  # fmt: skip
