"""`pdp hook`: the hooks of coding agents on this machine."""

import asyncio
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from pdp.cli import Exit
from pdp.cli.options import AsJson, command_app
from pdp.cli.output import print_answer
from pdp.errors import PdpError, UsageError
from pdp.hooks.call import HookCall, Kind, Moment
from pdp.hooks.home import default_home, open_policy
from pdp.hooks.install.clients import CLIENTS, HookClient, Scope
from pdp.hooks.install.installation import SettingsChange, apply, installation, installed_clients, make_home, removal
from pdp.json import JsonValueError, parse_json

app = command_app("Ask the policy before a coding agent's tools run: Claude Code, Codex, Cursor and others.")

Names = Annotated[list[str], typer.Argument(metavar="CLIENT...", help=f"Clients: {', '.join(CLIENTS)}.")]
Some = Annotated[list[str] | None, typer.Argument(metavar="[CLIENT]...", help="Default: all clients with the hook.")]
In = Annotated[Scope, typer.Option("--scope", help="Your settings, or those of the repository in this folder.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")]

_INPUT = """write --input '{"file_path": ".env"}'"""


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


@app.command("try")
def attempt(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]", help="A shell command of the agent, in quotes.")
    ] = None,
    tool: Annotated[str | None, typer.Option("--tool", metavar="NAME", help="The client's name of a tool.")] = None,
    arguments: Annotated[str, typer.Option("--input", metavar="JSON", help="The arguments of the tool.")] = "{}",
    client: Annotated[str, typer.Option("--client", metavar="CLIENT", help="The client.")] = "claude-code",
    as_json: AsJson = False,
) -> None:
    """Show what happens to a call in this folder, and the line that decides. Nothing runs, asks or is recorded.

    Exit code: 0 the call runs, 3 you are asked, 4 the call is denied, 2 bad usage, or a faulty policy.
    """
    from pdp.hooks.decide import HookOutcome, HookPreview, preview  # noqa: PLC0415 - loads the engine
    from pdp.hooks.dialects import DIALECTS  # noqa: PLC0415 - as above

    (named,) = _named([client])
    if words and words[1:]:
        raise UsageError("write the command in quotes", hint=f"pdp hook try {shlex.quote(' '.join(words))}")
    command = words[0] if words else None
    if bool(command) == bool(tool):
        raise UsageError("name either a shell command, or a tool with --tool", hint="pdp hook try 'git push'")
    dialect = DIALECTS[named.name]
    try:
        given = parse_json(arguments.encode(errors="surrogateescape"))
    except JsonValueError as error:
        raise UsageError(f"--input: {error}", hint=_INPUT) from None
    if not isinstance(given, dict):
        raise UsageError("--input: expected a JSON object", hint=_INPUT)
    if not tool:
        tool, shell = next(item for item in dialect.built_in.items() if item[1].kind is Kind.SHELL)
        given = {shell.arguments[0]: command}
    call = HookCall(client, Moment.BEFORE, "try", None, tool, given, str(Path.cwd()), dialect.built_in.get(tool))
    if not default_home().exists():
        raise UsageError(f"there is no policy in {default_home()}", hint="run `pdp hook install CLIENT`")
    with ExitStack() as owned:
        policy = open_policy(default_home(), owned)
        try:
            found = asyncio.run(preview(call, policy))
        except PdpError as error:  # The hook denies such a call.
            found = HookPreview(HookOutcome.DENIED, tool, tool, str(error).partition("\n")[0], "")
    lines = [f"{found.outcome}: {found.shown}", *[f"    {found.reason}"] * bool(found.reason)]
    lines += [f"    decided by {found.place}"] * (bool(found.place) and found.place not in found.reason)
    print_answer(found._asdict(), lines, as_json=as_json)
    codes = {HookOutcome.RUNS: Exit.OK, HookOutcome.DENIED: Exit.DENY}
    raise typer.Exit(codes.get(found.outcome, Exit.STEP_UP))


def _named(names: Sequence[str]) -> list[HookClient]:
    if not names:
        hint = f"run `pdp hook install CLIENT`, with a client of {', '.join(CLIENTS)}"
        raise UsageError("no client has the hook", hint=hint)
    if unknown := [name for name in names if name not in CLIENTS]:
        raise UsageError(f"unknown client: {', '.join(unknown)}", hint=f"known: {', '.join(CLIENTS)}")
    return [CLIENTS[name] for name in dict.fromkeys(names)]


def _make(changes: Sequence[SettingsChange], next_step: str, *, yes: bool, as_json: bool) -> None:
    answer = {"changes": [{"file": str(change.path), "note": change.note} for change in changes]}
    print_answer(answer, [line for change in changes for line in change.lines()], as_json=as_json)
    if not yes and any(change.before != change.after for change in changes):
        typer.confirm("Write this?", abort=True, err=True)
    for change in changes:
        apply(change, default_home())
    print_answer(None, [] if as_json else [next_step], as_json=False)
