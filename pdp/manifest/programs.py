"""Tools of type `cli`: the template of their command line, and the programs that they may run.

The command line is a template, item by item; docs/execution.md has its grammar, and that of the governance file's
`programs`. There is never a shell. As soon as an argument of the model reaches the command line, arguments stand in
listed options and, where `operands` says so, behind `--`; the words before `--` are listed sub-commands. Options
without an argument are the manifest author's own text, and so is a command line that has no argument at all.

Source: tool layer document, CLI tools ("never pass raw model output as shell arguments").
"""

from __future__ import annotations

import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pdp.documents import FieldError, shown_name
from pdp.errors import UsageError
from pdp.manifest.findings import Finding
from pdp.manifest.schema.walk import argument_schemas

if TYPE_CHECKING:
    from pdp.manifest.model import Cli, Program, Tool

SEARCH_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""Where programs are looked for, and the `PATH` that they see."""

_TOKEN: Final = re.compile(r"\{\{|\}\}|\{(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)(?::(?P<flag>-[^{}\s]*))?\}|(?P<brace>[{}])")
_HINT: Final = "write `{argument}`, or `{argument:--flag}` as a whole item; a brace itself is `{{` or `}}`"

OPTIONS_END: Final = "--"
"""The item after which programs read no more options."""


class ArgvItem(NamedTuple):
    """One item of a template: literal `parts` and names of arguments in turn, beginning and ending with a literal.

    `flag` is what stands before the value of the one argument.
    """

    parts: tuple[str, ...]
    flag: str | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments in it."""
        return self.parts[1::2]


def may_take_value(text: str) -> bool:
    """Return whether an item is an option that may take its value from what follows it."""
    return text.startswith("-") and "=" not in text


def argv_item(text: str) -> ArgvItem:
    """Read one item.

    FieldError: a lone brace, or a flag that is not the whole item.
    """
    parts, flag, literal, end = [], None, "", 0
    for token in _TOKEN.finditer(text):
        literal += text[end : token.start()]
        end = token.end()
        if token["brace"]:
            raise FieldError(f"has a `{token['brace']}` that is not part of a placeholder", _HINT)
        if token["name"] is None:
            literal += token[0][0]
            continue
        if token["flag"] and token[0] != text:
            raise FieldError(f"has `{token[0]}` within an item", _HINT)
        flag = token["flag"]
        parts += [literal, token["name"]]
        literal = ""
    return ArgvItem((*parts, literal + text[end:]), flag)


def argv_findings(argv: Iterable[str], arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield where a template and the schemas of the tool's arguments, by name, name different ones."""
    used: dict[str, int] = {}
    for at, text in enumerate(argv):
        for name in argv_item(text).arguments:
            used.setdefault(name, at)
    for name, at in used.items():
        if name not in arguments:
            message = f"`cli.argv[{at}]` uses {shown_name(name)}, which is not an argument"
            yield Finding(("cli", "argv", at), message, "name it in the schema")
    for name in arguments:
        if name not in used:
            message = f"`cli.argv` does not use argument {shown_name(name)}"
            yield Finding(("cli", "argv"), message, f"add `{{{name}}}`, or drop the argument")


def check_item(text: str) -> str:
    """Refuse an item that is no template, or lets the model write an option."""
    if "\0" in text:
        raise FieldError("must not have a NUL character")
    item = argv_item(text)
    if item.flag is None and item.arguments and may_take_value(item.parts[0]):
        raise FieldError(
            "lets the model write an option", "state the whole option, as in `--mode={mode}` or `{deep:--deep}`"
        )
    return text


def check_program(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a command line whose first item has an argument in it, or is empty."""
    names = argv_item(argv[0]).arguments
    if names:
        raise FieldError(
            f"must begin with a program, not with argument {shown_name(names[0])}",
            "the model chooses arguments, never a program",
        )
    if not argv[0].strip():
        raise FieldError("must begin with a program, and its first item is empty", "name the program: `[grep, ...]`")
    return argv


def cli_findings(tool: Tool) -> Iterator[Finding]:
    """Yield why the command line of an effective entry may not run; nothing for a tool of another type."""
    if tool.cli is not None:
        yield from argv_findings(tool.cli.argv, argument_schemas(tool.schema_))
        yield from program_findings(tool.cli, tool.program)


def program_findings(cli: Cli, program: Program | None) -> Iterator[Finding]:
    """Yield where a command line is not what the governance file lists of its program."""
    name = cli.argv[0]
    if program is None:
        yield Finding(
            ("cli", "argv", 0),
            f"program {shown_name(name)} is not listed in the governance file",
            f"list it there: `programs: {{{name}: {{options: [...], operands: true}}}}`",
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
    """Return what is wrong with one item of a command line that has arguments, and a hint."""
    if not item.arguments:
        word = item.parts[0]
        if ended or word.startswith("-") or word in program.subcommands:
            return None
        hint = "list it in the governance file, or write an option and its value as one item: `--option=value`"
        return f"has {shown_name(word)}, which is not a listed sub-command", hint
    if ended:
        message = "is an operand, and arguments are not allowed as operands"
        return None if program.operands else (message, "state `operands: true` in the governance file")
    option = item.flag or item.parts[0].partition("=")[0]
    if not option.startswith("-"):
        return (
            "has an argument where it could be an option or a sub-command",
            "write `--option={argument}`, or put an item `--` before the operands",
        )
    message = f"has an argument in {option}, which is not a listed option"
    return None if option in program.options else (message, "list it in the governance file")


def program_path(name: str, program: Program) -> str | None:
    """Return the absolute path of a listed program; None when it is not on this machine.

    UsageError: others than its owner can change it.
    """
    path = shutil.which(program.path or name, path=SEARCH_PATH)
    if path is None:
        return None
    file = Path(path).resolve()
    faulty = file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    for folder in file.parents:
        mode = folder.stat().st_mode
        # In a folder with the sticky bit nobody can replace what is somebody else's.
        faulty = faulty or (mode & stat.S_IWOTH and not mode & stat.S_ISVTX)
    if faulty:
        raise UsageError(
            f"program {shown_name(name)}: others can write to {path}, or to a folder above it",
            hint="state the `path` of a program that only its owner can change, or mend its permissions",
        )
    return path
