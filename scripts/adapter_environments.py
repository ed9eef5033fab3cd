"""Run the tests of adapters, each in its own environment, because the frameworks cannot be installed together.

An environment is built once from a lock file and kept in the user's cache under the digest of the lock. Other
arguments are passed to pytest.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from scripts.rotation import chosen

ROOT: Final = Path(__file__).resolve().parents[1]
LOCKS: Final = ROOT / "tests/adapters/locks"
BASES: Final = (user_cache_path("tool-pdp") / "environments", ROOT / ".venv/environments")
"""Where environments are; the second is for a cache that cannot be written."""

_EXTRAS: Final = ("cel", "client", "follow", "sidecar", "sql")
_WEEK: Final = 7 * 86400
_PATIENCE: Final = 1200
_SUITE: Final = "tests/adapters/test_suite.py::test_"


def environment(name: str, lock: Path, bases: tuple[Path, ...] = BASES) -> Path:
    """Return the Python of an environment, and build the environment if it is missing.

    It is built in a temporary folder and then moved, so two runs can build it at the same time. Environments of the
    same
    adapter that were not used for a week are deleted. CalledProcessError: uv failed; OSError: no folder is writable.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = f"{name}-{hashlib.sha256(lock.read_bytes() + version.encode()).hexdigest()[:16]}"
    for base in bases:
        if (base / key / "bin/python").exists():
            with suppress(OSError):
                os.utime(base / key)
            return base / key / "bin/python"
    made = _empty_folder(bases, key)
    try:
        print(f"Installing {lock.name} ...", file=sys.stderr, flush=True)
        _install(made, "sync", str(lock))
        home = made.with_name(key)
        if not (home / "bin/python").exists():  # The Python of this environment is gone.
            shutil.rmtree(home, ignore_errors=True)
        with suppress(OSError):  # Another run has built it first.
            made.rename(home)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    for other in home.parent.glob(f"{name}-*"):
        if other.stat().st_mtime < time.time() - _WEEK:
            shutil.rmtree(other, ignore_errors=True)
    return home / "bin/python"


def _empty_folder(bases: tuple[Path, ...], key: str) -> Path:
    for base in bases[:-1]:
        with suppress(OSError):
            base.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=f"{key}.", dir=base))
    bases[-1].mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{key}.", dir=bases[-1]))


def _install(folder: Path, *words: str) -> None:
    _uv("venv", "--clear", "--relocatable", "--python", sys.executable, str(folder))
    _uv("pip", words[0], "--python", str(folder / "bin/python"), *words[1:])


def _newest(name: str, folder: Path) -> Path:
    """Install the newest releases, even above the extra's bounds, and return the environment's Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [re.split(r"[<>=~!\[;]", each)[0] for each in project["optional-dependencies"][name.replace("_", "-")]]
    overrides = folder / "overrides.txt"
    overrides.write_text("\n".join(wanted), encoding="utf-8")
    _install(folder / "made", "install", "-r", "pyproject.toml", *_groups(name), "--overrides", str(overrides))
    return folder / "made/bin/python"


def write_lock(name: str) -> None:
    """Resolve an adapter's extra again, and write its lock file."""
    options = ["--upgrade", "--python-version=3.11", "--no-header", "--no-annotate"]
    lock = str((LOCKS / f"{name}.txt").relative_to(ROOT))
    _uv("pip", "compile", "pyproject.toml", *_groups(name), *options, "-o", lock)


def _groups(name: str) -> list[str]:
    extras = (f"--extra={extra}" for extra in (*_EXTRAS, name.replace("_", "-")))
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    own = f"adapters-{name.replace('_', '-')}"
    return [*extras, "--group=adapters", *([f"--group={own}"] if own in known else [])]


def _uv(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", "--quiet", "--system-certs", *words], cwd=ROOT, check=True)  # noqa: S603 - uv


def files_of(name: str) -> tuple[str, ...]:
    """Return the paths that belong to an adapter, in the form that `chosen` takes."""
    own = (f"pdp/adapters/{name}.py", f"tests/adapters/{name}/", f"tests/adapters/locks/{name}.txt")
    return *own, f"examples/frameworks/{name}_payments.py", "pdp/adapters/guard/"


def _said(name: str, stated: argparse.Namespace, words: list[str]) -> tuple[int, str]:
    """Run the command for one adapter; return the exit code and the text to print."""
    try:
        if stated.lock:
            return write_lock(name) or 0, ""
        with tempfile.TemporaryDirectory() as folder:
            lock = LOCKS / f"{name}.txt"
            python = str(_newest(name, Path(folder)) if stated.newest else environment(name, lock))
            if stated.python:
                return 0, python
            tests = [f"tests/adapters/{name}", "tests/adapters/test_suite.py"]
            which = f"{name} and not with_which_versions" if stated.newest else name
            own = ["pytest", "-q", "-k", which, *tests, *words]
            if stated.table:
                own = ["tests.conformance", name]
            environ = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(  # noqa: S603 - the Python of the environment
                [python, "-m", *own],
                cwd=ROOT,
                env=environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=_PATIENCE,
            )
            said = done.stdout + (done.stderr if done.returncode else "")
            return done.returncode, f"== {name}\n{said}"
    except (OSError, subprocess.SubprocessError) as error:
        return 2, f"== {name}\n{error}"


def main(argv: list[str]) -> int:
    """Run the command line."""
    end = argv.index("--") if "--" in argv else len(argv)
    names = sorted(lock.stem for lock in LOCKS.glob("*.txt"))
    parser = argparse.ArgumentParser(prog="scripts/adapters", usage="%(prog)s [OPTION...] [NAME...] [-- PYTEST...]")
    parser.description = __doc__
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all, if absent")
    parser.add_argument("--changed", action="store_true", help="only what a commit of the day before HEAD's touches")
    parser.add_argument("--rotating", type=int, default=0, metavar="N", help="with --changed: N more, by turns")
    parser.add_argument("--newest", action="store_true", help="on the newest releases, also those that we do not admit")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--table", action="store_true", help="write rows of docs/reference/enforcement-points.yaml; run no tests"
    )
    instead.add_argument(
        "--lock", action="store_true", help="resolve the extra again and write the lock file; run no tests"
    )
    instead.add_argument("--python", action="store_true", help="print the environment's Python; run no tests")
    stated = parser.parse_args(argv[:end])
    if unknown := sorted({*stated.names} - {*names}):
        parser.error(f"unknown adapter: {', '.join(unknown)}; choose from {', '.join(names)}")
    named = stated.names or [name for name in names if (ROOT / f"tests/adapters/{name}/target.py").exists()]
    if stated.changed:
        named = chosen(ROOT, {name: files_of(name) for name in named}, stated.rotating)
    failed = 0
    with ThreadPoolExecutor(1 if stated.table else 2) as pool:  # All adapters write one table.
        for done in as_completed([pool.submit(_said, name, stated, argv[end + 1 :]) for name in named]):
            code, text = done.result()
            print(text, flush=True)
            failed = failed or code
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
