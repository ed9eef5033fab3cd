"""The OPA program: which version is used, and how it is found and run."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from pdp.engine.opa.versions import version_fault
from pdp.errors import EngineTimeoutError, UsageError

OPA_VERSION: Final = "1.22.4"  # the version that is tested, installed, and used to build released bundles

OPA_VARIABLE: Final = "PDP_OPA"  # the environment variable with the path of the OPA program

WITHOUT_OPA: Final = f" without OPA {OPA_VERSION}; get it with: pdp opa install"
"""The end of messages that begin "not known", for the case that OPA is missing."""

# Go collects garbage only near 512 MiB of memory, because OPA runs only for a short time.
_NO_COLLECTION: Final = {"GOGC": "off", "GOMEMLIMIT": "512MiB"}
_ANSWER_TIMEOUT: Final = 20.0
_REPORTED: Final = re.compile(r"^Version:\s*(\S+)\s*$", re.MULTILINE)
_PROCESSORS: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def find_opa() -> Path | None:
    """Return the OPA program that PDP_OPA names, else `opa` on PATH, else the installed program, or None.

    On PATH and in the cache, versions that may not decide (`version_fault`) are skipped. Raises `UsageError` if PDP_OPA
    names such a version, or a file that is not OPA.
    """
    named = os.environ.get(OPA_VARIABLE)
    if named:
        version = opa_version(Path(named))
        fault = version_fault(version) if version else "is not an OPA program that can be run"
        if fault is not None:
            hint = f"set it to OPA {OPA_VERSION}, or unset {OPA_VARIABLE}"
            raise UsageError(f"{OPA_VARIABLE} names {named}, which {fault}", hint=hint)
        return Path(named)
    on_path = shutil.which("opa")
    for candidate in (Path(on_path) if on_path else None, cached_opa()):
        if candidate is not None and version_fault(opa_version(candidate)) is None:
            return candidate
    return None


def needed_opa(purpose: str) -> Path:
    """Return the OPA program. Raises `UsageError` if OPA is missing, saying that the `purpose` needs it."""
    program = find_opa()
    if program is None:
        raise UsageError(
            f"{purpose} needs Open Policy Agent {OPA_VERSION}, which is not installed", hint="run: pdp opa install"
        )
    return program


def cached_opa() -> Path:
    """Return the path at which OPA is installed in the user's cache folder. The file may not exist."""
    return user_cache_path("tool-pdp") / "-".join(("opa", OPA_VERSION, *machine()))


def machine() -> tuple[str, str]:
    """Return operating system and processor, in Go's names if known, such as ("linux", "amd64")."""
    processor = platform.machine().lower()
    return platform.system().lower(), _PROCESSORS.get(processor, processor)


def opa_version(program: Path) -> str | None:
    """Return the version that a program reports, or None if the program is not OPA or cannot be run."""
    try:
        done = run_opa(program, ["version"], timeout=_ANSWER_TIMEOUT)
    except (UsageError, ValueError, EngineTimeoutError):
        return None
    version = _REPORTED.search(done.stdout.decode(errors="replace"))
    return version[1] if version and done.returncode == 0 else None


def opa_environment() -> dict[str, str]:
    """Return this process's environment variables, except those that set options of OPA."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OPA_")}


def run_opa(
    opa: Path, arguments: Sequence[str], *, timeout: float, folder: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run OPA until it exits, with any exit code. Raises `UsageError` if OPA cannot run, or `EngineTimeoutError`."""
    try:
        return subprocess.run(  # noqa: S603 - the program is the caller's, and no shell is used
            [opa.resolve(), *arguments],
            cwd=folder,
            env={**opa_environment(), **_NO_COLLECTION},
            capture_output=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise UsageError(
            f"{opa}: OPA cannot be run: {error.strerror}", hint="install it with `pdp opa install`"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EngineTimeoutError(f"OPA did not finish within {timeout:g} s") from error
