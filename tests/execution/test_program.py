"""Programs as tools: the command line that a template gives, and real processes up to their end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pdp.errors import FileFaultsError, UsageError
from pdp.execution import processes
from pdp.execution.failures import ToolArgumentError
from pdp.execution.program import CliTool, cli_function
from pdp.execution.run import Execution
from pdp.execution.runner import ToolRunner
from pdp.manifest.effective import effective_tool
from pdp.manifest.load import load_effective
from pdp.manifest.model import DeclaredTool, Tool
from pdp.manifest.programs.argv import argv_arguments, argv_item
from pdp.manifest.programs.command_line import template_findings
from pdp.proposal import Failure, FailureCode

FAILED = FailureCode.TOOL_EXECUTION_FAILED


def entry(*argv: str, schema: dict[str, Any] | None = None, timeout: str | None = None, **cli: Any) -> Tool:
    """An entry whose schema names what its template uses."""
    properties = schema or {name: {} for name in sorted(argv_arguments(argv))}
    declared = {
        "name": "run_it", "type": "cli", "schema": {"type": "object", "properties": properties},
        "cli": {"argv": list(argv), **cli}, "timeout": timeout,
    }  # fmt: skip
    return effective_tool(DeclaredTool.model_validate(declared), None)


def came(tool: Tool, asynchronous: bool = False, **arguments: Any) -> Execution:
    runner = ToolRunner(tool)
    return asyncio.run(runner.arun(arguments)) if asynchronous else runner.run(arguments)


def script(text: str, **options: Any) -> Tool:
    return entry("sh", "-c", text.replace("{", "{{").replace("}", "}}"), **options)


# The template


GREP = ("grep", "{ignore_case:--ignore-case}", "{limit:-m}", "--regexp={pattern}", "--", "{paths}")


@pytest.mark.parametrize(
    ("template", "arguments", "argv"),
    [
        (GREP, {"pattern": "a b", "paths": ["x", "y"]}, ["grep", "--regexp=a b", "--", "x", "y"]),
        (
            GREP,
            {"pattern": "-e $(rm) `x` ; *", "paths": "-x", "ignore_case": True, "limit": 3},
            ["grep", "--ignore-case", "-m", "3", "--regexp=-e $(rm) `x` ; *", "--", "-x"],
        ),
        (GREP, {"pattern": "", "paths": [], "ignore_case": False, "limit": None}, ["grep", "--regexp=", "--"]),
        (GREP, {}, ["grep", "--"]),
        (("p", "{a}"), {"a": ""}, ["p", ""]),
        (("p", "{a}"), {"a": True}, ["p", "true"]),
        (("p", "--a={a}"), {"a": False}, ["p", "--a=false"]),
        (("p", "{a}"), {"a": 2.0}, ["p", "2"]),
        (("p", "--a={a}"), {"a": 1e300}, ["p", "--a=1e+300"]),
        (("p", "--a={a}"), {"a": [1, "b"]}, ["p", "--a=1", "--a=b"]),
        (("p", "{a:-a}"), {"a": [1, "b"]}, ["p", "-a", "1", "-a", "b"]),
        (("p", "{a:-a}"), {"a": [True, False]}, ["p", "-a"]),
        (("p", "{a}:{b}"), {"a": "x", "b": [1, 2]}, ["p", "x:1", "x:2"]),
        (("p", "{a}:{b}"), {"a": "x"}, ["p"]),
        (("p", "{b}{a}"), {"a": "-y", "b": "x"}, ["p", "x-y"]),
        (("p", "{a}:{b}"), {"a": "x", "b": []}, ["p"]),
        (("p", "{{{a}}}", "{{b}}"), {"a": "x"}, ["p", "{x}", "{b}"]),
        (("p", "{a}"), {"a": "{b}"}, ["p", "{b}"]),
        (("p", "{a}"), {"a": "ü 漢\n"}, ["p", "ü 漢\n"]),
    ],
)
def test_a_template_and_its_command_line(template: tuple[str, ...], arguments: dict[str, Any], argv: list[str]) -> None:
    assert cli_function(entry(*template)).argv(arguments) == argv


@pytest.mark.parametrize(
    ("template", "arguments", "message"),
    [
        (("p", "{a}"), {"a": "-x"}, "begins with `-`, which the program would read as an option"),
        (("p", "{a}"), {"a": ["x", "--y"]}, "begins with `-`, which the program would read as an option"),
        (("p", "{a}"), {"a": -1}, "begins with `-`, which the program would read as an option"),
        (("p", "{a:-a}"), {"a": "-x"}, "begins with `-`, which the program would read as an option"),
        (("p", "{b}{a}"), {"a": "-x", "b": ""}, "begins with `-`, which the program would read as an option"),
        (("p", "{a}", "--"), {"a": "-x"}, "begins with `-`, which the program would read as an option"),
        (("p", "--", "{a}"), {"a": "x\0y"}, "has a NUL character"),
        (("p", "--a={a}"), {"a": {}}, "has a part that cannot stand on a command line: an object, a list or null"),
        (("p", "{a:-a}"), {"a": [[1]]}, "has a part that cannot stand on a command line: an object, a list or null"),
        (("p", "{a}"), {"a": [None]}, "has a part that cannot stand on a command line: an object, a list or null"),
        (("p", "{b}{a}"), {"a": [1], "b": [2]}, "is a list, and so is another argument of the same item"),
    ],
)
def test_an_argument_that_cannot_stand_there(
    template: tuple[str, ...], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ToolArgumentError) as caught:
        cli_function(entry(*template)).argv(arguments)

    assert (caught.value.argument, str(caught.value)) == ("a", f"argument a: {message}")


VALUES = st.text(st.characters(codec="utf-8"), max_size=20) | st.integers(-9, 9) | st.booleans()


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(["ignore_case", "limit", "pattern", "paths"]), VALUES | st.lists(VALUES)))
def test_no_argument_ever_becomes_an_option(arguments: dict[str, Any]) -> None:
    """What stands before `--` are the template's own options, their values, and nothing else."""
    try:
        argv = cli_function(entry(*GREP)).argv(arguments)
    except ToolArgumentError:
        return

    options = argv[1 : argv.index("--")]
    own = [item for item in options if item.startswith("-")]
    assert all(item in {"--ignore-case", "-m"} or item.startswith("--regexp=") for item in own)
    if "paths" in arguments:
        paths = arguments["paths"] if isinstance(arguments["paths"], list) else [arguments["paths"]]
        assert len(argv[argv.index("--") + 1 :]) == len(paths)


@settings(max_examples=200, deadline=None)
@given(st.text("{}ab:-", max_size=12))
def test_a_template_is_read_or_refused(text: str) -> None:
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
        (["p", "{a"], "has a `{` that is no placeholder"),
        (["p", "a}"], "has a `}` that is no placeholder"),
        (["p", "{}"], "has a `{` that is no placeholder"),
        (["p", "{a!r}"], "has a `{` that is no placeholder"),
        (["p", "{a.__class__:x}"], "has a `{` that is no placeholder"),
        (["p", "x{a:--flag}"], "has `{a:--flag}` within an item"),
        (["p", "--{a}"], "lets the model choose the option"),
        (["p", "-{a}b"], "lets the model choose the option"),
        (["p", "a\0"], "must not have a NUL character"),
    ],
)
def test_a_template_that_is_none(argv: list[str], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DeclaredTool.model_validate({"name": "t", "type": "cli", "schema": {}, "cli": {"argv": argv}})

    assert [fault["msg"] for fault in caught.value.errors()] == [f"Value error, {message}"]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("sh -c echo\u00a0{a}", "sh"),
        ("/bin/bash -xc {a}", "bash"),
        ("bash {a:-c}", "bash"),
        ("bash -c -- {a}", "bash"),
        ("bash -oc pipefail {a}", "bash"),
        ("bash -o pipefail +x -c {a}", "bash"),
        ("bash --norc -ec {a}", "bash"),
        ("bash --rcfile rc {a}", "bash"),
        ("bash -c exit {a}", "bash"),
        ("sh {a}", "sh"),
        ("sh -v{a}", "sh"),
        ("zsh-5.9 -c {a}", "zsh"),
        ("/usr/bin/env sh -c {a}", "sh"),
        ("env X=1 sh -c {a}", "sh"),
        ("env -Ssh\u00a0-c {a}", "env"),
        ("env -u X {a}", "env"),
        ("nice -n 5 bash -c {a}", "bash"),
        ("nice --adjustment 5 bash -c {a}", "bash"),
        ("timeout 5 nice bash -c {a}", "bash"),
        ("timeout {a} grep x", "timeout"),
        ("busybox sh -c {a}", "sh"),
        ("xargs {a}", "xargs"),
        ("sudo -u me -- python3.11 -c {a}", "python"),
        ("python3 -c {a}", "python"),
        ("python3 -Ximporttime {a}", "python"),
        ("python3 -W ignore {a}", "python"),
        ("python3 - {a}", "python"),
        ("perl -e {a}", "perl"),
        ("perl -e 1 {a:-e}", "perl"),
        ("perl -ne print {a}", "perl"),
        ("lua -e x=1 {a}", "lua"),
        ("node -r ./x.js {a}", "node"),
        ("deno run {a}", "deno"),
        ("awk {a}", "awk"),
        ("awk -v x=1 {a}", "awk"),
        ("sed s/{a}/x/ f", "sed"),
        ("ssh host {a}", "ssh"),
        ("find . -exec sh -c {a}", "sh"),
    ],
)
def test_a_template_in_which_the_model_would_write_a_script(template: str, name: str) -> None:
    said = [one for one in refused(template) if "options after" not in one]
    assert said == [f"`cli.argv` must not let an argument be what {name} runs"]


def refused(template: str, **schema: Any) -> list[str]:
    """What is said of a template whose arguments are texts, or of the schemas that are given."""
    argv = tuple(template.split(" "))
    schemas = {name: schema.get(name, {"type": "string"}) for name in sorted(argv_arguments(argv))}
    return [finding.message for finding in template_findings(entry(*argv, schema=schemas or None))]


@pytest.mark.parametrize(
    "template",
    [
        "git {a}", "git -C repo {a}", "git {a:-C} {b}", "nice git {a}", "git config core.pager {a}",
        "git bisect run {a}", "git submodule foreach {a}", "/usr/bin/git {a}", "find . -exec git {a} ;",
        "docker run {a}", "podman run image {a}", "docker -H x exec box {a}", "kubectl exec pod -- {a}", "kubectl {a}",
        "gdb -ex {a}", "sqlite3 x.db {a}", "make SHELL={a}", "make -C src {a}", "gmake {a}", "vim -c {a}", "less {a}",
        "more {a}", "xargs {a}", "env {a}", "nice {a}", "sudo {a}", "watch {a}", "parallel {a}", "strace {a}", "m4 {a}",
        "pip3 install {a}", "npm install {a}", "ip netns {a}", "systemctl {a}", "ssh -o ProxyCommand={a} host",
    ],
)  # fmt: skip
def test_a_template_in_which_the_model_would_choose_the_program(template: str) -> None:
    (said,) = refused(template)
    assert said.startswith("`cli.argv` must not let an argument be what ")


@pytest.mark.parametrize(
    ("template", "option", "program"),
    [
        ("find {d} -maxdepth 0 -exec {a} ;", "-exec", "find"),
        ("find {d} -execdir {a} +", "-execdir", "find"),
        ("fd {d} --exec={a}", "--exec", "fd"),
        ("git -c {a} log", "-c", "git"),
        ("git clone --upload-p={a} x", "--upload-pack", "git"),
        ("tar --checkpoint-action={a} -xf x", "--checkpoint-action", "tar"),
        ("tar --use-comp={a} -xf x", "--use-compress-program", "tar"),
        ("rsync --rsh={a} x y", "--rsh", "rsync"),
        ("rsync -ave {a} x y", "-e", "rsync"),
        ("rsync {a:--rsh} x y", "--rsh", "rsync"),
        ("sort --compress-program={a} x", "--compress-program", "sort"),
        ("man -P {a} ls", "-P", "man"),
        ("curl -o {a} https://a.example", "-o", "curl"),
        ("curl -sSfo {a} https://a.example", "-o", "curl"),
        ("wget --output-document={a} https://a.example", "--output-document", "wget"),
        ("psql -tAc {a}", "-c", "psql"),
        ("scp -oProxyCommand={a} x y:", "-o", "scp"),
        ("timeout 5 rg --pre={a} x", "--pre", "rg"),
        ("g++-12 -wrapper {a} x.c", "-wrapper", "g++"),
    ],
)
def test_an_option_that_takes_a_command_takes_none_of_the_model(template: str, option: str, program: str) -> None:
    assert refused(template) == [
        f"`cli.argv` must not let an argument be the value of {option} of {program}: what it runs, loads or writes to"
    ]


@pytest.mark.parametrize(
    "template",
    [
        "find {d} -name {a}", "find {d} -exec wc -l {{}} {a} ;", "fd --exec wc ; {a}", "git log --max-count={n} -- {a}",
        "git -C {d} --no-pager log {a}", "git --git-dir={d} log {a}", "docker ps --filter={a}",
        "kubectl -n {n} get pods {a}", "tar -xzf {a}", "tar -Izstd -xf {a}", "rsync -ave ssh {a} y",
        "sort --key={n} {a}", "curl -o out {a}", "curl --output=out {a}", "wget -qO- {a}",
        "psql -v name={a} -f query.sql", "man {a}", "grep make {a}", "echo find {a}", "git --version",
        "find . -exec make all ; -name {a}",
    ],
)  # fmt: skip
def test_a_known_program_may_take_arguments_elsewhere(template: str) -> None:
    assert refused(template) == []


@pytest.mark.parametrize(
    ("template", "schema"),
    [
        ("git {a} --max-count={n}", {"a": {"enum": ["log", "diff"]}}),
        ("git {a}", {"a": {"anyOf": [{"const": "log"}, {"enum": ["diff", None]}]}}),
        ("sh -c {a}", {"a": {"enum": ["id", "exit 1"]}}),
        ("find . -exec {a} ;", {"a": {"enum": ["ls"]}}),
        ("make -j{n} {quiet:--quiet}", {"n": {"type": "integer"}, "quiet": {"type": "boolean"}}),
    ],
)
def test_constants_are_the_authors_words(template: str, schema: dict[str, Any]) -> None:
    assert refused(template, **schema) == []


@pytest.mark.parametrize(
    ("template", "schema", "name"),
    [
        ("env {p} {a}", {"p": {"enum": ["grep", "bash"]}}, "bash"),
        ("git {p} {a}", {"p": {"enum": ["log", "config"]}}, "git"),
        # `p` may be absent, and `a` is then the first operand.
        ("git {p} {a}", {"p": {"enum": ["log"]}}, "git"),
        ("sh {c:-c} {a}", {"c": {"type": "boolean"}}, "sh"),
        ("sh -c {a}", {"a": {"type": "array", "items": {"enum": ["id"]}}}, "sh"),
        ("sh -c {a}", {"a": {"anyOf": [{"const": "id"}, {"type": "string"}]}}, "sh"),
    ],
)
def test_each_constant_is_looked_at(template: str, schema: dict[str, Any], name: str) -> None:
    assert refused(template, **schema) == [f"`cli.argv` must not let an argument be what {name} runs"]


def test_a_constant_that_is_always_there_keeps_its_place() -> None:
    tool = entry("git", "{p}", "{a}", schema={"p": {"enum": ["log"]}, "a": {"type": "string"}})
    whole = {**tool.schema_, "required": ["p"]}

    assert [one.message for one in template_findings(tool)] == ["`cli.argv` must not let an argument be what git runs"]
    assert list(template_findings(tool.model_copy(update={"schema_": whole}))) == []


@pytest.mark.parametrize(
    "template",
    [
        "bash -c exit",
        "bash -oc pipefail exit name {a} {b:-c}",
        "bash --norc run.sh {a}",
        "zsh -- run.sh {a}",
        "env LANG=C grep -e {a}",
        "env -i -- grep -e {a}",
        "timeout 5 nice -n 5 grep -- {a}",
        "busybox sh run.sh {a}",
        "python3.11 -I -m reports {a}",
        "python3 -W ignore run.py {a:--name}",
        "perl -e print -- {a}",
        "perl -w -- run.pl {a}",
        "node run.js {a}",
        "deno run run.ts {a}",
        "awk {{print}} {a}",
        "sed -e s/a/b/ -- {a}",
        "kubectl get node {a}",
        "grep -e {a}",
    ],
)
def test_a_template_whose_script_is_stated_may_take_arguments(template: str) -> None:
    assert refused(template) == []


TEXT = {"type": "string"}


@pytest.mark.parametrize(
    "schema", [TEXT, {}, {"type": "array", "items": TEXT}, {"type": "array"}, {"anyOf": [{"type": "integer"}, TEXT]}]
)
@pytest.mark.parametrize("prefix", ["-l", "--mode", "-5"])
def test_no_text_stands_right_after_the_letters_of_an_option(schema: dict[str, Any], prefix: str) -> None:
    with pytest.raises(UsageError) as caught:
        cli_function(entry("ls", f"{prefix}{{a}}", schema={"a": schema}))

    assert str(caught.value) == (
        f"tool run_it: `cli.argv[1]` lets argument `a` be read as options after {prefix} "
        f"(write `--option={{a}}` or `{{a:{prefix}}}`, or give it an enum)"
    )


@pytest.mark.parametrize(
    ("template", "schema", "shown"),
    [
        (("ls", "{a}"), {"enum": ["x", "-R"]}, "-R"),
        (("ls", "{a}:x"), {"const": "-R"}, "-R"),
        (("ls", "{a:--mode}"), {"type": "array", "items": {"enum": ["-R", "x"]}}, "-R"),
        (("head", "{a}"), {"anyOf": [{"type": "string"}, {"enum": [0, -5]}]}, "-5"),
    ],
)
def test_no_constant_stands_where_every_call_with_it_would_be_refused(
    template: tuple[str, ...], schema: dict[str, Any], shown: str
) -> None:
    with pytest.raises(UsageError) as caught:
        cli_function(entry(*template, schema={"a": schema}))

    assert str(caught.value) == (
        f"tool run_it: `cli.argv[1]` begins with argument `a`, which may be `{shown}`: the program would read it as an "
        "option (write `--option={a}`, or put an item `--` before it)"
    )


@pytest.mark.parametrize("template", [("ls", "--", "{a}"), ("ls", "--mode={a}"), ("ls", "x{a}")])
def test_a_constant_may_begin_with_a_dash_where_it_is_no_option(template: tuple[str, ...]) -> None:
    assert cli_function(entry(*template, schema={"a": {"enum": ["-R"]}})).argv({"a": "-R"})[-1].endswith("-R")


LOADED = """\
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
        order: {$ref: "#/$defs/order", description: How.}
        mode: {type: string, description: Whose letters.}
        count: {type: integer, description: How many.}
    cli:
      argv:
        - ls
        - "-n{count}"
        - "-l{mode}"
        - "{order}"
$defs:
  order: {enum: [time, -r]}
"""


def test_what_could_be_an_option_is_a_fault_of_the_manifest(tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(LOADED)
    with pytest.raises(FileFaultsError) as caught:
        load_effective(file, None)

    faults = [fault for fault in caught.value.faults if not fault.warning]
    assert [(fault.place.line, fault.source, fault.message, fault.hint) for fault in faults] == [
        (
            18, '        - "-l{mode}"', "`cli.argv[2]` lets argument `mode` be read as options after -l",
            "write `--option={mode}` or `{mode:-l}`, or give it an enum",
        ),
        (
            19, '        - "{order}"',
            "`cli.argv[3]` begins with argument `order`, which may be `-r`: the program would read it as an option",
            "write `--option={order}`, or put an item `--` before it",
        ),
    ]  # fmt: skip
    file.write_text(LOADED.replace("-l{mode}", "--mode={mode}").replace('"{order}"', '--\n        - "{order}"'))
    assert list(load_effective(file, None).tools) == ["list_files"]


LEFT_OUT = """\
manifest_version: 2026.1.0
tools:
  - name: list_files
    type: cli
    description: List files.
    effect_class: read-internal
    schema: {type: object, properties: {order: {type: integer, description: How.}}}
    cli: {argv: [ls, "{other}"]}
  - name: find_files
    type: cli
    description: Find files.
    effect_class: read-internal
    schema: {type: object, properties: {program: {type: string, description: What.}}}
    cli: {argv: [find, ., -exec, "{program}", ;]}
"""


def test_a_command_line_that_its_schema_does_not_go_with_is_a_fault_of_the_manifest() -> None:
    with pytest.raises(FileFaultsError) as caught:
        load_effective("m.yaml", None, manifest_text=LEFT_OUT.encode())

    assert [
        (fault.place.line, fault.place.column, fault.message, fault.hint)
        for fault in caught.value.faults
        if not fault.warning
    ] == [
        (8, 17, "`cli.argv` does not use argument `order`", "add `{order}`, or drop the argument"),
        (8, 22, "`cli.argv[1]` uses `other`, which is no argument", "name it in the schema"),
        (
            14, 17,
            "`cli.argv` must not let an argument be the value of -exec of find: what it runs, loads or writes to",
            "state the value; or list what the argument may be: `enum: [...]`",
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "schema", [{"enum": ["a", "R"]}, {"type": "integer"}, {"type": "array", "items": {"type": "number"}}]
)
def test_what_cannot_be_other_options_may_stand_there(schema: dict[str, Any]) -> None:
    assert cli_function(entry("ls", "-l{a}", schema={"a": schema})).argv({"a": 5}) == ["ls", "-l5"]


@pytest.mark.parametrize("template", [("grep", "-e", "--", "{a}"), ("git", "log", "{n:-n}", "--", "{a}")])
def test_an_options_value_is_no_end_of_options(template: tuple[str, ...]) -> None:
    tool = cli_function(entry(*template))

    with pytest.raises(ToolArgumentError) as caught:
        tool.argv({"a": "--output=x", "n": True})

    assert str(caught.value) == "argument a: begins with `-`, which the program would read as an option"
    assert tool.argv({"a": "x", "n": True})[-1] == "x"


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        (
            entry("p", "{a}", schema={}).model_copy(update={"schema_": {}}),
            "tool run_it: `cli.argv[1]` uses `a`, which is no argument (name it in the schema)",
        ),
        (
            entry("p", "{a}", schema={"a": TEXT, "b": TEXT}),
            "tool run_it: `cli.argv` does not use argument `b` (add `{b}`, or drop the argument)",
        ),
        (
            entry("p").model_copy(update={"cli": None}),
            "tool run_it states no program (write `type: cli` and `cli: {argv: [...]}`)",
        ),
    ],
)
def test_template_and_schema_name_the_same_arguments(tool: Tool, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ToolRunner(tool)

    assert str(caught.value) == message


def test_a_shells_own_script_may_take_arguments_as_parameters() -> None:
    assert came(entry("sh", "-c", 'printf %s "$1"', "name", "{a}"), a="$(id); `id`") == Execution("$(id); `id`")


# Real programs


@pytest.mark.parametrize("asynchronous", [False, True])
def test_grep_with_its_own_exit_codes(tmp_path: Path, asynchronous: bool) -> None:
    (tmp_path / "a.txt").write_text("One\n-two\n", encoding="utf-8")
    tool = entry(
        "grep", "--no-messages", "{ignore_case:-i}", "--regexp={pattern}", "--", "{paths}",
        cwd=str(tmp_path), exit_codes={"result": [0, 1]},
    )  # fmt: skip

    found = came(tool, asynchronous, pattern="one", ignore_case=True, paths=["a.txt"])
    dashed = came(tool, asynchronous, pattern="-two", paths=["a.txt"])
    none = came(tool, asynchronous, pattern="three", paths=["a.txt"])
    absent = came(tool, asynchronous, pattern="one", paths=["b.txt"])

    assert [found, dashed, none] == [Execution("One\n"), Execution("-two\n"), Execution("")]
    assert absent.failure == Failure(
        FAILED, "grep ended with exit code 2", {"exception": "ToolExitError", "exit_code": 2}
    )


@pytest.mark.parametrize(
    ("tool", "result"),
    [
        pytest.param(script("echo out; echo err >&2"), "out\n", id="standard output alone"),
        pytest.param(script(":"), "", id="nothing"),
        pytest.param(script(r"printf 'a\000b\377c'"), "a\ufffdb\ufffdc", id="no UTF-8, and NUL"),
        pytest.param(script("""echo '{"a": [1, 2.5, null]}'""", output="json"), {"a": [1, 2.5, None]}, id="JSON"),
        pytest.param(script("exit 7", exit_codes={"result": [7]}), "", id="a code that is a result"),
        pytest.param(script("cat; echo read"), "read\n", id="no standard input"),
    ],
)
def test_what_a_program_gives(tool: Tool, result: Any) -> None:
    assert came(tool) == Execution(result)


@pytest.mark.parametrize(
    ("tool", "message", "details"),
    [
        pytest.param(
            script("echo out; echo /srv/x is bad >&2; echo more >&2; exit 3"),
            "sh ended with exit code 3: <path> is bad", {"exception": "ToolExitError", "exit_code": 3},
            id="the first line of standard error",
        ),
        pytest.param(
            script("echo out; exit 3"),
            "sh ended with exit code 3: out", {"exception": "ToolExitError", "exit_code": 3},
            id="of standard output when there is none",
        ),
        pytest.param(
            script("exit 0", exit_codes={"result": [1]}),
            "sh ended with exit code 0", {"exception": "ToolExitError", "exit_code": 0}, id="zero need not be a result",
        ),
        pytest.param(
            script("kill -KILL $$"),
            "sh was ended by SIGKILL", {"exception": "ToolExitError", "exit_code": -9}, id="a signal",
        ),
        pytest.param(
            script("kill -40 $$"),
            "sh was ended by signal 40", {"exception": "ToolExitError", "exit_code": -40}, id="a signal without a name",
        ),
        pytest.param(
            script("echo '{'", output="json"),
            "the program's output is not JSON: value: not JSON: Expecting property name enclosed in double quotes: "
            "line 2 column 1 (char 2)",
            {"exception": "ToolResultError", "result": "invalid"}, id="no JSON",
        ),
        pytest.param(
            script(r"printf '\377'", output="json"),
            "the program's output is not JSON: value: not UTF-8 text",
            {"exception": "ToolResultError", "result": "invalid"}, id="JSON that is no UTF-8",
        ),
        pytest.param(
            script("yes", max_output=1000),
            "the program wrote more than 1000 bytes",
            {"exception": "ToolResultError", "result": "too_large"}, id="output without end",
        ),
        pytest.param(
            script("printf 12345", max_output=4),
            "the program wrote more than 4 bytes",
            {"exception": "ToolResultError", "result": "too_large"}, id="one byte too much",
        ),
        pytest.param(
            entry("printf", "%s", "{a}"),
            "the arguments are longer than a command line can be", {"exception": "ToolError"}, id="too long",
        ),
    ],
)  # fmt: skip
def test_a_program_that_fails(tool: Tool, message: str, details: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"a": "x" * 10_000_000} if argv_arguments(tool.cli.argv if tool.cli else ()) else {}

    assert came(tool, **arguments).failure == Failure(FAILED, message, details)


def test_output_may_have_as_many_bytes_as_are_admitted() -> None:
    assert came(script("printf 1234", max_output=4)) == Execution("1234")


def test_standard_error_without_end_is_dropped() -> None:
    """The program does not wait for a reader, and nobody keeps more of it than the first 16 KiB."""
    noisy = script("head -c 3000000 /dev/zero >&2; echo done")

    assert came(noisy) == Execution("done\n")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_not_there_is_unavailable_and_not_started(tmp_path: Path, asynchronous: bool) -> None:
    no_program = tmp_path / "tool"
    no_program.write_text("#!/none\n")
    no_program.chmod(0o755)
    messages = {
        "program no-such-program is not found": entry("no-such-program"),
        "program gone is not found": entry(str(tmp_path / "gone")),
        "the working folder is not there": entry("ls", cwd=str(tmp_path / "gone")),
        "tool cannot be started: No such file or directory": entry(str(no_program)),
        "sh ended with exit code 69: closed": script(
            "echo closed; exit 69", exit_codes={"result": [0], "unavailable": [69]}
        ),
    }

    for message, tool in messages.items():
        execution = came(tool, asynchronous)
        assert (execution.failure, execution.started) == (
            Failure(FailureCode.TOOL_UNAVAILABLE, message, {"exception": "ToolUnavailableError"}), False,
        )  # fmt: skip


def test_whether_it_can_run_is_told_beforehand(tmp_path: Path) -> None:
    def reason(tool: Tool) -> str | None:
        return CliTool(tool).unavailable()

    assert reason(entry("sh", cwd=str(tmp_path))) is None
    assert reason(entry("no-such-program")) == "program no-such-program is not found"
    assert reason(entry("sh", cwd=str(tmp_path / "gone"))) == "the working folder is not there"


def test_only_the_listed_variables_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDP_SEEN", "seen")
    monkeypatch.setenv("PDP_HIDDEN", "hidden")
    monkeypatch.delenv("PDP_ABSENT", raising=False)

    assert came(entry("env", env=["PDP_SEEN", "PDP_ABSENT"])) == Execution("PDP_SEEN=seen\n")
    assert came(entry("env")) == Execution("")


def test_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "own").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "own").chmod(0o755)
    monkeypatch.chdir(tmp_path)

    assert came(entry("pwd")) == Execution(f"{tmp_path}\n")
    assert came(entry("./own", cwd="in")) == Execution(f"{tmp_path}/in\n")


def test_a_sensitive_argument_that_a_program_repeats_is_masked() -> None:
    tool = entry("sh", "-c", 'echo "no $1" >&2; exit 1', "name", "{pin}").model_copy(update={"sensitive": ("pin",)})

    failure = came(tool, pin="12-34").failure
    assert failure is not None
    assert failure.message == "sh ended with exit code 1: no ***"


# Its end, with everything that it started


def states(*selection: str) -> list[str]:
    """The states of processes, without those that have ended and only wait to be collected."""
    listed = subprocess.run(["ps", "-o", "stat=,comm=", *selection], capture_output=True, text=True, check=False)
    return [line for line in listed.stdout.splitlines() if not line.startswith("Z")]


def all_end(numbers: Path, count: int) -> bool:
    """Whether that many processes were listed, and all of them end; after SIGKILL that takes the system a moment."""
    listed = numbers.read_text().split()
    assert len(listed) == count
    if not listed:
        return True
    until = time.monotonic() + 30
    while (left := states("-p", ",".join(listed))) and time.monotonic() < until:
        time.sleep(0.01)
    return not left


FAMILY = """
{ sh -c 'echo $$ >> "$1"; TRAP; sleep 300 & echo $! >> "$1"; wait; wait' name "$1" & }
echo $$ >> "$1"
until [ "$(wc -l < "$1")" -ge 3 ]; do sleep 0.01; done
echo ready > "$1.ready"
END
"""


def family(end: str, trap: str = ":", **options: Any) -> Tool:
    """A program with a child and a grandchild, which list their process ids in the file that is the argument."""
    text = FAMILY.replace("END", end).replace("TRAP", trap).replace("{", "{{").replace("}", "}}")
    return entry("sh", "-c", text, "name", "{file}", env=["PATH"], **options)


@pytest.mark.parametrize(("trap", "asynchronous"), [(":", True), ("trap '' TERM", False)])
def test_a_time_out_ends_the_whole_family(
    tmp_path: Path, trap: str, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "TERM_SECONDS", 0.2)
    numbers = tmp_path / "numbers"

    execution = came(family("wait", trap, timeout="PT2S"), asynchronous, file=str(numbers))

    assert execution.failure == Failure(
        FailureCode.TOOL_TIMEOUT, "the tool gave no result within 2 seconds", {"effect": "unknown"}
    )
    assert all_end(numbers, 3)


async def test_cancellation_ends_the_whole_family(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    calling = asyncio.create_task(ToolRunner(family("wait")).arun({"file": str(numbers)}))
    while not (tmp_path / "numbers.ready").exists():  # noqa: ASYNC110 - the event is another process's
        await asyncio.sleep(0.01)
    calling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await calling
    assert all_end(numbers, 3)


async def test_a_program_may_clean_up_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TERM_SECONDS", 60.0)
    begun, cleaned = tmp_path / "begun", tmp_path / "cleaned"
    text = 'trap \'echo cleaned > "$1/cleaned"; exit\' TERM; sleep 300 > /dev/null 2>&1 & echo > "$1/begun"; wait'
    calling = asyncio.create_task(cli_function(entry("sh", "-c", text, "name", "{folder}"))(folder=str(tmp_path)))
    while not begun.exists():  # noqa: ASYNC110 - the event is another process's
        await asyncio.sleep(0.01)
    calling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await calling
    assert cleaned.read_text() == "cleaned\n"


async def test_a_program_that_is_cancelled_while_it_starts_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    """However far the start has come. A transport that is left open warns when it is collected: an error here."""
    numbers = tmp_path / "numbers"
    numbers.touch()
    tool = cli_function(entry("sh", "-c", 'sleep 300 & echo "$!" >> "$1"; wait', "name", "{file}"))
    for steps in range(30):
        calling = asyncio.create_task(tool(file=str(numbers)))
        for _ in range(steps):
            await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    gc.collect()

    assert all_end(numbers, len(numbers.read_text().split()))


async def test_cancelling_twice_does_not_spare_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one comes while the program, which ignores SIGTERM, is waited for."""
    monkeypatch.setattr(processes, "TERM_SECONDS", 60.0)
    numbers = tmp_path / "numbers"
    tool = cli_function(family("trap '' TERM; while :; do wait; done", "trap '' TERM"))
    calling = asyncio.create_task(tool(file=str(numbers)))
    while not (tmp_path / "numbers.ready").exists():  # noqa: ASYNC110 - the event is another process's
        await asyncio.sleep(0.01)
    calling.cancel()
    for _ in range(3):  # until it has noticed
        await asyncio.sleep(0)
    calling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await calling
    assert await asyncio.to_thread(all_end, numbers, 3)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_a_program_leaves_behind_ends_with_it(
    tmp_path: Path, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its children hold its output open, and are not waited for without end."""
    monkeypatch.setattr(processes, "TERM_SECONDS", 0.2)
    numbers = tmp_path / "numbers"

    assert came(family("echo done"), asynchronous, file=str(numbers)) == Execution("done\n")
    assert all_end(numbers, 3)


def test_too_much_output_ends_the_whole_family(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"

    failure = came(family("yes", max_output=1000), file=str(numbers)).failure

    assert failure is not None
    assert failure.message == "the program wrote more than 1000 bytes"
    assert all_end(numbers, 3)


def test_a_child_may_write_a_little_longer_than_the_program() -> None:
    assert came(script("(sleep 0.1; echo late) & echo early")) == Execution("early\nlate\n")


def test_a_program_that_left_its_group_does_not_keep_the_call_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is out of reach, and holds the output open."""
    monkeypatch.setattr(processes, "TERM_SECONDS", 0.1)

    execution = came(script("setsid sleep 30 & echo $!", env=["PATH"]))

    assert execution.failure is None
    left = int(execution.result)
    assert states("-p", str(left))
    os.kill(left, signal.SIGKILL)


async def test_many_programs_at_once() -> None:
    tool = ToolRunner(entry("sh", "-c", 'echo "$1"', "name", "{a}"))

    executions = await asyncio.gather(*(tool.arun({"a": number}) for number in range(40)))

    assert [execution.result for execution in executions] == [f"{number}\n" for number in range(40)]
    assert [line for line in states("--ppid", str(os.getpid())) if line.endswith("sh")] == []
