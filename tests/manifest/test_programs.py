"""Tests of tools of type `cli`: the templates of command lines, and the programs that the governance file lists."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pdp.errors import FileFaultsError, UsageError
from pdp.manifest.effective import EffectiveManifest, effective_tool
from pdp.manifest.fields import argv_item
from pdp.manifest.load import load_effective
from pdp.manifest.model import DeclaredTool, Program
from pdp.manifest.programs import cli_findings, program_path
from pdp.manifest.versions import manifest_diff

TEXT = {"type": "string"}
GIT = Program(subcommands=("log", "remote", "show"), options=("--author", "-n", "--all"), operands=True)


def findings(*argv: str, program: Program | None = GIT, arguments: tuple[str, ...] = ("a",)) -> list[str]:
    tool = DeclaredTool.model_validate(
        {
            "name": "run_it", "type": "cli", "cli": {"argv": argv},
            "schema": {"type": "object", "properties": dict.fromkeys(arguments, TEXT)},
        }
    )  # fmt: skip
    return [
        finding.message for finding in cli_findings(effective_tool(tool, None, {argv[0]: program} if program else {}))
    ]


@pytest.mark.parametrize(
    "argv",
    [
        ("git", "log", "--author={a}"),
        ("git", "log", "--author=<{a}>"),
        ("git", "log", "{a:-n}"),
        ("git", "remote", "show", "--", "{a}"),
        ("git", "log", "--", "src", "x{a}"),
        ("git", "--no-pager", "log", "--max-count=3", "-p", "--", "{a}"),
        ("git", "log", "--", "{a:--anything}"),
    ],
)
def test_program_arguments_are_accepted_in_positions_that_the_governance_file_allows(argv: tuple[str, ...]) -> None:
    assert findings(*argv) == []


def test_command_line_without_arguments_is_not_restricted() -> None:
    argv = ("git", "-c", "alias.x=!date", "x", "push")

    assert findings(*argv, arguments=(), program=Program()) == []
    assert findings(*argv, arguments=(), program=None) == ["program `git` is not listed in the governance file"]


BARE = "has an argument where it could be an option or a sub-command of `{}`"
NOT_LISTED = "is not a listed option of `{}`"
OPERAND = "is an operand, and arguments are not allowed as operands of `{}`"


@pytest.mark.parametrize(
    ("argv", "program", "message"),
    [
        # At these positions of a command line, the governance file does not allow an argument.
        (("git", "log", "--output={a}"), GIT, f"has an argument in --output, which {NOT_LISTED}"),
        (("git", "log", "--auth={a}"), GIT, f"has an argument in --auth, which {NOT_LISTED}"),
        (("git", "log", "{a:-c}"), GIT, f"has an argument in -c, which {NOT_LISTED}"),
        (("git", "log", "-n=x", "{a}"), GIT, BARE),
        (("git", "{a}"), GIT, BARE),
        (("git", "log", "x{a}"), GIT, BARE),
        (("git", "log", "--", "{a}"), Program(subcommands=("log",)), OPERAND),
        # A fixed word could be a sub-command, or the name of another program to run, so the governance file must list
        # the word.
        (("git", "bisect", "--", "{a}"), GIT, "has `bisect`, which is not a listed sub-command of `{}`"),
        (("git", "-C", "log", "run", "--", "{a}"), GIT, "has `run`, which is not a listed sub-command of `{}`"),
        # These programs may run, load or write a file that is named by an argument, so these programs accept no
        # argument.
        (("pkexec", "{a}"), Program(), BARE),
        (("tini", "--", "{a}"), Program(), OPERAND),
        (("java", "-cp", "{a}"), Program(), BARE),
        (("java", "{a:-cp}"), Program(), f"has an argument in -cp, which {NOT_LISTED}"),
        (("dd", "of={a}"), Program(operands=True), BARE),
        (("find", ".", "-exec", "{a}", ";"), Program(subcommands=(".", ";"), operands=True), BARE),
        (("find", "-exec", "env", "--", "{a}"), Program(operands=True),
         "has `env`, which is not a listed sub-command of `{}`"),
        (("sh", "-c", 'eval "$1"', "--", "{a}"), Program(operands=True),
         'has `eval "$1"`, which is not a listed sub-command of `{}`'),
    ],
)  # fmt: skip
def test_program_argument_in_a_position_that_is_not_listed_is_rejected(
    argv: tuple[str, ...], program: Program, message: str
) -> None:
    (finding,) = findings(*argv, program=program)
    assert finding.partition("]` ")[2] == message.format(argv[0])


@pytest.mark.parametrize(
    ("argv", "arguments", "message"),
    [
        (("git", "log", "--", "{a}"), (), "`cli.argv[3]` uses `a`, which is not an argument"),
        (("git", "log", "--", "{a}"), ("a", "b"), "`cli.argv` does not use argument `b`"),
    ],
)
def test_command_line_template_and_schema_must_name_the_same_arguments(
    argv: tuple[str, ...], arguments: tuple[str, ...], message: str
) -> None:
    assert findings(*argv, arguments=arguments) == [message]


@settings(max_examples=60)
@given(st.text("{}ab:-", max_size=12))
def test_arbitrary_text_in_a_command_line_template_is_parsed_or_raises_value_error(text: str) -> None:
    try:
        item = argv_item(text)
    except ValueError:
        return
    names = item.arguments
    assert len(item.parts) == 2 * len(names) + 1
    assert item.flag is None or len(names) == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{a}"], "must begin with a program, not with argument `a`"),
        (["{a:-x}"], "must begin with a program, not with argument `a`"),
        (["x{a}"], "must begin with a program, not with argument `a`"),
        ([" "], "must begin with a program, and its first item is empty"),
        (["p", "{a"], "has a `{` that is not part of a placeholder"),
        (["p", "a}"], "has a `}` that is not part of a placeholder"),
        (["p", "{}"], "has a `{` that is not part of a placeholder"),
        (["p", "{a!r}"], "has a `{` that is not part of a placeholder"),
        (["p", "{a.__class__:x}"], "has a `{` that is not part of a placeholder"),
        (["p", "x{a:--flag}"], "must not have other text beside `{a:--flag}`"),
        (["p", "--{a}"], "lets the model write an option"),
        (["p", "-{a}b"], "lets the model write an option"),
        (["p", "-l{a}"], "lets the model write an option"),
        (["p", "a\0"], "must not have a NUL character"),
    ],
)
def test_malformed_command_line_template_is_rejected(argv: list[str], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DeclaredTool.model_validate({"name": "t", "type": "cli", "schema": {}, "cli": {"argv": argv}})

    assert [fault["msg"] for fault in caught.value.errors()] == [f"Value error, {message}"]


# Manifest and governance files


MANIFEST = """\
manifest_version: 2026.1.0
tools:
  - name: list_files
    type: cli
    description: List files.
    effect_class: read-internal
    risk_tier: low
    schema:
      type: object
      properties:
        mode: {type: string, description: How.}
        path: {type: string, description: Which.}
    cli:
      argv:
        - ls
        - "--sort={mode}"
        - --
        - "{path}"
"""
RULES = "actions: {list_files: {scopes: [files]}}\n"


def loaded(governance: str | None, manifest: str = MANIFEST) -> EffectiveManifest:
    return load_effective(
        "m.yaml",
        None if governance is None else "g.yaml",
        manifest_text=manifest.encode(),
        governance_text=None if governance is None else governance.encode(),
    )


def faults(governance: str | None, manifest: str = MANIFEST) -> list[tuple[str, int, str, str | None]]:
    with pytest.raises(FileFaultsError) as caught:
        loaded(governance, manifest)
    return [
        (fault.place.file, fault.place.line, fault.message, fault.hint)
        for fault in caught.value.faults
        if not fault.warning
    ]


LISTED = RULES + "programs: {ls: {options: [--sort], operands: true}}\n"


def test_governance_file_with_only_programs_is_valid() -> None:
    assert set(loaded(LISTED.removeprefix(RULES)).tools) == {"list_files"}


@pytest.mark.parametrize("governance", [None, RULES, RULES + "programs: {grep: {operands: true}}\n"])
def test_program_that_the_governance_file_does_not_list_is_a_fault(governance: str | None) -> None:
    assert faults(governance) == [
        (
            "m.yaml", 15, "program `ls` is not listed in the governance file",
            "list the program there: `programs: {ls: {options: [...], operands: true}}`",
        )
    ]  # fmt: skip


def test_argument_in_a_disallowed_position_is_a_fault_of_the_manifest() -> None:
    assert faults(RULES + "programs: {ls: {}}\n") == [
        (
            "m.yaml", 16, "`cli.argv[1]` has an argument in --sort, which is not a listed option of `ls`",
            "list the option in the governance file",
        ),
        (
            "m.yaml", 18, "`cli.argv[3]` is an operand, and arguments are not allowed as operands of `ls`",
            "set `operands: true` in the governance file",
        ),
    ]  # fmt: skip
    assert list(loaded(LISTED).tools) == ["list_files"]


@pytest.mark.parametrize(
    ("programs", "message"),
    [
        ("{ls: {path: bin/ls}}", "`programs.ls.path` must be an absolute path without `..`, not `bin/ls`"),
        ("{ls: {path: /../ls}}", "`programs.ls.path` must be an absolute path without `..`, not `/../ls`"),
        ("{ls: {options: [sort]}}", "`programs.ls.options[0]` must be an option, not `sort`"),
        ("{ls: {options: [-s=x]}}", "`programs.ls.options[0]` must be an option, not `-s=x`"),
        ("{ls: {options: [--]}}", "`programs.ls.options[0]` must be an option, not `--`"),
        ("{git: {subcommands: [--exec-path]}}", "`programs.git.subcommands[0]` must not begin with `-`"),
        ("{/bin/ls: {}}", "key `/bin/ls` must be the name of a program, without a folder, not `/bin/ls`"),
        ("{ls: {operands: 1}}", "`programs.ls.operands` must be true or false, not `1`"),
        ("{ls: {shell: true}}", "unknown key `shell`"),
    ],
)
def test_malformed_program_setting_is_a_fault(programs: str, message: str) -> None:
    with pytest.raises(FileFaultsError) as caught:
        loaded(f"{RULES}programs: {programs}\n")

    assert [fault.message for fault in caught.value.faults if not fault.warning] == [message]


def test_program_is_found_in_the_search_path_or_at_its_listed_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "ls"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert program_path("ls", Program()) == shutil.which("ls", path="/usr/local/bin:/usr/bin:/bin")
    assert program_path("ls", Program(path=str(own))) == str(own)
    assert program_path("absent", Program()) is None
    assert program_path("ls", Program(path=str(tmp_path / "absent"))) is None


@pytest.mark.parametrize("mode", [(0o775, 0o755), (0o757, 0o755), (0o755, 0o757)])
def test_program_writable_by_others_is_rejected(tmp_path: Path, mode: tuple[int, int]) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    file = folder / "ls"
    file.write_text("#!/bin/sh\n")
    (tmp_path / "link").symlink_to(file)
    file.chmod(mode[0])
    folder.chmod(mode[1])

    for path in (file, tmp_path / "link"):
        message = f"program `ls`: other users can write to {path}, or to a folder above it"
        with pytest.raises(UsageError) as caught:
            program_path("ls", Program(path=str(path)))
        assert caught.value.message == message
        governance = f"{RULES}programs:\n  ls: {{path: {path}}}\n"
        assert [fault[:3] for fault in faults(governance)] == [("g.yaml", 3, message)]


def test_manifest_digest_covers_listed_programs_but_not_their_folder(tmp_path: Path) -> None:
    assert loaded(LISTED).digest != loaded(LISTED.replace("[--sort]", "[--sort, -l]")).digest

    manifest, governance = MANIFEST + "      cwd: files\n", tmp_path / "g.yaml"
    governance.write_text(LISTED)
    both = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "m.yaml"
        file.write_text(manifest)
        both.append(load_effective(file, governance))
    folders = [tool.cli.folder for manifest in both for tool in manifest.tools.values() if tool.cli]
    assert folders == [str(tmp_path / "one/files"), str(tmp_path / "other/files")]
    assert both[0].digest == both[1].digest


@pytest.mark.parametrize(
    ("programs", "change"),
    [
        ("{ls: {options: [--sort, -l], operands: true}}", ("program.options", "loosens", "added -l")),
        ("{ls: {options: [--sort], operands: true, subcommands: [x]}}", ("program.subcommands", "loosens", "added x")),
        ("{ls: {options: [--sort], operands: true, path: /bin/ls}}", ("program.path", "unclear", "changed")),
    ],
)
def test_diff_reports_wider_permissions_of_a_program_as_loosening(programs: str, change: tuple[str, str, str]) -> None:
    def seen(old: str, new: str) -> list[tuple[Any, ...]]:
        (tool,) = manifest_diff(loaded(old), loaded(new)).tools
        return [(change.name, change.direction.value, change.what) for change in tool.governance]

    wide = RULES + f"programs: {programs}\n"
    reverse = {"loosens": "tightens", "unclear": "unclear"}[change[1]]
    assert seen(LISTED, wide) == [change]
    assert seen(wide, LISTED) == [(change[0], reverse, change[2].replace("added", "removed"))]
