"""Running the OPA program: the environment that it gets, and what is said when it cannot be run."""

from __future__ import annotations

import os
import subprocess
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pdp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def opa_environment() -> dict[str, str]:
    """Return the environment to run OPA in: ours, without the variables from which OPA takes options."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OPA_")}


def run_opa(
    opa: Path, arguments: Sequence[str], *, folder: Path, timeout: float, variables: Mapping[str, str] = _NOTHING
) -> subprocess.CompletedProcess[bytes]:
    """Run OPA to its end, whatever its exit code.

    Args:
        opa: the program.
        arguments: as on a command line.
        folder: where it runs.
        timeout: seconds.
        variables: of the environment, beside ours.

    Raises:
        UsageError: it cannot be run.
        subprocess.TimeoutExpired: not finished in time.
    """
    try:
        return subprocess.run(  # noqa: S603 - the program that the caller named, with arguments made here
            [opa.resolve(), *arguments],
            cwd=folder,
            env={**opa_environment(), **variables},
            capture_output=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise UsageError(f"{opa}: OPA cannot be run: {error.strerror}", hint="get it with `pdp opa install`") from error
