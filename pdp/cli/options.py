"""What several commands have: their typer, options and arguments, written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def command_app(help: str | None = None) -> typer.Typer:  # noqa: A002 - as typer calls it
    """Return what a module's command is added to, or with `help` its group of commands."""
    return typer.Typer(help=help, no_args_is_help=help is not None, add_completion=False)


EngineName = Literal["embedded", "sidecar"]
ManifestFile = Annotated[
    Path, typer.Argument(metavar="MANIFEST", readable=False, help="The manifest, YAML or JSON; - for stdin.")
]
ProposalFile = Annotated[str, typer.Argument(metavar="PROPOSAL", help="The proposal, a JSON file; - for stdin.")]
Manifest = Annotated[
    Path,
    typer.Option(
        "--manifest", "-m", metavar="FILE", readable=False, help="The tool manifest, YAML or JSON; - for stdin."
    ),
]
Governance = Annotated[
    Path | None,
    typer.Option(
        "--governance", "-g", metavar="FILE", readable=False, help="The policy author's half of the manifest."
    ),
]
Policies = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR", readable=False, help="A folder with concerns of your own, Rego; needs OPA. May be repeated."
    ),
]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="FILE",
        readable=False,
        help="Data under directory or settings, YAML or JSON. May be repeated.",
    ),
]
OpaUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="A running OPA: http://HOST:PORT or unix:///PATH; its token in PDP_OPA_TOKEN. Without it, sidecar "
        "starts one.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print stable JSON and nothing else.")]
Session = Annotated[
    Path,
    typer.Option(
        "--session", "-s", metavar="FILE", readable=False, help="Claims, facts and keys, YAML or JSON; - for stdin."
    ),
]
DecidingBundle = Annotated[
    Path | None,
    typer.Option(
        "--bundle", metavar="FILE", readable=False, help="The bundle to decide by; the released baseline if absent."
    ),
]
DecidingEngine = Annotated[EngineName, typer.Option("--engine", help="Who decides.")]
ScenarioPaths = Annotated[
    list[Path],
    typer.Argument(metavar="PATH...", readable=False, help="Scenario files, or folders with some in them."),
]
JunitFile = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", readable=False, help="Write a report as JUnit's XML.")
]
HtmlFile = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", readable=False, help="Write a report as a page.")
]
