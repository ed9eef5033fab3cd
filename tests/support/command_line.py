"""The command line as tests use it: run in this process, or as one of its own."""

import io
import json
import os
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
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which is one JSON document and nothing else."""
        return json.loads(self.out)


def pdp(*arguments: object, stdin: bytes | None = None) -> Done:
    """Run one command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        if stdin is not None:
            stack.enter_context(patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))))
        code = run_command([str(argument) for argument in arguments])
    return _checked(Done(code, out.getvalue(), err.getvalue()))


def pdp_process(*arguments: object, stdin: bytes = b"", **variables: str) -> Done:
    """Run one command as a process of its own, `variables` being added to its environment."""
    done = subprocess.run(
        [sys.executable, "-m", "pdp", *map(str, arguments)],
        input=stdin, capture_output=True, check=False, cwd=ROOT, env=environment(**variables), timeout=PATIENCE,
    )  # fmt: skip
    return _checked(Done(done.returncode, done.stdout.decode(), done.stderr.decode()))


def environment(**variables: str) -> dict[str, str]:
    """The environment without what changes how Python writes, and with `variables`.

    OPA runs unit tests in half the time where it seldom collects garbage.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "COLUMNS")}
    return {**kept, "GOGC": "800", **variables}


def _checked(done: Done) -> Done:
    assert "Traceback" not in done.out + done.err
    assert "fault of pdp itself" not in done.err
    return done


def written(path: Path, value: object) -> Path:
    """Write a file: bytes and text as they are, anything else as JSON."""
    if isinstance(value, bytes):
        path.write_bytes(value)
    else:
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def line(proposal: object = "-", **files: object) -> list[object]:
    """The line of `pdp decide` for the payments example, with some of its files replaced: `m=`, `s=`, `g=`."""
    options = {**OPTIONS, **{f"-{name}": file for name, file in files.items()}}
    return ["decide", proposal, *(part for option in options.items() for part in option)]


def decided(proposal: object, *more: object, **files: object) -> Done:
    """What `pdp decide` answers to a proposal on standard input."""
    text = proposal if isinstance(proposal, bytes) else json.dumps(proposal).encode()
    return pdp(*line(**files), *more, stdin=text)


def session_file(folder: Path, **changes: Any) -> Path:
    """The example's session with some fields changed; those in `claims` one by one."""
    claims = {**SESSION["claims"], **changes.pop("claims", {})}
    return written(folder / "session.json", {**SESSION, "claims": claims, **changes})


def codes(done: Done) -> list[str]:
    """The codes of the reasons in a JSON answer."""
    return [reason["code"] for reason in done.json["reasons"]]
