"""`pdp opa`: the OPA program, and the Rego that it is given."""

from __future__ import annotations

from pathlib import Path

import typer

from pdp.cli import Exit
from pdp.cli.options import AsJson, command_app
from pdp.cli.output import complain, print_answer
from pdp.workbench.opa.modules import baseline_policies_path
from pdp.workbench.opa.program import OPA_VERSION, find_opa, opa_version


def ensured() -> Path:
    """Return the OPA program, which is installed when there is none; progress goes to standard error."""
    program = find_opa()
    if program is None:
        # Only the download needs an extra.
        from pdp.workbench.opa.install import install_opa  # noqa: PLC0415

        program = install_opa(complain)
    return program


app = command_app("Find or install Open Policy Agent, and the baseline's policies.")


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


def _print_program(program: Path, *, as_json: bool) -> None:
    print_answer({"path": str(program), "version": opa_version(program)}, [str(program)], as_json=as_json)
