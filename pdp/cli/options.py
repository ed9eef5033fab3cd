"""Options and arguments that several commands share."""

import getpass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pdp.engine.protocol import EngineName
from pdp.errors import UsageError


def command_app(help: str | None = None) -> typer.Typer:  # noqa: A002 - typer's name
    """Return the typer app for one command or, with `help`, for a group of commands."""
    return typer.Typer(help=help, no_args_is_help=help is not None, add_completion=False)


def file_option(*names: str, help: str, metavar: str = "FILE") -> Any:  # noqa: A002 - typer's name
    """Return an option whose value is a file's path. The command, not typer, reports that a file is missing."""
    return typer.Option(*names, metavar=metavar, readable=False, help=help)


def file_argument(metavar: str, help: str) -> Any:  # noqa: A002 - typer's name
    """Return an argument whose value is a file's path. The command, not typer, reports that a file is missing."""
    return typer.Argument(metavar=metavar, readable=False, help=help)


def user_name(by: str | None) -> str:
    """Return `by`, the name of a user; by default, the name of the user who runs the process."""
    try:
        return by or getpass.getuser()
    except (OSError, KeyError):
        raise UsageError("your user name is unknown", hint="pass your name with --by") from None


ManifestFile = Annotated[
    Path | None, file_argument("[MANIFEST]", help="The manifest, YAML or JSON; - for stdin. Default: the project's.")
]
ProposalFile = Annotated[str, typer.Argument(metavar="PROPOSAL", help="The proposal, a JSON file; - for stdin.")]
Manifest = Annotated[Path | None, file_option("--manifest", "-m", help="The tool manifest, YAML or JSON; - for stdin.")]
Governance = Annotated[Path | None, file_option("--governance", "-g", help="The governance file of the manifest.")]
Manifests = Annotated[
    list[Path] | None, file_option("--manifest", "-m", help="A manifest whose names concerns may use. May be repeated.")
]
Governances = Annotated[
    list[Path] | None,
    file_option("--governance", "-g", help="The governance file of the manifest at the same position."),
]
Policies = Annotated[
    list[Path] | None,
    file_option(metavar="DIR", help="A folder with your own concerns in Rego. Needs OPA. May be repeated."),
]
Data = Annotated[
    list[Path] | None, file_option("--data", help="Data with directory or settings, YAML or JSON. May be repeated.")
]
OpaUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="URL of a running OPA: http://HOST:PORT or unix:///PATH. Set its token in PDP_OPA_TOKEN. Without a URL, "
        "the sidecar engine starts an OPA.",
    ),
]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="The name to record. Default: your user name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON, in a stable format.")]
CiFormat = Literal["text", "github", "sarif"]
Format = Annotated[
    CiFormat,
    typer.Option(
        "--format", envvar="PDP_FORMAT", help="github: also print workflow commands. sarif: only SARIF 2.1.0."
    ),
]
Session = Annotated[
    Path | None, file_option("--session", "-s", help="The session: claims, facts and keys, YAML or JSON; - for stdin.")
]
DecidingBundle = Annotated[
    Path | None, file_option("--bundle", help="The bundle to decide with. Default: the released baseline.")
]
DecidingEngine = Annotated[EngineName | None, typer.Option("--engine", help="The engine. Default: embedded.")]
EngineTimeout = Annotated[
    float,
    typer.Option(
        "--engine-timeout",
        min=0.001,
        max=3600,
        metavar="SECONDS",
        help="The time limit of an engine for one answer. A timeout ends the run without a verdict.",
    ),
]
Scenarios = Annotated[
    list[Path] | None, file_option("--scenarios", metavar="PATH", help="Scenario files or folders. May be repeated.")
]
ScenarioPaths = Annotated[
    list[Path] | None,
    file_argument(
        "[PATH]...",
        help="Scenario files, or folders with scenarios.yaml or NAME.scenarios.yaml. Default: the project's.",
    ),
]
