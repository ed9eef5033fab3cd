"""The commands of `pdp release`; see pdp/cli/app.py."""

# A command's options are its function's parameters, switches and all; typer reads their annotations.
# ruff: noqa: FBT002, PLR0917, TC001, TC003

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pdp.cli.options import AsJson, JunitFile, ScenarioPaths

release_app = typer.Typer(help="Check whether a bundle may be released.", no_args_is_help=True)


@release_app.command("check")
def release_check(
    paths: ScenarioPaths,
    bundle: Annotated[
        Path, typer.Option("--bundle", "-b", metavar="FILE", readable=False, help="The bundle to be released.")
    ],
    last: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="The bundle of the last release.")
    ] = None,
    explanations: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="Why each loosening since the last release is meant."),
    ] = None,
    coverage: Annotated[
        float | None, typer.Option(min=0, max=100, metavar="PERCENT", help="How much of the Rego scenarios must reach.")
    ] = None,
    mutation: Annotated[
        float | None, typer.Option(min=0, max=100, metavar="PERCENT", help="How many mutants scenarios must notice.")
    ] = None,
    packs: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", readable=False, help="A folder with contract test packs. May be repeated."),
    ] = None,
    audit: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="An audit file of a run with this bundle. May be repeated."),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="A check to leave out. May be repeated.")
    ] = None,
    grid: Annotated[
        int, typer.Option(min=0, max=1_000_000, metavar="NUMBER", help="As of `pdp bundle diff`.")
    ] = 50_000,
    junit: JunitFile = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a bundle may be released: a line for each check, with the reason where it fails.

    Exit code: 0 nothing failed, 1 a check failed, 2 bad usage or file.
    """
    from pdp.cli.release import check as run  # noqa: PLC0415

    raise typer.Exit(
        run(
            paths, bundle=bundle, last=last, explanations=explanations, coverage=coverage, mutation=mutation,
            packs=packs or [], audit=audit or [], skip=skip or [], grid=grid, junit_file=junit, as_json=as_json,
        )
    )  # fmt: skip
