"""`pdp mcp-gateway`: the proxy in front of MCP servers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from platformdirs import user_config_path, user_state_path

from pdp.cli.options import AsJson, command_app, file_option
from pdp.cli.output import complain, print_answer
from pdp.errors import UsageError
from pdp.installed import extra

if TYPE_CHECKING:
    from pdp.gateway.config import GatewaySettings

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")

Config = Annotated[Path, file_option("--config", "-c", help="The gateway's configuration, YAML or JSON.")]
_DEFAULT: Final = Path("gateway.yaml")

app = command_app("Have the policy asked before the tools of MCP servers run; docs/gateway.md.")


@app.command("serve")
def serve(config: Config = _DEFAULT) -> None:
    """Serve what the configured servers have, over stdio, or over HTTP where that is configured.

    Exit code: 0 ended by its client or a signal, 2 bad usage or file, 1 anything else.
    """
    with extra("gateway"):
        from pdp.gateway.config import read_gateway  # noqa: PLC0415 - an optional extra

    _serve(read_gateway(config))


@app.command("wrap", context_settings={"ignore_unknown_options": True})
def wrap(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What starts the server.")],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the folder with its policy; made of COMMAND if absent.")
    ] = None,
) -> None:
    """Serve one server over stdio in place of its command, as in an .mcp.json. The first start pins its tools.

    Exit code: as of serve.
    """
    with extra("gateway"):
        from pdp.gateway.config import GATEWAY_FILE, read_gateway  # noqa: PLC0415 - an optional extra
        from pdp.gateway.draft import write_private  # noqa: PLC0415 - likewise

    name = name or _name_of(command)
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r:.60}: not a name", hint="use small letters, digits and -")
    file = user_config_path("pdp") / "gateway" / name / GATEWAY_FILE
    if not file.exists():
        stated = {"servers": {name: {"command": command, "inherit": True}}}
        write_private({file: json.dumps(stated, indent=2) + "\n"})
    settings = read_gateway(file)
    if [server.command for server in settings.servers.values()] != [tuple(command)]:
        raise UsageError(f"{file}: is for another command", hint="choose another --name, or change the command there")
    if not settings.pins.exists():
        for line in _pin(settings, file):
            complain(line)
    _serve(settings)


@app.command("pin")
def pin(
    config: Config = _DEFAULT,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Pin without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how servers declare their tools otherwise than pinned, ask, and pin what they declare now.

    Exit code: 0 pinned, or nothing to do; 2 bad usage or file; 1 not pinned, or a server cannot be reached.
    """
    with extra("gateway"):
        from pdp.gateway.config import read_gateway  # noqa: PLC0415 - an optional extra

    said = _pin(read_gateway(config), config, ask=not yes)
    print_answer({"done": said}, said, as_json=as_json)


def _pin(settings: GatewaySettings, file: Path, *, ask: bool = False) -> list[str]:
    from pdp.gateway.draft import install, surveyed  # noqa: PLC0415 - an optional extra
    from pdp.gateway.pins import pins_difference, read_pinned  # noqa: PLC0415 - likewise

    old = read_pinned(settings.pins) if settings.pins.exists() else {}
    pins, left_out = asyncio.run(surveyed(settings))
    changes = pins_difference(old, pins)
    for line in changes:
        complain(line)
    if ask and changes:
        typer.confirm("Pin this?", abort=True, err=True)
    state = user_state_path("pdp") / "gateway" / file.absolute().parent.name
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    return [*left_out, *install(settings, pins, f"sqlite:///{state / 'store.db'}")]


def _serve(settings: GatewaySettings) -> None:
    from pdp.gateway.server import serve_stdio  # noqa: PLC0415 - an optional extra

    asyncio.run(serve_stdio(settings))


def _name_of(command: list[str]) -> str:
    """Return a name that another command does not have."""
    word = re.sub(r"[^a-z0-9]+", "-", Path(command[0]).name.lower()).strip("-")[:20] or "server"
    return f"{word}-{hashlib.sha256(json.dumps(command).encode()).hexdigest()[:10]}"
