"""Shapes match only commands with their words. A faulty shape is reported with its location."""

import json
from pathlib import Path

import pytest

from pdp.documents import read_record
from pdp.errors import FileFaultsError
from pdp.hooks.shapes import HookCommands, shapes

NOTHING = "matches nothing, because no command has the word "
STARTS = "which runs what its arguments name"


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("", NOTHING),
        ("ls *", f"{NOTHING}`*`"),
        ("pytest tests/**", NOTHING),
        ("git $HOME", NOTHING),
        ("ls ~/x", NOTHING),
        ("FOO==1 ls", NOTHING),
        ("ls 'a b'", NOTHING),
        ("ls |wc", NOTHING),
        ("ls ...", NOTHING),
        ("ls [<path>... x]", "repeats `<path>...` before other optional words"),
        ("cat <paht>", "has the unknown placeholder `<paht>`"),
        ("ls [-l", "is not a shape"),
        ("ls [-l]...", "is not a shape"),
        ("ls [-a [-b]]", "is not a shape"),
        ("head [-n <number> <text>]", "has two values after an option, `<number> <text>`"),
        ("head [-{qn} -n <number>]", "has the option `-n` both with and without a value"),
        ("git log -- <path> [-s]", "matches nothing, because no option follows `--`"),
        ("x<name> x", "does not begin with the name of a program"),
        ("<name> x", "does not begin with the name of a program"),
        ("cd", "is not a known form of `cd`"),
        ("a|b c|d " + "e|f " * 8, "has more than 256 alternatives"),
        *((shape, STARTS) for shape in (
            "env ls", "xargs <text>", "sudo ls", "/usr/bin/env ls", "sh -c <text>", "time ls", "exec ls", "ls|env x",
            "find [-{exec} <text>]", "find <path> -exec <name>", "find [-name|-exec <text>]",
                "find [-name <text> -execdir <text>]", "rg [--pre=<text>] <text>",
            "git [-c <text>] log", "git -C <path> log", "git [--exec-path=<path>] log", "git <name>",
            "git diff [--ext-diff]", "python [-c <text>]", "python3.11 <path> <text>", "python -m <name>",
            "python [-c <text>] -m pytest", "awk <text> <path>", "sed [-n] <text>", "node -e <text>", "perl -ne <text>",
        )),
    ],
    ids=ascii,
)  # fmt: skip
def test_shape_that_matches_nothing_or_any_program_is_a_fault(tmp_path: Path, shape: str, said: str) -> None:
    fault = fault_of(tmp_path / "commands.yaml", f"runs:\n  - {json.dumps(shape)}\n")
    assert fault.startswith(f"{tmp_path}/commands.yaml:2:5: `runs[0]` ")
    assert said in fault


def test_shape_that_already_runs_cannot_need_approval(tmp_path: Path) -> None:
    fault = fault_of(tmp_path / "commands.yaml", "runs: [git add|log <path>]\nonce_a_run: [ls, git log <path>]\n")
    assert "2:18: `once_a_run[1]` matches nothing, because `runs` has the shape `git log <path>`" in fault


def fault_of(file: Path, text: str) -> str:
    file.write_text(text)
    with pytest.raises(FileFaultsError) as raised:
        read_record(file, HookCommands)
    return str(raised.value)


def test_old_form_of_the_command_list_is_a_fault_that_shows_the_new_form(tmp_path: Path) -> None:
    fault = fault_of(tmp_path / "commands.yaml", "ls: [-l, -a]\n")
    assert fault.splitlines()[-1] == "    hint: write runs: ['ls [-l -a]']"
    assert "unknown key `commands`" in fault_of(tmp_path / "commands.yaml", "commands: [ls]\nonce_a_run: [make]\n")


MATCHES = [
    ("ls [-{la} --all] [<path>...]", "|-l|-al|a b|a -l b|--all a", "-x|-lx|--al|--all=x|-- a|-"),
    ("head [-n <number> -<number>] <path>", "a|-n 3 a|a -n 3|-5 a", "|-n|-n a|-n x a|a b|-n -3 a|-n3 a"),
    ("a <name> [x y] z", "b z|b x y z", "z|b x z|b y z|b x y|b x y z z"),
    ("git push [-u] [<name> <name>]", "push|push origin main|push -u origin main", "push -f|push origin +main"),
    ("a [<path>... ] [-- <path>...]", "|b|b c|-- b|b -- c d", "--|b -- -c|-b"),
    ("git [--no-pager] log [-s]", "log|--no-pager log|log -s|log --no-pager", "-s log|--no-pager|log x"),
    ("a -m <text> [-m <text>]", "-m b|-m b -m c|-m ''", "|-m|b|-m b c|-m -x"),
    ("a --k=<text> <path>::<name> <number>,<number>p", "--k=-x b::c 1,2p", "--k= b::c 1,2p|--k=x b 1,2p|--k=x b::c 1p"),
    ("a b|c <path>/...", "b ./...|c x/...", "b ...|b|d ./..."),
]
"""A shape, and arguments that it matches and does not match."""


@pytest.mark.parametrize(("shape", "matching", "other"), MATCHES, ids=[shape for shape, _, _ in MATCHES])
def test_shape_matches_only_commands_with_its_words(shape: str, matching: str, other: str) -> None:
    def matches(line: str) -> bool:
        words = [word.strip("'") for word in line.split(" ") if word]
        return any(each.matches(words, lambda *_: True) for each in shapes(shape))

    assert {line for line in matching.split("|") if not matches(line)} == set()
    assert {line for line in other.split("|") if matches(line)} == set()
