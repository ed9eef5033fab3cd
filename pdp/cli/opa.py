"""`pdp opa`: the OPA program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdp.cli import Exit
from pdp.cli.output import complain, tell
from pdp.workbench.opa.program import OPA_VERSION, find_opa

if TYPE_CHECKING:
    from pathlib import Path


def ensured() -> Path:
    """Return the OPA program, which is installed when there is none; progress goes to standard error."""
    from pdp.workbench.opa.install import install_opa  # noqa: PLC0415

    return find_opa() or install_opa(complain)


def install() -> int:
    """Find or install OPA and print its path."""
    tell(str(ensured()))
    return Exit.OK


def path() -> int:
    """Print the path of the OPA that would be used."""
    found = find_opa()
    if found is None:
        complain(f"error: no OPA {OPA_VERSION} is here\n    hint: run: pdp opa install")
        return Exit.FAILED
    tell(str(found))
    return Exit.OK
