"""The OPA program: which version, where it is found, how it is run."""

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

OPA_VERSION: Final = "1.22.4"
"""The version that this program is tested with; it is installed, and released bundles are built with it."""

OPA_VARIABLE: Final = "PDP_OPA"
"""The environment variable that names the program to use."""

WITHOUT_OPA: Final = f" without OPA {OPA_VERSION}; get it with: pdp opa install"
"""Why something is not known without OPA, to go on from "not known"."""

# A run is short: collecting garbage often would only cost time.
_NO_COLLECTION: Final = {"GOGC": "off", "GOMEMLIMIT": "512MiB"}
_ANSWER_TIMEOUT: Final = 20.0
_REPORTED: Final = re.compile(r"^Version:\s*(\S+)\s*$", re.MULTILINE)
_PROCESSORS: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def find_opa() -> Path | None:
    """Return the OPA program to use, or None: what PDP_OPA names, else `opa` on PATH, else what was installed.

    On PATH and in the cache, a version that may not decide (`version_fault`) is passed over.

    UsageError: PDP_OPA names such a version, or something that is not OPA.
    """
    named = os.environ.get(OPA_VARIABLE)
    if named:
        version = opa_version(Path(named))
        fault = version_fault(version) if version else "is not an OPA program that can be run"
        if fault is not None:
            hint = f"name OPA {OPA_VERSION}, or unset {OPA_VARIABLE}"
            raise UsageError(f"{OPA_VARIABLE} names {named}, which {fault}", hint=hint)
        return Path(named)
    on_path = shutil.which("opa")
    for candidate in (Path(on_path) if on_path else None, cached_opa()):
        if candidate is not None and version_fault(opa_version(candidate)) is None:
            return candidate
    return None


def needed_opa(purpose: str) -> Path:
    """Return the OPA program; the error says that `purpose` needs it when there is none."""
    program = find_opa()
    if program is None:
        raise UsageError(
            f"{purpose} needs Open Policy Agent {OPA_VERSION}, and none is here", hint="run: pdp opa install"
        )
    return program


def cached_opa() -> Path:
    """Return where an installed OPA is kept, in the user's cache folder; it need not be there."""
    return user_cache_path("tool-pdp") / "-".join(("opa", OPA_VERSION, *machine()))


def machine() -> tuple[str, str]:
    """Return operating system and processor as Go and OPA's releases call them: linux or darwin, amd64 or arm64.

    Others are named as the system names them.
    """
    processor = platform.machine().lower()
    return platform.system().lower(), _PROCESSORS.get(processor, processor)


def opa_version(program: Path) -> str | None:
    """Return the version that a program reports as OPA does, or None when it is not OPA or cannot be run."""
    try:
        done = run_opa(program, ["version"], timeout=_ANSWER_TIMEOUT)
    except (UsageError, ValueError, EngineTimeoutError):
        return None
    version = _REPORTED.search(done.stdout.decode(errors="replace"))
    return version[1] if version and done.returncode == 0 else None


def opa_environment() -> dict[str, str]:
    """Return the environment to run OPA in: ours, without the variables from which OPA takes options."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OPA_")}


def run_opa(
    opa: Path, arguments: Sequence[str], *, timeout: float, folder: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run OPA to its end, whatever its exit code.

    Raises:
        UsageError: it cannot be run.
        EngineTimeoutError: it did not finish in time.
    """
    try:
        return subprocess.run(  # noqa: S603 - the program that the caller named, with arguments made here
            [opa.resolve(), *arguments],
            cwd=folder,
            env={**opa_environment(), **_NO_COLLECTION},
            capture_output=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise UsageError(f"{opa}: OPA cannot be run: {error.strerror}", hint="get it with `pdp opa install`") from error
    except subprocess.TimeoutExpired as error:
        raise EngineTimeoutError(f"OPA did not finish within {timeout:g} s") from error
