"""Conventions of all commands: `-h`, `--json`, exit codes in the help, one name per option, and shell completion."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pdp.cli.app import app
from tests.support.command_line import environment, pdp, pdp_process


def commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Return the names of every command, such as `audit verify`. Command groups are not included."""
    if not hasattr(command, "list_commands"):
        yield names, command
        return
    for name in command.list_commands(None):
        yield from commands(command.get_command(None, name), *names, name)


COMMANDS = dict(commands(get_command(app)))
# The gateway commands speak MCP on standard output, `watch` asks a person, and `export` prints JSON Lines alone.
WITHOUT_JSON = {("mcp-gateway", "serve"), ("mcp-gateway", "wrap"), ("approvals", "watch"), ("audit", "export")}
GROUPS = sorted({names[:-1] for names in COMMANDS})


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_of_every_command_names_the_exit_codes_and_the_json_option(names: tuple[str, ...]) -> None:
    short, long = pdp(*names, "-h"), pdp(*names, "--help")
    assert (short.code, short.out, short.err) == (0, long.out, "")
    assert "Exit code: 0" in " ".join(short.out.split())
    options = {option for parameter in COMMANDS[names].params for option in parameter.opts}
    assert "--json" in options or names in WITHOUT_JSON
    assert options.isdisjoint({"--key", "--verify-key", "--verification-key", "--signing-key"})


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_of_every_command_ends_with_a_valid_example_and_the_link(names: tuple[str, ...]) -> None:
    example, link = re.findall(r"\n  Example:\n    (pdp .*)\n\n  (https://.*)\n", pdp(*names, "--help").out)[0]
    assert link.endswith(f"reference/commands/#pdp-{'-'.join(names)}")
    words = shlex.split(example.partition(" > ")[0])
    assert words[1 : len(names) + 1] == [*names]
    COMMANDS[names].make_context("pdp", words[len(names) + 1 :])  # raises an error for unknown options


def test_help_lists_all_commands_in_groups_on_one_line_each() -> None:
    lines = pdp("--help").out.splitlines()
    titles = [line.rstrip(":") for line in lines if re.fullmatch(r"\w+:", line)]
    assert titles == ["Options", "Begin", "Test", "Release", "Operate", "Guard"]
    listed = [line.split()[0] for line in lines[lines.index("Begin:") :] if re.match(r"  \w", line)]
    assert listed == [*dict.fromkeys(name for name, *_ in COMMANDS)]
    assert not any(line.endswith("...") for group in GROUPS for line in pdp(*group, "--help").out.splitlines()[1:])


@pytest.mark.parametrize("names", GROUPS, ids=" ".join)
def test_every_command_group_accepts_the_option_h(names: tuple[str, ...]) -> None:
    short, long = pdp(*names, "-h"), pdp(*names, "--help")
    assert (short.code, short.out, short.err) == (0, long.out, "")


def test_long_option_has_the_same_short_name_in_every_command() -> None:
    spellings: dict[str, set[tuple[str, ...]]] = {}
    for command in COMMANDS.values():
        for parameter in command.params:
            if parameter.param_type_name == "option":
                long = next((name for name in parameter.opts if name.startswith("--")), parameter.opts[0])
                spellings.setdefault(long, set()).add(tuple(sorted(set(parameter.opts) - {long})))
    assert {name: sorted(short) for name, short in spellings.items() if len(short) > 1} == {}


@pytest.mark.opa
@pytest.mark.parametrize(
    ("line", "keys"),
    [
        (["demo"], {"scenes", "audit"}),
        (["init", "new"], {"folder", "files"}),
        (["check"], {"files", "faults"}),
        (["opa", "path"], {"path", "version"}),
        (["opa", "install"], {"path", "version"}),
        (["opa", "policies"], {"path"}),
        (["db", "upgrade", "sqlite:///pdp.db"], {"database", "revision"}),
        (["db", "prune", "sqlite:///pdp.db"], {"database", "forgotten", "runs", "budgets", "requests"}),
    ],
)
def test_json_option_prints_one_json_object(
    line: list[str], keys: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if line[1:2] == ["prune"]:
        pdp("db", "upgrade", line[2])

    done = pdp(*line, "--json")

    assert (done.code, set(done.json)) == (0, keys)


# Completion runs in bash itself. For zsh and fish, the tests check only the answers to their completion scripts.

CANDIDATES = [("pdp audit verify --he", ["--head", "--help"]), ("pdp decide p.json --engine ", ["embedded", "sidecar"])]


@pytest.mark.process
@pytest.mark.parametrize(("line", "candidates"), CANDIDATES)
def test_bash_completes_command_options(line: str, candidates: list[str], tmp_path: Path) -> None:
    program = tmp_path / "pdp"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pdp "$@"\n')
    program.chmod(0o755)
    words = " ".join(f"'{word}'" for word in line.split(" "))
    script = f"""
        eval "$(_PDP_COMPLETE=source_bash pdp)"
        COMP_WORDS=({words}); COMP_CWORD={len(line.split(" ")) - 1}
        $(complete -p pdp | grep -o -- '-F [^ ]*' | cut -c4-) pdp
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True, text=True, check=False, env=environment(PATH=path), cwd=tmp_path,
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (candidates, "")


@pytest.mark.process
@pytest.mark.parametrize(("line", "candidates"), CANDIDATES[1:])
def test_completion_answers_zsh_and_fish(line: str, candidates: list[str]) -> None:
    fish, zsh = (
        pdp_process(_PDP_COMPLETE=shell, _TYPER_COMPLETE_ARGS=line, _TYPER_COMPLETE_FISH_ACTION="get-args")
        for shell in ("complete_fish", "complete_zsh")
    )

    assert [row.partition("\t")[0] for row in fish.out.splitlines()] == candidates
    assert zsh.out.startswith("_arguments '*: :((")
    assert [name for name in candidates if f'"{name}"' not in zsh.out] == []


@pytest.mark.process
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_script_names_program_and_variable(shell: str) -> None:
    done = pdp_process(_PDP_COMPLETE=f"source_{shell}")

    assert (done.code, done.err) == (0, "")
    assert f"_PDP_COMPLETE=complete_{shell}" in done.out
