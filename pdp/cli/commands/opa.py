"""`pdp opa`: the OPA program, the Rego that it is given, and what a running OPA says about itself."""

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from pdp.cli import Exit
from pdp.cli.files import needed, project_with
from pdp.cli.options import AsJson, command_app
from pdp.cli.output import complain, print_answer
from pdp.engine.opa.engine import TOKEN_VARIABLE, SidecarEngine
from pdp.workbench.opa.modules import baseline_policies_path
from pdp.workbench.opa.program import OPA_VERSION, find_opa, opa_version

_SECONDS = 5.0  # for each question to a running OPA


def ensured() -> Path:
    """Return the OPA program, which is installed when there is none; progress goes to standard error."""
    program = find_opa()
    if program is None:
        # Only the download needs an extra.
        from pdp.workbench.opa.install import install_opa  # noqa: PLC0415

        program = install_opa(complain)
    return program


app = command_app(
    "Find or install Open Policy Agent, find the baseline's policies, and ask a running OPA for its status."
)


@app.command("install")
def install(as_json: AsJson = False) -> None:
    """Make sure that the right OPA is there, and print its path: found, or downloaded.

    Exit code: 0 there, 1 the download failed, 2 what is named cannot be used.
    """
    _print_program(ensured(), as_json=as_json)


@app.command("path")
def path(as_json: AsJson = False) -> None:
    """Print the path of the OPA that would be used.

    Exit code: 0 there, 1 none is.
    """
    program = find_opa()
    if program is None:
        complain(f"error: no OPA {OPA_VERSION} is here\n    hint: run: pdp opa install")
        raise typer.Exit(Exit.FAILED)
    _print_program(program, as_json=as_json)


@app.command("policies")
def policies(as_json: AsJson = False) -> None:
    """Print the folder with the baseline's Rego, for `opa test FOLDER/authz YOUR_FOLDER` and for editors.

    Exit code: 0.
    """
    folder = str(baseline_policies_path())
    print_answer({"path": folder}, [folder], as_json=as_json)


@app.command("status")
def status(
    opa_url: Annotated[
        str | None, typer.Option(metavar="URL", help="http://HOST:PORT or unix:///PATH; the project's if absent.")
    ] = None,
    token_env: Annotated[str, typer.Option(metavar="NAME", help="The variable with OPA's token.")] = TOKEN_VARIABLE,
    as_json: AsJson = False,
) -> None:
    """Print version, health, bundles, policies and data of a running OPA.

    Exit code: 0 healthy and usable, 1 it has problems or does not answer as OPA does, 2 bad usage.
    """
    stated = project_with()
    url = needed(opa_url or stated.opa_url, "opa_url", "--opa-url")
    told = opa_status(url, token_env, accept_unknown=stated.accept_unknown_opa)
    by = told["decides_by"]
    lines = [
        f"OPA at {told['url']}",
        *(f"problem: {problem}" for problem in told["problems"]),
        f"version: {told['version']}",
        "health: " + ", ".join(f"{part} {'ok' if healthy else 'not ok'}" for part, healthy in told["health"].items()),
        f"decides by: release {by['release']}, {by['revision']}" if by else "decides nothing",
        *(f"bundle {name}: {revision or 'not activated'}" for name, revision in told["bundles"].items()),
        *(
            f"{name}: {'not offered' if told[name] is None else ', '.join(told[name]) or 'none'}"
            for name in ("plugins", "config", "policies", "data")
        ),
    ]
    print_answer(told, lines, as_json=as_json)
    raise typer.Exit(Exit.FAILED if told["problems"] else Exit.OK)


def opa_status(url: str, token_env: str = TOKEN_VARIABLE, *, accept_unknown: bool = False) -> dict[str, Any]:
    """Return what a running OPA says about itself, as `SidecarEngine.astatus` does."""
    token = os.environ.get(token_env) or None
    with SidecarEngine(url, token=token, timeout=_SECONDS, accept_unknown_opa=accept_unknown) as engine:
        return asyncio.run(engine.astatus())


def _print_program(program: Path, *, as_json: bool) -> None:
    print_answer({"path": str(program), "version": opa_version(program)}, [str(program)], as_json=as_json)
