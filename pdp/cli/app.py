"""The tree of commands: which module has which. A module is imported when its command is run, or its help is shown."""

import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from pdp.cli.output import tell
from pdp.errors import MissingExtraError

COMMANDS: Final = {
    "decide": "decide",
    "explain": "explain",
    "demo": "demo",
    "init": "init",
    "test": "test",
    "check": "check",
    "doctor": "check:doctor_app",
    "mutate": "mutate",
    "manifest": "manifest",
    "scan": "manifest.sources",
    "bundle": "bundle",
    "release": "release",
    "opa": "opa",
    "db": "stores.stores:db_app",
    "approvals": "stores.approvals",
    "keys": "stores.stores:keys_app",
    "budgets": "stores.stores:budgets_app",
    "token": "stores.token",
    "audit": "audit",
    "serve": "guard.serve",
    "hook": "guard.hook",
    "mcp-gateway": "guard.gateway",
}
"""The module below `pdp.cli.commands`, and its attribute if not `app`, of each command; in the order of the help."""


class _Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - likewise
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


def _lacking(name: str, missing: MissingExtraError) -> TyperCommand:
    """Return a command that needs an extra: the help of all commands lists it, and running it says what to install."""

    def refuse() -> None:
        raise missing

    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    return TyperCommand(name, callback=refuse, help=missing.message, context_settings=anything, add_help_option=False)


app = typer.Typer(
    name="pdp",
    cls=_Commands,
    help="Policy decisions for the tool calls of AI agents. New here? Run: pdp demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Groups and commands take it over from here.
    context_settings={"help_option_names": ["-h", "--help"]},
    # Frames and colours for people; scripts and logs get plain lines.
    rich_markup_mode="rich" if sys.stdout is not None and sys.stdout.isatty() else None,
)


def _version(value: bool) -> None:  # noqa: FBT001 - as typer calls it
    if value:
        from pdp import __version__  # noqa: PLC0415

        tell(f"pdp {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Policy decisions for the tool calls of AI agents."""
