"""`pdp hook`: the hooks of coding agents on this machine."""

from collections.abc import Sequence
from typing import Annotated

import typer

from pdp.cli.options import AsJson, command_app
from pdp.cli.output import print_answer
from pdp.errors import UsageError
from pdp.hooks.home import default_home
from pdp.hooks.install.clients import CLIENTS, HookClient, Scope
from pdp.hooks.install.installation import SettingsChange, apply, installation, installed_clients, make_home, removal

app = command_app("Ask the policy before a coding agent's tools run: Claude Code, Codex, Cursor and others.")

Names = Annotated[list[str], typer.Argument(metavar="CLIENT...", help=f"Clients: {', '.join(CLIENTS)}.")]
Some = Annotated[list[str] | None, typer.Argument(metavar="[CLIENT]...", help="Default: all clients with the hook.")]
In = Annotated[Scope, typer.Option("--scope", help="Your settings, or those of the repository in this folder.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")]


@app.command()
def install(clients: Names, scope: In = "user", yes: Yes = False, as_json: AsJson = False) -> None:
    """Add the hook to the clients' settings, after showing the change. If there is no policy yet, create a policy.

    Exit code: 0 done, 1 you declined, 2 bad usage, or a file that cannot be changed.
    """
    named = _named(clients)
    make_home(default_home())
    changes = [installation(client, client.path(scope), default_home()) for client in named]
    _make(changes, f"The policy is in {default_home()}. Next: pdp hook check", yes=yes, as_json=as_json)


@app.command()
def uninstall(clients: Names, scope: In = "user", yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove the hook from the clients' settings, which are restored exactly unless you have edited them.

    Exit code: 0 done, 1 you declined, 2 bad usage, or a file that cannot be changed.
    """
    changes = [removal(client, client.path(scope), default_home()) for client in _named(clients)]
    _make(changes, f"Policy and records stay in {default_home()}", yes=yes, as_json=as_json)


@app.command()
def check(clients: Some = None, as_json: AsJson = False) -> None:
    """Test that the hook decides calls in this folder: check the settings, and send a call that must be denied.

    Exit code: 0 all clients are guarded, 1 calls may run without a decision or all calls are denied, 2 bad usage.
    """
    from pdp.hooks.install.check import gaps  # noqa: PLC0415 - loads the clients' dialects

    named = _named(clients or installed_clients(default_home()))
    reported = [gap for client in named for gap in gaps(client, default_home())]
    holds = {client.name: client.name not in {gap.client for gap in reported} for client in named}
    lines = [
        text for gap in reported for text in (f"{gap.client}: {gap.place}: {gap.message}", f"    hint: {gap.hint}")
    ]
    lines += [f"{name}: {'guarded' if does else 'NOT GUARDED'}" for name, does in holds.items()]
    print_answer({"holds": holds, "gaps": [gap._asdict() for gap in reported]}, lines, as_json=as_json)
    raise typer.Exit(bool(reported))


def _named(names: Sequence[str]) -> list[HookClient]:
    if not names or not set(names) <= CLIENTS.keys():
        message = f"unknown client: {', '.join(names)}" if names else "no client has the hook"
        raise UsageError(message, hint=f"run `pdp hook install CLIENT`, with a client of {', '.join(CLIENTS)}")
    return [CLIENTS[name] for name in dict.fromkeys(names)]


def _make(changes: Sequence[SettingsChange], next_step: str, *, yes: bool, as_json: bool) -> None:
    answer = {"changes": [{"file": str(change.path), "note": change.note} for change in changes]}
    print_answer(answer, [line for change in changes for line in change.lines()], as_json=as_json)
    if not yes and any(change.before != change.after for change in changes):
        typer.confirm("Write this?", abort=True, err=True)
    for change in changes:
        apply(change, default_home())
    print_answer(None, [] if as_json else [next_step], as_json=False)
