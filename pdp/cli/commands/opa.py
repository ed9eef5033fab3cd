"""`pdp opa`: the OPA program; `pdp policies`: the Rego that it is given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pdp.cli import Exit
from pdp.cli.options import command_app
from pdp.cli.output import complain, tell
from pdp.workbench.opa.modules import baseline_policies_path
from pdp.workbench.opa.program import OPA_VERSION, find_opa

if TYPE_CHECKING:
    from pathlib import Path


def ensured() -> Path:
    """Return the OPA program, which is installed when there is none; progress goes to standard error."""
    program = find_opa()
    if program is None:
        # Only the download needs an extra.
        from pdp.workbench.opa.install import install_opa  # noqa: PLC0415

        program = install_opa(complain)
    return program


policies = command_app("The baseline's policies, which come with the package.")
app = command_app("Find or install Open Policy Agent.")


@app.command("install")
def install() -> None:
    """Make sure that the right OPA is there, and print its path: found, or downloaded."""
    tell(str(ensured()))


@app.command("path")
def path() -> None:
    """Print the path of the OPA that would be used; exit 1 when there is none."""
    program = find_opa()
    if program is None:
        complain(f"error: no OPA {OPA_VERSION} is here\n    hint: run: pdp opa install")
        raise typer.Exit(Exit.FAILED)
    tell(str(program))


@policies.callback()
def policies_group() -> None:
    """The baseline's policies, which come with the package."""


@policies.command("path")
def policies_path() -> None:
    """Print the folder with the baseline's Rego, for `opa test FOLDER/authz YOUR_FOLDER` and for editors."""
    tell(str(baseline_policies_path()))
