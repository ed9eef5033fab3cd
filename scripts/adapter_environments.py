"""Environments of adapters: frameworks do not install together, so each has its own, made of a lock file.

An environment lies in the user's cache, named by its lock's digest, and is made once.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

ROOT: Final = Path(__file__).resolve().parents[1]
LOCKS: Final = ROOT / "tests/adapters/locks"
_EXTRAS: Final = ("cel", "client", "follow", "sidecar", "sql")


def environment(name: str) -> Path:
    """Return the Python of an adapter's environment, which is made where it is not there."""
    lock = LOCKS / f"{name}.txt"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256(lock.read_bytes() + version.encode()).hexdigest()[:16]
    home = user_cache_path("tool-pdp") / "environments" / f"{name}-{key}"
    python = home / "bin/python"
    if not (home / "made").exists():
        print(f"Installing {lock.relative_to(ROOT)} ...", file=sys.stderr, flush=True)
        _uv("venv", "--clear", "--python", sys.executable, str(home))
        _uv("pip", "sync", "--python", str(python), str(lock))
        (home / "made").touch()
    return python


def write_lock(name: str, upgrade: tuple[str, ...] = ()) -> None:
    """Resolve an adapter's extra anew, and write its lock file."""
    groups = [f"--extra={extra}" for extra in (*_EXTRAS, name.replace("_", "-"))]
    options = ["--group=adapters", "--python-version=3.11", "--no-header", "--no-annotate", *upgrade]
    _uv("pip", "compile", "pyproject.toml", *groups, *options, "-o", str((LOCKS / f"{name}.txt").relative_to(ROOT)))


def tested(name: str, words: list[str]) -> int:
    """Run an adapter's tests and return pytest's exit code."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(environment(name)), "-m", "pytest", f"tests/adapters/{name}", *words]
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode  # noqa: S603 - pytest


def _uv(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", "--quiet", "--system-certs", *words], cwd=ROOT, check=True)  # noqa: S603 - uv


def main() -> int:
    """Do what the command line says."""
    names = sorted(lock.stem for lock in LOCKS.glob("*.txt"))
    parser = argparse.ArgumentParser(prog="scripts/adapters", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all, if absent")
    parser.add_argument("--lock", action="store_true", help="resolve the extra anew, and write the lock file")
    parser.add_argument("--python", action="store_true", help="print the path of the environment's Python, no tests")
    stated, words = parser.parse_known_args()
    failed = []
    for name in stated.names or names:
        if stated.lock:
            write_lock(name, ("--upgrade",))
        elif stated.python:
            print(environment(name))
        elif tested(name, words):
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
