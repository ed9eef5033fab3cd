"""The tree of commands. A command's module is imported when the command runs or its help is shown."""

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from pdp.cli.output import print_line
from pdp.errors import MissingExtraError
from pdp.installed import documentation_url

HELP: Final = yaml.load((Path(__file__).parent / "help.yaml").read_bytes(), yaml.CSafeLoader)
COMMANDS: Final = {name: module for group in HELP["groups"].values() for name, (module, _) in group.items()}
"""The commands in the order of the help. The values are `MODULE` or `MODULE:ATTRIBUTE` in `pdp.cli.commands`."""


class _Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            try:
                module, _, attribute = COMMANDS[cmd_name].partition(":")
                command = getattr(import_module(f"pdp.cli.commands.{module}"), attribute or "app")
            except MissingExtraError as missing:
                return _lacking(cmd_name, missing)
            command.rich_markup_mode = self.rich_markup_mode
            self.commands[cmd_name] = get_command(command)
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command. Examples are added only for its help, because the link takes 50 ms to read."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and (not rest or {"-h", "--help"} & {*rest}):
            with_examples(command, name)
        return name, command, rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help without importing the commands, and thus without rich's panels."""
        self.rich_markup_mode = None
        super().format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        for title, group in HELP["groups"].items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in group.items()])
        formatter.write_paragraph()
        formatter.write_text(f"Documentation: {documentation_url()}")


def with_examples(command: Any, path: str) -> None:
    """Add an example and the link to the help of a command, or of all commands in a group."""
    for name, inner in getattr(command, "commands", {}).items():
        with_examples(inner, f"{path} {name}")
    if path in HELP["examples"]:
        command.short_help = " ".join(re.split(r"\.\s", command.help)[0].split()).rstrip(".")
        page = f"{documentation_url()}reference/commands/#pdp-{path.replace(' ', '-')}"
        command.help = f"{command.help}\n\n\b\nExample:\n  {HELP['examples'][path]}\n\n\b\n{page}"


def _lacking(name: str, missing: MissingExtraError) -> TyperCommand:
    """Return a placeholder for a command whose extra is not installed: its help and its error say what to install."""

    def refuse() -> None:
        raise missing

    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    return TyperCommand(name, callback=refuse, help=missing.message, context_settings=anything, add_help_option=False)


app = typer.Typer(
    name="pdp",
    cls=_Commands,
    help="Policy decisions for the tool calls of AI agents. To see an example, run: pdp demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Groups and commands inherit these settings.
    context_settings={"help_option_names": ["-h", "--help"]},
    # Frames and colours are only shown in terminals; scripts and logs get plain text.
    rich_markup_mode="rich" if sys.stdout is not None and sys.stdout.isatty() else None,
)


def _version(value: bool) -> None:  # noqa: FBT001 - typer calls it with a position
    if value:
        from pdp import __version__  # noqa: PLC0415 - only this option needs it, and the two below
        from pdp.engine.bundle.file import baseline_bundle_path, read_bundle  # noqa: PLC0415
        from pdp.opa.program import OPA_VERSION  # noqa: PLC0415

        print_line(f"pdp {__version__}\nOPA {OPA_VERSION}")
        bundle = read_bundle(baseline_bundle_path())
        print_line(f"baseline bundle: release {bundle.release}, {bundle.revision}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the versions of pdp, OPA and bundle."),
    ] = False,
) -> None:
    """Policy decisions for the tool calls of AI agents."""
