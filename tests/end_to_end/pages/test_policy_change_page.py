"""The commands in docs/policy-change.md run in order and print the output on the page."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import PATIENCE, ROOT
from tests.support.command_line import Done, pdp

PAGE = ROOT / "docs/policy-change.md"
COMPARING = (["bundle", "diff"], ["release", "check"])
GENERATE = ("--generate", "300")
"""Limits the number of generated calls. The default of 50,000 on the page takes half a minute for each command."""


class Command(NamedTuple):
    """A command on the page, with its expected output lines and exit code."""

    text: str
    shown: list[str]
    code: int


def commands(page: str) -> list[Command]:
    """Return the commands in a page's blocks that start with `$ `. The exit code is from a following `$ echo $?`."""
    result: list[Command] = []
    lines = iter([line[4:] for line in page.splitlines() if line.startswith("    ") or not line])
    for line in lines:
        if not line.startswith("$ "):
            if line:
                result[-1].shown.append(line)
            continue
        text = line[2:]
        if text == "echo $?":
            result[-1] = result[-1]._replace(code=int(next(lines)))
            continue
        until = "EOF" if text.endswith("<<'EOF'") else None
        while text.endswith("\\") or (until is not None and not text.endswith(f"\n{until}")):
            text += "\n" + next(lines)
        result.append(Command(text, [], 0))
    return result


def ran(text: str) -> Done:
    """Run a command. `pdp` runs in this process, because that is faster, unless the command has a pipe."""
    if not text.startswith("pdp ") or "|" in text or ">" in text:
        ended = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False, timeout=PATIENCE)
        return Done(ended.returncode, ended.stdout, ended.stderr)
    words = shlex.split(text.replace("\\\n", " "))[1:]
    return pdp(*words, *(GENERATE if words[:2] in COMPARING else ()))


def printed(shown: list[str], out: str) -> bool:
    """Return whether `out` matches the page, where `...` matches any text, and `...` alone in a line any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n"
        for line in shown
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in out.splitlines() if line)) is not None


@pytest.mark.parametrize(
    ("shown", "out", "expected"),
    [
        (["a ... c"], "a b c\n", True),
        (["a", "...", "d"], "a\nb\n\nc\nd\n", True),
        (["a", "...", "d"], "a\nd\n", True),
        (["a", "d"], "a\nb\nd\n", False),
        (["a (x)"], "a (x) b\n", False),
        ([], "a\n", False),
    ],
)
def test_output_shown_on_the_page_must_match_the_printed_output(shown: list[str], out: str, expected: bool) -> None:
    assert printed(shown, out) is expected


@pytest.mark.opa
@pytest.mark.process
def test_every_command_prints_the_documented_output(tmp_path: Path, opa: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "pdp"
    cases = " | ".join(f'"{" ".join(words)}"' for words in COMPARING)
    generate = f'case "$1 $2" in {cases}) set -- "$@" {" ".join(GENERATE)} ;; esac'
    program.write_text(f'#!/bin/sh\n{generate}\nexec {shlex.quote(sys.executable)} -m pdp "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PDP_OPA", str(opa))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names = set()

    for command in commands(PAGE.read_text(encoding="utf-8")):
        done = ran(command.text)
        assert (done.code, done.err) == (command.code, ""), command.text
        assert printed(command.shown, done.out), f"{command.text}\n{done.out}"
        names.add(" ".join(command.text.split()[:3]) if command.text.startswith("pdp") else command.text.split()[0])

    assert {" ".join(name.split()[1:]) for name in names if name.startswith("pdp bundle")} == {
        f"bundle {name}" for name in ("build", "diff", "keygen", "list", "publish", "rollback", "sign", "verify")
    }
