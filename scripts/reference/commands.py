"""The page of the commands, from the command line's own help."""

import re
from collections.abc import Iterator
from typing import Any, Final

import typer
from typer.main import get_command

from pdp.cli.app import HELP, app, with_examples
from scripts.reference.markdown import code, escaped, fence, page, paragraph, table

_BLOCKS: Final = re.compile(r"\n\s*\n")


def pages() -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of the page."""
    yield (
        "commands.md",
        page(
            "Commands",
            "Each command prints its help with `--help`. "
            "`PDP_PROJECT=FILE` before a command names the project file; see [Project file](project.md).",
            *(part for title, group in HELP["groups"].items() for part in _overview(title, group)),
            *(part for path, command in commands() for part in _command(path, command)),
        ),
    )


def _overview(title: str, group: dict[str, tuple[str, str]]) -> Iterator[str]:
    yield f"**{title}**"
    yield table(
        ("command", "purpose"), [(f"[{code(f'pdp {each}')}](#pdp-{each})", text[1]) for each, text in group.items()]
    )


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with its whole name, such as `pdp bundle build`, and the groups before their commands."""
    root: Any = get_command(app)
    context = typer.Context(root, info_name="pdp")
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        with_examples(command, name)
        yield from _below(f"pdp {name}", command)


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _below(f"{path} {name}", inner)


def _command(path: str, command: Any) -> Iterator[str]:
    is_group = hasattr(command, "commands")
    yield f"{'##' if path.count(' ') == 1 else '###'} {path}"
    yield help_text(command.help or command.callback.__doc__ or "")
    if is_group:
        return
    context = typer.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield fence("text", re.sub(r"\{([^{}]+?)(?:\.\.\.)?\}|\[(\[\w+)(?:\.\.\.)?(\])(?:\.\.\.)?\]", r"\1\2\3", usage))
    for kind in ("argument", "option"):
        records = [each.get_help_record(context) for each in command.params if each.param_type_name == kind]
        if rows := [(_name(record[0]), _meaning(record[1])) for record in records if record is not None]:
            yield table((kind, "meaning"), rows)


def _name(text: str) -> str:
    """Return the name of an argument or option, without typer's brackets and types of arguments."""
    return code(re.sub(r"^\[?([A-Z_]+(?:\.\.\.)?)\]?(?:\.\.\.)? <(?:list\[\w+\]|\w+)>$", r"\1", text))


def _meaning(text: str) -> str:
    """Return the help of an option, with typer's notes about default and range in round brackets."""
    return escaped(re.sub(r" *\[((?:default|required|env var|x[<>]|\d).*)\]$", r" (\1)", text))


def help_text(text: str) -> str:
    """Return the help of a command as Markdown: prose, and lines that begin with `pdp` or `$` as a snippet."""
    parts = []
    for block in _BLOCKS.split(text.replace("\b\n", "").replace("\f", "").strip()):
        lines = [line for line in block.splitlines() if not line.strip().startswith("https://")]
        shown = [line.strip() for line in lines if re.match(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )?pdp ", line)]
        prose = "\n".join(line.strip() for line in lines if line.strip() not in shown)
        parts += [paragraph(prose)] if prose else []
        parts += [fence("sh", "\n".join(line.removeprefix("$ ") for line in shown))] if shown else []
    return "\n\n".join(parts)
