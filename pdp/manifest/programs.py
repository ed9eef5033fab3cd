"""Check the command line templates of tools of type `cli`, and the programs that they may run.

No shell is involved. If a command line has no arguments of the model, its author has written all of it, so only the
program must be listed. Source: tool layer document ("never pass raw model output as shell arguments").
"""

import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pdp.documents import shown_name
from pdp.documents.validation import Finding
from pdp.errors import UsageError
from pdp.manifest.fields import ArgvItem, argv_item
from pdp.manifest.model import Cli, Program, Tool
from pdp.manifest.schema.walk import argument_schemas

SEARCH_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""The folders in which programs are searched, and the `PATH` variable of programs that run."""

OPTIONS_END: Final = "--"
"""The command line item after which programs read all items as operands."""


def argv_findings(argv: Iterable[str], arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield arguments that only the template of the command line contains, or only the tool's schema."""
    used: dict[str, int] = {}
    for at, text in enumerate(argv):
        for name in argv_item(text).arguments:
            used.setdefault(name, at)
    for name, at in used.items():
        if name not in arguments:
            message = f"`cli.argv[{at}]` uses {shown_name(name)}, which is not an argument"
            yield Finding(("cli", "argv", at), message, "add the argument to the schema")
    for name in arguments:
        if name not in used:
            message = f"`cli.argv` does not use argument {shown_name(name)}"
            yield Finding(("cli", "argv"), message, f"add `{{{name}}}`, or remove the argument")


def cli_findings(tool: Tool) -> Iterator[Finding]:
    """Yield the reasons why a tool's command line may not run. Only tools of type `cli` have a command line."""
    if tool.cli is not None:
        yield from argv_findings(tool.cli.argv, argument_schemas(tool.schema_))
        yield from program_findings(tool.cli, tool.program)


def program_findings(cli: Cli, program: Program | None) -> Iterator[Finding]:
    """Yield the items of a command line that the governance file's rules for its program do not allow."""
    name = cli.argv[0]
    if program is None:
        yield Finding(
            ("cli", "argv", 0),
            f"program {shown_name(name)} is not listed in the governance file",
            f"list the program there: `programs: {{{name}: {{options: [...], operands: true}}}}`",
        )
        return
    items = [argv_item(text) for text in cli.argv]
    if not any(item.arguments for item in items):
        return
    ended = False
    for at, item in enumerate(items[1:], 1):
        problem = _problem(item, program, ended=ended)
        if problem is not None:
            message, hint = problem
            yield Finding(("cli", "argv", at), f"`cli.argv[{at}]` {message} of {shown_name(name)}", hint)
        ended = ended or item.parts == (OPTIONS_END,)


def _problem(item: ArgvItem, program: Program, *, ended: bool) -> tuple[str, str] | None:
    if not item.arguments:
        word = item.parts[0]
        if ended or word.startswith("-") or word in program.subcommands:
            return None
        hint = "list it in the governance file, or write an option and its value as one item: `--option=value`"
        return f"has {shown_name(word)}, which is not a listed sub-command", hint
    if ended:
        message = "is an operand, and arguments are not allowed as operands"
        return None if program.operands else (message, "set `operands: true` in the governance file")
    option = item.flag or item.parts[0].partition("=")[0]
    if not option.startswith("-"):
        return (
            "has an argument where it could be an option or a sub-command",
            "write `--option={argument}`, or put an item `--` before the operands",
        )
    message = f"has an argument in {option}, which is not a listed option"
    return None if option in program.options else (message, "list the option in the governance file")


def program_path(name: str, program: Program) -> str | None:
    """Return the path of an installed program, or None. Raise `UsageError` if users who do not own it can change it."""
    path = shutil.which(program.path or name, path=SEARCH_PATH)
    if path is None:
        return None
    file = Path(path).resolve()
    faulty = file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    for folder in file.parents:
        mode = folder.stat().st_mode
        # In a folder with the sticky bit, users cannot replace the files of other users.
        faulty = faulty or (mode & stat.S_IWOTH and not mode & stat.S_ISVTX)
    if faulty:
        raise UsageError(
            f"program {shown_name(name)}: other users can write to {path}, or to a folder above it",
            hint="set the `path` of a program that only its owner can change, or correct its permissions",
        )
    return path
