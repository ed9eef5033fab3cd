"""What several commands have: their typer, options and arguments, written once."""

import getpass
from pathlib import Path
from typing import Annotated, Any

import typer

from pdp.engine.protocol import EngineName
from pdp.errors import UsageError


def command_app(help: str | None = None) -> typer.Typer:  # noqa: A002 - as typer calls it
    """Return what a module's command is added to, or with `help` its group of commands."""
    return typer.Typer(help=help, no_args_is_help=help is not None, add_completion=False)


def file_option(*names: str, help: str, metavar: str = "FILE") -> Any:  # noqa: A002 - likewise
    """Return an option that names a file. What reads the file says what is wrong with it."""
    return typer.Option(*names, metavar=metavar, readable=False, help=help)


def file_argument(metavar: str, help: str) -> Any:  # noqa: A002 - likewise
    """Return an argument that names a file, as `file_option` does."""
    return typer.Argument(metavar=metavar, readable=False, help=help)


def user_name(by: str | None) -> str:
    """Return who does it: the option `--by`, or the user of the process."""
    try:
        return by or getpass.getuser()
    except (OSError, KeyError):
        raise UsageError("your user name is unknown", hint="give it with --by") from None


ManifestFile = Annotated[
    Path | None, file_argument("[MANIFEST]", help="The manifest, YAML or JSON; - for stdin. The project's if absent.")
]
ProposalFile = Annotated[str, typer.Argument(metavar="PROPOSAL", help="The proposal, a JSON file; - for stdin.")]
Manifest = Annotated[Path | None, file_option("--manifest", "-m", help="The tool manifest, YAML or JSON; - for stdin.")]
Governance = Annotated[Path | None, file_option("--governance", "-g", help="The policy author's half of the manifest.")]
Manifests = Annotated[
    list[Path] | None,
    file_option("--manifest", "-m", help="A manifest to decide for: concerns may name what it has. May be repeated."),
]
Governances = Annotated[
    list[Path] | None,
    file_option("--governance", "-g", help="The governance of the manifest at the same place in the line."),
]
Policies = Annotated[
    list[Path] | None,
    file_option(metavar="DIR", help="A folder with concerns of your own, Rego; needs OPA. May be repeated."),
]
Data = Annotated[
    list[Path] | None, file_option("--data", help="Data under directory or settings, YAML or JSON. May be repeated.")
]
OpaUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="A running OPA: http://HOST:PORT or unix:///PATH; its token in PDP_OPA_TOKEN. Without it, sidecar "
        "starts one.",
    ),
]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who does it; you if absent.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print stable JSON and nothing else.")]
Session = Annotated[
    Path | None, file_option("--session", "-s", help="Claims, facts and keys, YAML or JSON; - for stdin.")
]
DecidingBundle = Annotated[
    Path | None, file_option("--bundle", help="The bundle to decide by; the released baseline if absent.")
]
DecidingEngine = Annotated[EngineName | None, typer.Option("--engine", help="Who decides; embedded if absent.")]
EngineTimeout = Annotated[
    float,
    typer.Option(
        "--engine-timeout",
        min=0.001,
        max=3600,
        metavar="SECONDS",
        help="How long an engine may take for one answer; one that is late ends the run, and is no verdict.",
    ),
]
Scenarios = Annotated[
    list[Path] | None, file_option("--scenarios", metavar="PATH", help="Scenario files or folders. May be repeated.")
]
ScenarioPaths = Annotated[
    list[Path] | None,
    file_argument(
        "[PATH]...",
        help="Scenario files, or folders with scenarios.yaml or NAME.scenarios.yaml in them. The project's if absent.",
    ),
]
