"""`pdp` as a separate process: exit codes, output streams, signals, and which modules it imports."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pdp import __version__
from pdp.cli.output import brief_log
from pdp.engine.bundle.file import read_bundle
from pdp.opa.program import OPA_VERSION
from tests.support import ROOT
from tests.support.command_line import decided, environment, line, pdp_process, written
from tests.support.payments import wire

pytestmark = pytest.mark.process


def test_pdp_without_a_command_exits_with_2() -> None:
    done = pdp_process()
    assert (done.code, done.out) == (2, "")


def test_version_names_the_program_the_opa_and_the_bundle() -> None:
    done = pdp_process("--version")
    bundle = read_bundle(ROOT / "bundles/baseline.tar.gz")
    expected = f"pdp {__version__}\nOPA {OPA_VERSION}\nbaseline bundle: release {bundle.release}, {bundle.revision}\n"
    assert (done.code, done.out) == (0, expected)


def test_decide_imports_no_heavy_packages() -> None:
    done = pdp_process(*line(), "--json", stdin=json.dumps(wire()).encode(), PYTHONPROFILEIMPORTTIME="1")
    assert (done.code, done.json["verdict"]) == (3, "STEP_UP")
    imported = {entry.rpartition("|")[2].strip() for entry in done.err.splitlines()}
    assert "wasmtime" in imported
    assert imported & {"cel", "aiohttp", "rich.console", "opa_client"} == set()


def test_verdict_is_printed_in_any_encoding() -> None:
    proposal = json.dumps({"tool": "b\u00f6se", "arguments": {}}).encode()
    text = pdp_process(*line(), stdin=proposal, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (text.code, text.out.splitlines()[0], text.err) == (4, "REJECTED  b\\xf6se", "")
    answer = pdp_process(*line(), "--json", stdin=proposal, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (answer.code, answer.json["trace"]["tool_name"]) == (4, "b\u00f6se")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_unwritable_output_exits_with_1() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pdp", *map(str, line()), "--json"],
            input=json.dumps(wire(amount=1)), stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT,
            env=environment(),
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        (
            "error: the system reports: No space left on device\n"
            "    hint: check the disk space, and the destination of the output\n"
        ),
    )


def test_closed_output_pipe_causes_no_error_message() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "pdp", *map(str, line()), "--json"],
        input=json.dumps(wire(amount=1)), stdout=writer, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT,
        env=environment(),
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("closed", "code", "out", "err"),
    [
        (
            "<&-",
            2,
            "",
            "error: standard input (-) is closed, empty, or was read already\n    hint: pipe a file in, use - once\n",
        ),
        (">&-", 4, "", "<stdin>:1:2: not JSON: expecting property name enclosed in double quotes\n"),
        ("2>&-", 4, "REJECTED  (no tool)\n", ""),
    ],
)
def test_closed_standard_streams_are_handled(closed: str, code: int, out: str, err: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m pdp "$@" {closed}', sys.executable, *map(str, line())],
        input="{", capture_output=True, text=True, check=False, cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert (done.returncode, "".join(done.stdout.splitlines(keepends=True)[:1])) == (code, out)
    assert done.stderr.startswith(err)


def test_call_is_denied_if_audit_file_cannot_be_written(tmp_path: Path) -> None:
    record = tmp_path / "audit.jsonl"
    allowed = ["--audit", record]
    for _ in range(2):
        assert decided(wire(amount=1), *allowed).code == 0
    before = record.read_bytes()
    # `ulimit` limits the size of files to one block. The audit file is already larger, so no event can be appended.
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 1; exec "$0" -m pdp "$@"', sys.executable, *map(str, [*line(), *allowed, "--json"])],
        input=json.dumps(wire(amount=1)), capture_output=True, text=True, check=False, cwd=ROOT, env=environment(),
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["verdict"]) == (4, "DENY")
    assert [reason["code"] for reason in answer["reasons"]] == ["audit.write_failed"]
    assert done.stderr == (
        f"error: could not write an audit event, so the call is denied: audit file {record} cannot be used: "
        f"File too large\n"
    )
    assert record.read_bytes() == before


def test_log_message_of_a_command_is_one_line_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("pdp.pep")
    with brief_log():
        log.info("nothing to worry about")
        log.critical("the outcome is unknown")
        try:
            dict[str, int]()["a\x1b[2J"]
        except KeyError:
            log.exception("a decision failed, which is a DENY")
    assert capsys.readouterr().err == (
        "error: the outcome is unknown\n"
        "error: a decision failed, which is a DENY: KeyError: 'a\\x1b[2J'\n"
        "    hint: PDP_TRACEBACK=1 shows where it happened\n"
    )


def test_internal_error_is_reported_as_such(tmp_path: Path) -> None:
    written(tmp_path / "typer.py", "raise RuntimeError('broken\\x1b[2J')\n")
    command = [sys.executable, "-m", "pdp", "opa", "path"]

    def answered(**variables: str) -> tuple[int, str]:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT,
            env=environment(PYTHONPATH=str(tmp_path), **variables),
        )  # fmt: skip
        return done.returncode, done.stderr

    assert answered() == (
        1,
        (
            "error: internal error of pdp: RuntimeError: broken\\x1b[2J\n"
            "    hint: please report it; PDP_TRACEBACK=1 shows where it happened\n"
        ),
    )
    code, shown = answered(PDP_TRACEBACK="1")
    assert (code, shown.splitlines()[0]) == (1, "Traceback (most recent call last):")


def test_interrupted_command_exits_silently(tmp_path: Path) -> None:
    pipe = tmp_path / "proposal"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "pdp", *map(str, line(pipe))]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
        # A background job ignores SIGINT, and its child processes inherit this. Restore the default handling of SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - there are no other threads
    )
    with process:
        # Wait until the command reads its proposal from the pipe. Close the pipe only after the signal, because the
        # signal does not interrupt the read if it arrives just before the read.
        writer = opened(pipe, process)
        process.send_signal(signal.SIGINT)
        os.close(writer)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "")


def opened(pipe: Path, process: subprocess.Popen[str]) -> int:
    while process.poll() is None:
        with suppress(OSError):
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.01)
    raise AssertionError(process.communicate())
