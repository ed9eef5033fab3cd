"""The OPA program: which version, where it is found, how it is run."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar, Final

from platformdirs import user_cache_path

from pdp.errors import PdpError, UsageError
from pdp.workbench.opa.run import opa_environment

OPA_VERSION: Final = "1.22.0"
"""The one version that this program is tested with; bundles are built and decided by it."""

OPA_VARIABLE: Final = "PDP_OPA"
"""The environment variable that names the program to use."""

_ANSWER_TIMEOUT: Final = 20.0
_PROCESSORS: Final = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class OpaInstallError(PdpError):
    """OPA could not be installed: in one way (one line), or in all of them (a line for each)."""

    code: ClassVar[str] = "opa.install_failed"


def find_opa() -> Path | None:
    """Return the OPA program to use, or None: what PDP_OPA names, else `opa` on PATH, else what was installed.

    On PATH and in the cache, another version than `OPA_VERSION` is passed over.

    Raises:
        UsageError: PDP_OPA names something else than OPA of this version.
    """
    named = os.environ.get(OPA_VARIABLE)
    if named:
        return _named(Path(named))
    on_path = shutil.which("opa")
    for candidate in (Path(on_path) if on_path else None, cached_opa()):
        if candidate is not None and opa_version(candidate) == OPA_VERSION:
            return candidate
    return None


def needed_opa(what: str) -> Path:
    """Return the OPA program; the error says that `what` needs it when there is none.

    Raises:
        UsageError: there is none.
    """
    found = find_opa()
    if found is None:
        raise UsageError(f"{what} needs Open Policy Agent {OPA_VERSION}, and none is here", hint="run: pdp opa install")
    return found


def cached_opa() -> Path:
    """Return where an installed OPA is kept, in the user's cache folder; it need not be there."""
    suffix = ".exe" if platform.system() == "Windows" else ""
    return user_cache_path("tool-pdp") / f"opa-{OPA_VERSION}-{system()}-{processor()}{suffix}"


def system() -> str:
    """Return the operating system as Go and OPA's releases call it: linux, darwin, windows."""
    return platform.system().lower()


def processor() -> str:
    """Return the processor as Go and OPA's releases call it: amd64, arm64; others as the system calls them."""
    machine = platform.machine().lower()
    return _PROCESSORS.get(machine, machine)


def opa_version(program: Path) -> str | None:
    """Return the version that a program reports as OPA does, or None when it is not OPA or cannot be run."""
    try:
        done = subprocess.run(  # noqa: S603 - the program is the user's own, or the one that we installed
            [program, "version"],
            env=opa_environment(),
            capture_output=True,
            timeout=_ANSWER_TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    for line in done.stdout.decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "Version":
            return value.strip()
    return None


def _named(program: Path) -> Path:
    found = opa_version(program)
    if found == OPA_VERSION:
        return program
    what = f"is version {found}" if found else "is not an OPA program that can be run"
    raise UsageError(
        f"{OPA_VARIABLE} names {program}, which {what}", hint=f"name OPA {OPA_VERSION}, or unset {OPA_VARIABLE}"
    )
