"""Run commands of `pdp` in this process or in another one."""

import io
import json
import os
import shlex
import subprocess
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from pdp.cli import run_command
from tests.support import PATIENCE, ROOT
from tests.support.payments import EXAMPLE

SESSION = json.loads((EXAMPLE / "session.json").read_text())
OPTIONS = {"-m": EXAMPLE / "manifest.json", "-s": EXAMPLE / "session.json", "-g": EXAMPLE / "governance.yaml"}


class Done(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Parse standard output, which must be a single JSON document."""
        return json.loads(self.out)


def pdp(*arguments: object, stdin: bytes | None = None) -> Done:
    """Run a `pdp` command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        if stdin is not None:
            stack.enter_context(patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))))
        code = run_command([str(argument) for argument in arguments])
    return _checked(Done(code, out.getvalue(), err.getvalue()))


def pdp_process(*arguments: object, stdin: bytes = b"", **variables: str) -> Done:
    """Run a `pdp` command in another process, with `variables` added to the environment."""
    done = subprocess.run(
        [sys.executable, "-m", "pdp", *map(str, arguments)],
        input=stdin, capture_output=True, check=False, cwd=ROOT, env=environment(**variables), timeout=PATIENCE,
    )  # fmt: skip
    return _checked(Done(done.returncode, done.stdout.decode(), done.stderr.decode()))


def environment(**variables: str) -> dict[str, str]:
    """Return the environment with `variables`, but without variables that change the output of Python.

    OPA is set to collect garbage less often, which makes unit tests of policies twice as fast.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "COLUMNS")}
    return {**kept, "GOGC": "800", **variables}


def opa_for_custom_tests(program: Path, opa: Path) -> Path:
    """Write a program that runs OPA, and for `opa test --timeout` skips the baseline's tests, which take 5 s.

    `scripts/test` runs the tests of the baseline.
    """
    custom = """case "$1 $2" in "test --timeout") set -- "$@" --run '^data\\.custom\\.' ;; esac"""
    written(program, f'#!/bin/sh\n{custom}\nexec {shlex.quote(str(opa))} "$@"\n').chmod(0o755)
    return program


def _checked(done: Done) -> Done:
    assert "Traceback" not in done.out + done.err
    assert "internal error of pdp" not in done.err
    return done


def written(path: Path, value: object) -> Path:
    """Write a file and return its path. Bytes and texts are written unchanged, and other values are written as JSON."""
    if isinstance(value, bytes):
        path.write_bytes(value)
    else:
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def line(proposal: object = "-", **files: object) -> list[object]:
    """Return the arguments of `pdp decide` for the payments example. `m`, `s` and `g` replace its input files."""
    options = {**OPTIONS, **{f"-{name}": file for name, file in files.items()}}
    return ["decide", proposal, *(part for option in options.items() for part in option)]


def decided(proposal: object, *more: object, **files: object) -> Done:
    """Run `pdp decide` with a proposal on standard input, and return the exit code and output."""
    text = proposal if isinstance(proposal, bytes) else json.dumps(proposal).encode()
    return pdp(*line(**files), *more, stdin=text)


def session_file(folder: Path, **changes: Any) -> Path:
    """Write the example's session with these fields changed and these `claims` added, and return the file."""
    claims = {**SESSION["claims"], **changes.pop("claims", {})}
    return written(folder / "session.json", {**SESSION, "claims": claims, **changes})


def codes(done: Done) -> list[str]:
    """Return the reason codes in the JSON output of a command."""
    return [reason["code"] for reason in done.json["reasons"]]
