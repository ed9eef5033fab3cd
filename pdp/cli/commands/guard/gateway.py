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
from pdp.cli.output import print_answer, print_error
from pdp.errors import PdpError, UsageError
from pdp.gateway.config import GatewaySettings
from pdp.installed import extra

if TYPE_CHECKING:
    from pdp.service.settings import ServiceSettings

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_FILE: Final = "gateway.yaml"
_Config = Annotated[Path, file_option("--config", "-c", help="The gateway's configuration, YAML or JSON.")]

app = command_app("Ask the policy before the tools of MCP servers run.")


@app.command("serve")
def serve(config: _Config = Path(_FILE)) -> None:
    """Serve the tools of the configured MCP servers over stdio, or over HTTP if `http` is configured.

    Exit code: 0 ended by its client or a signal, 2 bad usage or file, 1 anything else.
    """
    _serve(_read(config))


@app.command("wrap")
def wrap(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command that starts the server.")],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The policy folder's name. Default: derived from COMMAND.")
    ] = None,
) -> None:
    """Serve one MCP server over stdio, in place of its command in .mcp.json. The first start pins the tools.

    Exit code: 0 ended by its client or a signal, 2 bad usage or file, 1 anything else.
    """
    with extra("gateway"):
        from pdp.gateway.pins import write_private  # noqa: PLC0415 - an optional extra

    if name is None:
        word = re.sub(r"[^a-z0-9]+", "-", Path(command[0]).name.lower()).strip("-")[:20] or "server"
        name = f"{word}-{hashlib.sha256(json.dumps(command).encode()).hexdigest()[:10]}"
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r:.60}: not a valid name", hint="use lower-case letters, digits and -")
    file = user_config_path("pdp") / "gateway" / name / _FILE
    if not file.exists():
        write_private({file: json.dumps({"servers": {name: {"command": command}}}, indent=2) + "\n"})
    with _errors_sent_to_client():
        settings = _read(file)
        if [server.command for server in settings.servers.values()] != [tuple(command)]:
            hint = f"to accept it, set `command: {json.dumps(command)}` there, then run: pdp mcp-gateway pin -c {file}"
            raise UsageError(f"{file}: the server's command differs from the reviewed one", hint=hint)
        if not settings.pins.exists():
            _pin(settings)
            print_error(f"{file.parent}: pinned the tools; each call waits for you until you review governance.yaml")
    _serve(settings)


@app.command("pin")
def pin(
    config: _Config = Path(_FILE),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Pin without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how the servers' current tools differ from the pinned tools. If you agree, pin the current tools.

    Exit code: 0 pinned or unchanged, 2 bad usage or file, 1 not pinned, or a server cannot be reached.
    """
    settings = _read(config)
    difference, left_out = _pin(settings, "Pin these tools, except left-out tools?" if not yes else "")
    done = f"{settings.pins}: {'tools pinned' if difference else 'unchanged'}"
    print_answer({"difference": difference, "left_out": left_out}, [done], as_json=as_json)


def _read(file: Path) -> GatewaySettings:
    with extra("gateway"):
        from pdp.gateway import server  # noqa: F401, PLC0415 - an optional extra
        from pdp.gateway.config import read_gateway  # noqa: PLC0415
    if not file.exists():
        hint = f"change to the folder of {_FILE}, or give the file with --config"
        raise UsageError(f"{file}: no such file", hint=hint)
    return read_gateway(file)


@contextmanager
def _errors_sent_to_client() -> Iterator[None]:
    """On an error, answer each MCP request on standard input with the error, so that the MCP client shows the error."""
    try:
        yield
    except PdpError as error:
        for line in () if sys.stdin.isatty() else sys.stdin:
            with suppress(ValueError, LookupError, TypeError, RecursionError):
                answer = {"id": json.loads(line)["id"], "error": {"code": -32603, "message": str(error)}}
                typer.echo(json.dumps({"jsonrpc": "2.0", **answer}))
        raise


def _pin(settings: GatewaySettings, question: str = "") -> tuple[list[str], list[str]]:
    """Print changed and left-out tools on standard error, and return both. Pin the tools if the user agrees."""
    from pdp.gateway.pins import install, pins_difference, read_pinned, readings, survey  # noqa: PLC0415 - optional

    old = read_pinned(settings) if settings.pins.exists() else {}
    new, left_out = asyncio.run(survey(settings))
    difference = pins_difference(old, new)
    for line in (*difference, *readings(new), *left_out):
        print_error(line)
    if question and old != new:
        typer.confirm(question, abort=True, err=True)
    install(settings, new)
    return difference, left_out


def _serve(settings: GatewaySettings) -> None:
    from pdp.gateway.server import http_app, serve_stdio  # noqa: PLC0415 - an optional extra

    if settings.http is None:
        with _errors_sent_to_client():
            serve_stdio(settings)
        return
    with extra("service"):
        from pdp.service.server import serve_until_ended  # noqa: PLC0415 - an optional extra
        from pdp.service.settings import read_settings  # noqa: PLC0415 - an optional extra

    def started(service: ServiceSettings, tokens: dict[str, str]) -> None:
        for tenant, token in tokens.items():
            print_error(f"first token of tenant {tenant}, issued only once: {token}")
        print_error(f"serving {service.url}/mcp")

    service = read_settings(settings.http, {"tenants": {settings.tenant: {"project": settings.project}}})
    serve_until_ended(service, started, lambda stated: http_app(settings, stated))
