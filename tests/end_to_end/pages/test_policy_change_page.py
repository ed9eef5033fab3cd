"""docs/policy-change.md: each of its commands is run, in their order, and prints what the page shows."""

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
"""How many calls are made up here; on the page it is the default of 50,000, which takes half a minute each time."""


class Command(NamedTuple):
    """One command of the page: its text for bash, the lines that it is shown to print, and its exit code."""

    text: str
    shown: list[str]
    code: int


def commands(page: str) -> list[Command]:
    """The commands of a page: blocks of `$ ` lines, with what they print, and `$ echo $?` after one that is not 0."""
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
    """What a command came to: in this process where it is one of `pdp` by itself, which is faster."""
    if not text.startswith("pdp ") or "|" in text or ">" in text:
        ended = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False, timeout=PATIENCE)
        return Done(ended.returncode, ended.stdout, ended.stderr)
    words = shlex.split(text.replace("\\\n", " "))[1:]
    return pdp(*words, *(GENERATE if words[:2] in COMPARING else ()))


def printed(shown: list[str], out: str) -> bool:
    """Whether `out` is what the page shows: `...` stands for any text, and alone on a line for any lines."""
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
def test_what_is_shown_is_held_against_what_is_printed(shown: list[str], out: str, expected: bool) -> None:
    assert printed(shown, out) is expected


@pytest.mark.opa
@pytest.mark.process
def test_every_command_of_the_page_does_what_it_shows(
    tmp_path: Path, opa: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
