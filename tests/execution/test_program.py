"""Programs as tools: command lines are made from templates, and processes run until they end or are killed."""

import asyncio
import gc
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdp.errors import UsageError
from pdp.execution import program
from pdp.execution.failures import ToolArgumentError
from pdp.execution.program import CliTool
from pdp.execution.runner import ToolRunner
from pdp.manifest.effective import effective_tool
from pdp.manifest.fields import argv_item
from pdp.manifest.model import DeclaredTool, Program, Tool
from pdp.proposal import Execution, Failure, FailureCode
from tests.support import timely, until

FAILED = FailureCode.TOOL_EXECUTION_FAILED


def entry(*argv: str, path: str | None = None, timeout: str | None = None, **cli: Any) -> Tool:
    """Return a manifest entry with this command line template, a matching schema and an allowed program."""
    items = [argv_item(text) for text in argv[1:]]
    declared = {
        "name": "run_it", "type": "cli", "cli": {"argv": list(argv), **cli}, "timeout": timeout,
        "schema": {"type": "object", "properties": {name: {} for item in items for name in item.arguments}},
    }  # fmt: skip
    program = Program(
        path=path,
        subcommands=tuple(word for item in items if (word := item.parts[0]) and not word.startswith("-")),
        options=tuple(
            item.flag or item.parts[0].partition("=")[0]
            for item in items
            if item.arguments and (item.flag or item.parts[0].startswith("-"))
        ),
        operands=True,
    )
    return effective_tool(DeclaredTool.model_validate(declared), None, {argv[0]: program})


def executed(tool: Tool, asynchronous: bool = False, **arguments: Any) -> Execution:
    runner = ToolRunner(tool)
    return asyncio.run(runner.arun(arguments)) if asynchronous else runner.run(arguments)


def script(text: str, **options: Any) -> Tool:
    return entry("sh", "-c", text.replace("{", "{{").replace("}", "}}"), **options)


# Templates


NO_PART = "contains an object, a list or null, which a command line cannot hold"
GREP = ("grep", "{ignore_case:--ignore-case}", "{limit:-m}", "--regexp={pattern}", "--", "{paths}")


@pytest.mark.parametrize(
    ("template", "arguments", "argv"),
    [
        (GREP, {"pattern": "a b", "paths": ["x", "y"]}, ["grep", "--regexp=a b", "--", "x", "y"]),
        (GREP, {"pattern": "-e $(rm) `x` ; *", "paths": "-x", "ignore_case": True, "limit": 3},
         ["grep", "--ignore-case", "-m", "3", "--regexp=-e $(rm) `x` ; *", "--", "-x"]),
        (GREP, {"pattern": "", "paths": [], "ignore_case": False, "limit": None}, ["grep", "--regexp=", "--"]),
        (GREP, {}, ["grep", "--"]),
        (("p", "--", "{a}"), {"a": ""}, ["p", "--", ""]),
        (("p", "--", "{a}"), {"a": True}, ["p", "--", "true"]),
        (("p", "--a={a}"), {"a": False}, ["p", "--a=false"]),
        (("p", "--", "{a}"), {"a": 2.0}, ["p", "--", "2"]),
        (("p", "--a={a}"), {"a": 1e300}, ["p", "--a=1e+300"]),
        (("p", "--a={a}"), {"a": [1, "b"]}, ["p", "--a=1", "--a=b"]),
        (("p", "{a:-a}"), {"a": [1, "b"]}, ["p", "-a", "1", "-a", "b"]),
        (("p", "{a:-a}"), {"a": [True, False]}, ["p", "-a"]),
        (("p", "--", "{a}:{b}"), {"a": "x", "b": [1, 2]}, ["p", "--", "x:1", "x:2"]),
        (("p", "--", "{a}:{b}"), {"a": "x"}, ["p", "--"]),
        (("p", "--a={b}{a}"), {"a": "-y", "b": "x"}, ["p", "--a=x-y"]),
        (("p", "--", "{a}:{b}"), {"a": "x", "b": []}, ["p", "--"]),
        (("p", "--", "{{{a}}}", "{{b}}"), {"a": "x"}, ["p", "--", "{x}", "{b}"]),
        (("p", "--", "{a}"), {"a": "{b}"}, ["p", "--", "{b}"]),
        (("p", "--", "{a}"), {"a": "ü 漢\n"}, ["p", "--", "ü 漢\n"]),
        (("git", "log", "{n:-n}", "--", "{a}"), {"a": "x", "n": True}, ["git", "log", "-n", "--", "x"]),
    ],
)  # fmt: skip
def test_arguments_fill_the_command_line_template(
    template: tuple[str, ...], arguments: dict[str, Any], argv: list[str]
) -> None:
    assert CliTool(entry(*template)).argv(arguments) == argv


@pytest.mark.parametrize(
    ("template", "arguments", "message"),
    [
        *(
            (template, arguments, "begins with `-`, which the program would read as an option")
            for template, arguments in [
                (("p", "-e", "--", "{a}"), {"a": "-x"}),
                (("p", "-e", "--", "{a}"), {"a": ["x", "--y"]}),
                (("p", "{a:-n}"), {"a": -1}),
                (("p", "{a:-a}"), {"a": "-x"}),
                (("p", "-e", "--", "{b}{a}"), {"a": "-", "b": ""}),
                # In this command line, `--` is the value of the option `-n`, so it does not end the options.
                (("git", "log", "{n:-n}", "--", "{a}"), {"a": "--output=x", "n": True}),
            ]
        ),
        (("p", "--", "{a}"), {"a": "x\0y"}, "has a NUL character"),
        (("p", "--a={a}"), {"a": {}}, NO_PART),
        (("p", "{a:-a}"), {"a": [[1]]}, NO_PART),
        (("p", "{a:-a}"), {"a": [None]}, NO_PART),
        (
            ("p", "--", "{b}{a}"),
            {"a": [1], "b": [2]},
            "is a list, but only one argument of an item of `cli.argv` may be a list",
        ),
    ],
)
def test_argument_that_cannot_be_passed_to_a_program_is_an_error(
    template: tuple[str, ...], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ToolArgumentError) as caught:
        CliTool(entry(*template)).argv(arguments)

    assert (caught.value.details["argument"], str(caught.value)) == ("a", f"argument a: {message}")


VALUES = st.text(st.characters(codec="utf-8"), max_size=20) | st.integers(-9, 9) | st.booleans()


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(["ignore_case", "limit", "pattern", "paths"]), VALUES | st.lists(VALUES)))
def test_argument_of_a_program_never_becomes_a_command_line_option(arguments: dict[str, Any]) -> None:
    """The options before `--` in a command line are always options of the template, and never arguments of the call."""
    try:
        argv = CliTool(entry(*GREP)).argv(arguments)
    except ToolArgumentError:
        return

    options = argv[1 : argv.index("--")]
    own = [item for item in options if item.startswith("-")]
    assert all(item in {"--ignore-case", "-m"} or item.startswith("--regexp=") for item in own)
    if "paths" in arguments:
        paths = arguments["paths"] if isinstance(arguments["paths"], list) else [arguments["paths"]]
        assert len(argv[argv.index("--") + 1 :]) == len(paths)


def test_arguments_of_a_shell_script_are_not_interpreted() -> None:
    assert executed(entry("sh", "-c", 'printf %s "$1"', "--", "{a}"), a="$(id); `id`") == Execution("$(id); `id`")


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        (entry("p").model_copy(update={"program": None}), "tool run_it has no allowed program"),
        (entry("p", "--", "{a}").model_copy(update={"program": Program()}),
         "tool run_it: `cli.argv[2]` is an operand, and arguments are not allowed as operands of `p`"),
        (entry("p", "--", "{a}").model_copy(update={"schema_": {}}),
         "tool run_it: `cli.argv[2]` uses `a`, which is not an argument"),
    ],
)  # fmt: skip
def test_program_that_the_governance_file_does_not_allow_is_never_run(tool: Tool, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ToolRunner(tool)

    assert caught.value.message == message


# Real programs


TOO_LARGE = {"exception": "ToolResultError", "result": "too_large"}


def exit_of(code: int) -> dict[str, Any]:
    return {"exception": "ToolExitError", "exit_code": code}


@pytest.mark.process
@pytest.mark.parametrize("asynchronous", [False, True])
def test_grep_exit_code_1_is_a_result(tmp_path: Path, asynchronous: bool) -> None:
    (tmp_path / "a.txt").write_text("One\n-two\n", encoding="utf-8")
    tool = entry(
        "grep", "--no-messages", "{ignore_case:-i}", "--regexp={pattern}", "--", "{paths}",
        cwd=str(tmp_path), exit_codes={"result": [0, 1]},
    )  # fmt: skip

    matched = executed(tool, asynchronous, pattern="one", ignore_case=True, paths=["a.txt"])
    dashed = executed(tool, asynchronous, pattern="-two", paths=["a.txt"])
    none = executed(tool, asynchronous, pattern="three", paths=["a.txt"])
    absent = executed(tool, asynchronous, pattern="one", paths=["b.txt"])

    assert [matched, dashed, none] == [Execution("One\n"), Execution("-two\n"), Execution("")]
    assert absent.failure == Failure(FAILED, "grep ended with exit code 2", exit_of(2))


@pytest.mark.process
@pytest.mark.parametrize(
    ("tool", "result"),
    [
        pytest.param(script("echo out; echo err >&2"), "out\n", id="standard output only"),
        pytest.param(script("echo a; echo b >&2; echo c", output="combined"), "a\nb\nc\n", id="combined output"),
        pytest.param(script(":"), "", id="no output"),
        pytest.param(script(r"printf 'a\000b\377c'"), "a\ufffdb\ufffdc", id="invalid UTF-8 and NUL"),
        pytest.param(script("""echo '{"a": [1, 2.5, null]}'""", output="json"), {"a": [1, 2.5, None]}, id="JSON"),
        pytest.param(script("exit 7", exit_codes={"result": [7]}), "", id="exit code of a result"),
        pytest.param(script("cat; echo read"), "read\n", id="no standard input"),
        pytest.param(script("printf 1234", max_output=4), "1234", id="maximum output"),
        pytest.param(script("head -c 3000000 /dev/zero >&2; echo done"), "done\n", id="long standard error"),
        pytest.param(script("(sleep 0.1; echo late) & echo early"), "early\nlate\n",
            id="a child writes after the program ended"),
    ],
)  # fmt: skip
def test_output_of_a_program_is_the_result(tool: Tool, result: Any) -> None:
    assert executed(tool) == Execution(result)


@pytest.mark.process
@pytest.mark.parametrize(
    ("tool", "message", "details"),
    [
        # The message is the first line of standard error. If standard error is empty, the message is the first line of
        # standard output. With combined output, the message is the whole output.
        (script("echo /x/y is bad >&2; echo more >&2; exit 3"), "sh ended with exit code 3: <path> is bad", exit_of(3)),
        (script("echo bad >&2; echo more; exit 3", output="combined"), "sh ended with exit code 3: bad; more",
            exit_of(3)),
        (script("yes | head -c 999; exit 3", output="combined"), f"sh ended with exit code 3: {('y; ' * 91)[:272]}…",
            exit_of(3)),
        (script("echo out; exit 3"), "sh ended with exit code 3: out", exit_of(3)),
        (script("exit 0", exit_codes={"result": [1]}), "sh ended with exit code 0", exit_of(0)),
        (script("kill -KILL $$"), "sh was ended by SIGKILL", exit_of(-9)),
        (script("kill -40 $$"), "sh was ended by signal 40", exit_of(-40)),
        (
            script("echo '{'", output="json"),
            ("the program's output is not JSON: value: not JSON: Expecting property name enclosed in double quotes: "
            "line 2 column 1 (char 2)"),
            {"exception": "ToolResultError", "result": "invalid"},
        ),
        (script(r"printf '\377'", output="json"), "the program's output is not JSON: value: not UTF-8 text",
         {"exception": "ToolResultError", "result": "invalid"}),
        (script("yes >&2", output="combined", max_output=9), "the program wrote more than 9 bytes", TOO_LARGE),
        (script("yes", max_output=1000), "the program wrote more than 1000 bytes", TOO_LARGE),
        (script("printf 12345", max_output=4), "the program wrote more than 4 bytes", TOO_LARGE),
        (entry("printf", "--", "%s", "{a}"), "the arguments are longer than a command line can be",
         {"exception": "ToolError"}),
    ],
)  # fmt: skip
def test_failing_program_is_a_failure_with_its_message(tool: Tool, message: str, details: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"a": "x" * 10_000_000} if tool.schema_["properties"] else {}

    assert executed(tool, **arguments).failure == Failure(FAILED, message, details)


@pytest.mark.process
@pytest.mark.parametrize("asynchronous", [False, True])
def test_tool_is_unavailable_if_its_program_or_folder_is_missing(tmp_path: Path, asynchronous: bool) -> None:
    no_program = tmp_path / "tool"
    no_program.write_text("#!/none\n")
    no_program.chmod(0o755)
    messages = {
        "program no-such-program is not found": entry("no-such-program"),
        "program gone is not found": entry("gone", path=str(tmp_path / "gone")),
        "the working folder does not exist": entry("ls", cwd=str(tmp_path / "gone")),
        "tool cannot be started: No such file or directory": entry("tool", path=str(no_program)),
        "sh ended with exit code 69: closed": script(
            "echo closed; exit 69", exit_codes={"result": [0], "unavailable": [69]}
        ),
    }

    for message, tool in messages.items():
        execution = executed(tool, asynchronous)
        assert (execution.failure, execution.started) == (
            Failure(FailureCode.TOOL_UNAVAILABLE, message, {"exception": "ToolUnavailableError"}), False,
        )  # fmt: skip


@pytest.mark.process
def test_program_sees_only_the_listed_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDP_SEEN", "seen")
    monkeypatch.setenv("PDP_HIDDEN", "hidden")
    monkeypatch.delenv("PDP_ABSENT", raising=False)

    path = "PATH=/usr/local/bin:/usr/bin:/bin\n"
    assert executed(entry("env", env=["PDP_SEEN", "PDP_ABSENT", "PATH"])) == Execution(f"PDP_SEEN=seen\n{path}")
    assert executed(entry("env")) == Execution(path)


@pytest.mark.process
def test_program_runs_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path)
    stated = entry("pwd", cwd="in")
    assert stated.cli is not None
    placed = stated.model_copy(update={"cli": stated.cli.below(tmp_path)})

    assert executed(entry("pwd")) == Execution(f"{tmp_path}\n")
    monkeypatch.chdir("/")
    assert executed(placed) == Execution(f"{tmp_path}/in\n")
    assert executed(entry("pwd", cwd=str(tmp_path))) == Execution(f"{tmp_path}\n")


@pytest.mark.process
def test_sensitive_argument_in_the_output_is_masked() -> None:
    tool = entry("sh", "-c", 'echo "no $1" >&2; exit 1', "--", "{pin}").model_copy(update={"sensitive": ("pin",)})

    failure = executed(tool, pin="12-34").failure
    assert failure is not None
    assert failure.message == "sh ended with exit code 1: no ***"


# Process groups


def states(*selection: str) -> list[str]:
    """Return the states of the selected processes, except zombies."""
    listed = subprocess.run(["ps", "-o", "stat=,comm=", *selection], capture_output=True, text=True, check=False)
    return [line for line in listed.stdout.splitlines() if not line.startswith("Z")]


def all_end(numbers: Path, count: int) -> bool:
    """Check that the file lists `count` processes, and return whether all these processes end soon."""
    listed = numbers.read_text().split()
    assert len(listed) == count
    if not listed:
        return True
    return until(lambda: not states("-p", ",".join(listed)))


async def cancelled(calling: asyncio.Task[Any], ready: Path) -> None:
    """Cancel a call as soon as its program has created a file."""
    while not ready.exists():  # noqa: ASYNC110, ASYNC240 - another process creates the file
        await asyncio.sleep(0.01)
    calling.cancel()


FAMILY = """
{ sh -c 'echo $$ >> "$1"; TRAP; sleep 300 & echo $! >> "$1"; wait; wait' name "$1" & }
echo $$ >> "$1"
until [ "$(wc -l < "$1")" -ge 3 ]; do sleep 0.01; done
echo ready > "$1.ready"
END
"""


def family(end: str, trap: str = ":", **options: Any) -> Tool:
    """Return a program with a child and a grandchild, which write their process ids to the file in the argument."""
    text = FAMILY.replace("END", end).replace("TRAP", trap).replace("{", "{{").replace("}", "}}")
    return entry("sh", "-c", text, "--", "{file}", **options)


@pytest.mark.process
@pytest.mark.parametrize(("trap", "asynchronous"), [(":", True), ("trap '' TERM", False)])
def test_program_and_its_children_end_after_a_time_out(
    tmp_path: Path, trap: str, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "TERM_SECONDS", 0.2)
    runs: list[Path] = []

    def run(seconds: float) -> Execution:
        runs.append(tmp_path / str(seconds))
        return executed(family("wait", trap, timeout=f"PT{seconds}S"), asynchronous, file=str(runs[-1]))

    execution = timely(run, lambda _: runs[-1].with_suffix(".ready").exists(), 1)

    assert execution.failure == Failure(
        FailureCode.TOOL_TIMEOUT, f"the tool gave no result within {runs[-1].name} seconds", {"effect": "unknown"}
    )
    assert all_end(runs[-1], 3)


@pytest.mark.process
async def test_program_and_its_children_end_after_cancellation(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    calling = asyncio.create_task(ToolRunner(family("wait")).arun({"file": str(numbers)}))
    await cancelled(calling, (tmp_path / "numbers.ready"))

    with pytest.raises(asyncio.CancelledError):
        await calling
    assert all_end(numbers, 3)


@pytest.mark.process
async def test_cancelled_program_can_clean_up_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "TERM_SECONDS", 60.0)
    begun, cleaned = tmp_path / "begun", tmp_path / "cleaned"
    text = 'trap \'echo cleaned > "$1/cleaned"; exit\' TERM; sleep 300 > /dev/null 2>&1 & echo > "$1/begun"; wait'
    calling = asyncio.create_task(CliTool(entry("sh", "-c", text, "--", "{folder}"))(folder=str(tmp_path)))
    await cancelled(calling, begun)

    with pytest.raises(asyncio.CancelledError):
        await calling
    assert cleaned.read_text() == "cleaned\n"


@pytest.mark.process
@pytest.mark.parametrize("times", [1, 3])
async def test_cancellation_while_a_program_starts_ends_its_process_group(tmp_path: Path, times: int) -> None:
    """The call is cancelled after each number of event loop steps. A transport that stays open fails the test."""
    numbers = tmp_path / "numbers"
    numbers.touch()
    tool = CliTool(entry("sh", "-c", 'sleep 300 & echo "$!" >> "$1"; wait', "--", "{file}"))
    for steps in range(30):
        calling = asyncio.create_task(tool(file=str(numbers)))
        for _ in range(steps):
            await asyncio.sleep(0)
        for _ in range(times):
            calling.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await calling
    gc.collect()

    assert all_end(numbers, len(numbers.read_text().split()))


@pytest.mark.process
async def test_second_cancellation_kills_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program ignores SIGTERM, so the call is still waiting when the second cancellation arrives."""
    monkeypatch.setattr(program, "TERM_SECONDS", 60.0)
    numbers = tmp_path / "numbers"
    tool = CliTool(family("trap '' TERM; while :; do wait; done", "trap '' TERM"))
    calling = asyncio.create_task(tool(file=str(numbers)))
    await cancelled(calling, (tmp_path / "numbers.ready"))
    for _ in range(3):  # Let the program notice the first cancellation.
        await asyncio.sleep(0)
    calling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await calling
    assert await asyncio.to_thread(all_end, numbers, 3)


@pytest.mark.process
@pytest.mark.parametrize("asynchronous", [False, True])
def test_background_processes_end_with_the_program(
    tmp_path: Path, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Background processes keep the output open, so the call waits for these processes, but only for a limited time."""
    monkeypatch.setattr(program, "TERM_SECONDS", 0.2)
    numbers = tmp_path / "numbers"

    assert executed(family("echo done"), asynchronous, file=str(numbers)) == Execution("done\n")
    assert all_end(numbers, 3)


@pytest.mark.process
def test_program_and_its_children_end_after_too_much_output(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"

    failure = executed(family("yes", max_output=1000), file=str(numbers)).failure

    assert failure is not None
    assert failure.message == "the program wrote more than 1000 bytes"
    assert all_end(numbers, 3)


@pytest.mark.process
def test_call_does_not_wait_for_a_process_outside_the_process_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process outside the group is not killed and keeps the output open, so the call stops waiting for the output."""
    monkeypatch.setattr(program, "TERM_SECONDS", 0.1)

    left = tmp_path / "left"
    text = f"setsid sh -c 'echo $$; echo > {left}; exec sleep 600' & until [ -e {left} ]; do sleep 0.01; done"
    execution = executed(script(text))

    assert execution.failure is None
    process = int(execution.result)
    assert states("-p", str(process))
    os.kill(process, signal.SIGKILL)


@pytest.mark.process
async def test_many_programs_run_concurrently() -> None:
    tool = ToolRunner(entry("sh", "-c", 'echo "$1"', "--", "{a}"))

    executions = await asyncio.gather(*(tool.arun({"a": number}) for number in range(40)))

    assert [execution.result for execution in executions] == [f"{number}\n" for number in range(40)]
    assert [line for line in states("--ppid", str(os.getpid())) if line.endswith("sh")] == []
