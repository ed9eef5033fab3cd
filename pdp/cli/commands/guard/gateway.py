"""`pdp mcp-gateway`: the proxy in front of MCP servers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from platformdirs import user_config_path

from pdp.cli.options import AsJson, command_app, file_option
from pdp.cli.output import complain, print_answer
from pdp.errors import PdpError, UsageError
from pdp.gateway.config import GatewaySettings
from pdp.installed import extra

if TYPE_CHECKING:
    from pdp.service.settings import ServiceSettings

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_FILE: Final = "gateway.yaml"
_Config = Annotated[Path, file_option("--config", "-c", help="The gateway's configuration, YAML or JSON.")]

app = command_app("Have the policy asked before the tools of MCP servers run; docs/gateway.md.")


@app.command("serve")
def serve(config: _Config = Path(_FILE)) -> None:
    """Serve what the configured servers have: over stdio, or over HTTP where `http` is configured.

    Exit code: 0 ended by its client or a signal, 2 bad usage or file, 1 anything else.
    """
    _serve(_read(config))


@app.command("wrap")
def wrap(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What starts the server.")],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the folder with its policy; made of COMMAND if absent.")
    ] = None,
) -> None:
    """Serve one server over stdio in place of its command, as in an .mcp.json. The first start pins its tools.

    Exit code: 0 ended by its client or a signal, 2 bad usage or file, 1 anything else.
    """
    with extra("gateway"):
        from pdp.gateway.pins import write_private  # noqa: PLC0415 - an optional extra

    if name is None:
        word = re.sub(r"[^a-z0-9]+", "-", Path(command[0]).name.lower()).strip("-")[:20] or "server"
        name = f"{word}-{hashlib.sha256(json.dumps(command).encode()).hexdigest()[:10]}"
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r:.60}: not a name", hint="use small letters, digits and -")
    file = user_config_path("pdp") / "gateway" / name / _FILE
    if not file.exists():
        write_private({file: json.dumps({"servers": {name: {"command": command}}}, indent=2) + "\n"})
    with _told_to_the_client():
        settings = _read(file)
        if [server.command for server in settings.servers.values()] != [tuple(command)]:
            hint = f"the policy stays: set `command: {json.dumps(command)}` there, then: pdp mcp-gateway pin -c {file}"
            raise UsageError(f"{file}: the server's command is not the one that was reviewed", hint=hint)
        if not settings.pins.exists():
            _pin(settings)
            complain(f"{file.parent}: tools are pinned as they are; each call waits for you: review governance.yaml")
    _serve(settings)


@app.command("pin")
def pin(
    config: _Config = Path(_FILE),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Pin without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how servers declare their tools otherwise than pinned, ask, and pin what they declare now.

    Exit code: 0 pinned, or nothing to do; 2 bad usage or file; 1 not pinned, or a server cannot be reached.
    """
    difference, left_out = _pin(_read(config), "Pin this, as far as it is not left out?" if not yes else "")
    print_answer({"difference": difference, "left_out": left_out}, (), as_json=as_json)


def _read(file: Path) -> GatewaySettings:
    with extra("gateway"):
        from pdp.gateway import server  # noqa: F401, PLC0415 - an optional extra
        from pdp.gateway.config import read_gateway  # noqa: PLC0415
    return read_gateway(file)


@contextmanager
def _told_to_the_client() -> Iterator[None]:
    """Answer each request over standard input with the reason why nothing is served."""
    try:
        yield
    except PdpError as error:
        for line in () if sys.stdin.isatty() else sys.stdin:
            with suppress(ValueError, LookupError, TypeError, RecursionError):
                answer = {"id": json.loads(line)["id"], "error": {"code": -32603, "message": str(error)}}
                typer.echo(json.dumps({"jsonrpc": "2.0", **answer}))
        raise


def _pin(settings: GatewaySettings, question: str = "") -> tuple[list[str], list[str]]:
    """Show the difference and what is left out, on standard error, ask, pin, and return both."""
    from pdp.gateway.pins import install, pins_difference, read_pinned, readings, survey  # noqa: PLC0415 - likewise

    old = read_pinned(settings) if settings.pins.exists() else {}
    new, left_out = asyncio.run(survey(settings))
    difference = pins_difference(old, new)
    for line in (*difference, *readings(new), *left_out):
        complain(line)
    if question and old != new:
        typer.confirm(question, abort=True, err=True)
    install(settings, new)
    return difference, left_out


def _serve(settings: GatewaySettings) -> None:
    from pdp.gateway.server import http_app, serve_stdio  # noqa: PLC0415 - likewise

    if settings.http is None:
        with _told_to_the_client():
            serve_stdio(settings)
        return
    with extra("service"):
        from pdp.service.server import serve_until_ended  # noqa: PLC0415 - an optional extra
        from pdp.service.settings import read_settings  # noqa: PLC0415 - likewise

    def started(service: ServiceSettings, tokens: dict[str, str]) -> None:
        for tenant, token in tokens.items():
            complain(f"first token of tenant {tenant}, shown this once: {token}")
        complain(f"serving {service.url}/mcp")

    service = read_settings(settings.http, {"tenants": {settings.tenant: {"project": settings.project}}})
    serve_until_ended(service, started, lambda stated: http_app(settings, stated))
