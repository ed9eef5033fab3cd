"""`pdp opa`: finds, installs and queries OPA, and prints the folder of the baseline's Rego."""

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from pdp.cli import Exit
from pdp.cli.files import project_with, required
from pdp.cli.options import AsJson, command_app
from pdp.cli.output import print_answer, print_error
from pdp.engine.opa.engine import TOKEN_VARIABLE, SidecarEngine
from pdp.opa.modules import baseline_policies_path
from pdp.opa.program import OPA_VERSION, find_opa, opa_version

_SECONDS = 5.0  # each request to a running OPA times out after this many seconds


def ensured() -> Path:
    """Return the path of OPA. If OPA is missing, install it, with progress on standard error."""
    program = find_opa()
    if program is None:
        # Only the download needs an optional extra, so it is imported here.
        from pdp.opa.install import install_opa  # noqa: PLC0415

        program = install_opa(print_error)
    return program


app = command_app(
    "Find or install Open Policy Agent, print the folder of the baseline's policies, and query a running OPA."
)


@app.command("install")
def install(as_json: AsJson = False) -> None:
    """Download OPA if no suitable version is found, and print its path.

    Exit code: 0 found or installed, 1 the download failed, 2 the OPA in PDP_OPA cannot be used.
    """
    _print_program(ensured(), as_json=as_json)


@app.command("path")
def path(as_json: AsJson = False) -> None:
    """Print the path of the OPA program that pdp uses.

    Exit code: 0 found, 1 not found.
    """
    program = find_opa()
    if program is None:
        print_error(f"error: OPA {OPA_VERSION} is not installed\n    hint: run: pdp opa install")
        raise typer.Exit(Exit.FAILED)
    _print_program(program, as_json=as_json)


@app.command("policies")
def policies(as_json: AsJson = False) -> None:
    """Print the folder with the baseline's Rego, for `opa test FOLDER/authz YOUR_FOLDER` and for editors.

    Exit code: 0 always.
    """
    folder = str(baseline_policies_path())
    print_answer({"path": folder}, [folder], as_json=as_json)


@app.command("status")
def status(
    opa_url: Annotated[
        str | None, typer.Option(metavar="URL", help="http://HOST:PORT or unix:///PATH. Default: the project's.")
    ] = None,
    token_env: Annotated[str, typer.Option(metavar="NAME", help="The variable with OPA's token.")] = TOKEN_VARIABLE,
    as_json: AsJson = False,
) -> None:
    """Print the version, health, bundles, policies and data of a running OPA.

    Exit code: 0 healthy and usable, 1 OPA has problems or does not answer like OPA, 2 bad usage.
    """
    stated = project_with()
    url = required(opa_url or stated.opa_url, "opa_url", "--opa-url")
    answer = opa_status(url, token_env, accept_unknown=stated.accept_unknown_opa)
    by = answer["decides_by"]
    lines = [
        f"OPA at {answer['url']}",
        *(f"problem: {problem}" for problem in answer["problems"]),
        f"version: {answer['version']}",
        "health: " + ", ".join(f"{part} {'ok' if healthy else 'not ok'}" for part, healthy in answer["health"].items()),
        f"decides with: release {by['release']}, {by['revision']}" if by else "makes no decisions",
        *(f"bundle {name}: {revision or 'not activated'}" for name, revision in answer["bundles"].items()),
        *(
            f"{name}: {'not offered' if answer[name] is None else ', '.join(answer[name]) or 'none'}"
            for name in ("plugins", "config", "policies", "data")
        ),
    ]
    print_answer(answer, lines, as_json=as_json)
    raise typer.Exit(Exit.FAILED if answer["problems"] else Exit.OK)


def opa_status(url: str, token_env: str = TOKEN_VARIABLE, *, accept_unknown: bool = False) -> dict[str, Any]:
    """Return the status of a running OPA, as `SidecarEngine.astatus` does."""
    token = os.environ.get(token_env) or None
    with SidecarEngine(url, token=token, timeout=_SECONDS, accept_unknown_opa=accept_unknown) as engine:
        return asyncio.run(engine.astatus())


def _print_program(program: Path, *, as_json: bool) -> None:
    print_answer({"path": str(program), "version": opa_version(program)}, [str(program)], as_json=as_json)
