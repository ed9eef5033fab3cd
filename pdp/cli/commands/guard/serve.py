"""`pdp serve`: the decision service."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdp.cli.options import AsJson, OpaUrl, command_app, file_option
from pdp.cli.output import print_answer
from pdp.engine.protocol import EngineName
from pdp.installed import extra

if TYPE_CHECKING:
    from pdp.service.settings import ServiceSettings

app = command_app()


@app.command("serve")
def serve(
    config: Annotated[
        Path | None, file_option("--config", "-c", help="The service's configuration, YAML or JSON.")
    ] = None,
    project: Annotated[Path | None, file_option("--project", help="The project file; looked for when absent.")] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="sqlite:///agent.db or postgresql://...; the project's, or pdp.db beside it, when absent.",
        ),
    ] = None,
    engine: Annotated[EngineName | None, typer.Option("--engine", help="Who decides; the project's if absent.")] = None,
    opa_url: OpaUrl = None,
    host: Annotated[str | None, typer.Option(help="Where to listen; 127.0.0.1 when absent.")] = None,
    port: Annotated[int | None, typer.Option(help="8181 when absent; 0 for any that is free.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that serve; 1 when absent.")] = None,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Open all that is configured, say what is wrong, and end.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Serve decisions, proposals and approvals over HTTP; docs/service.md.

    The options stand over variables PDP_SERVICE_..., and those over the configuration. Exit code: 0 ended by a signal,
    or checked; 2 bad usage or file; 1 anything else, as a store or engine that is down.
    """
    with extra("service"):
        from pdp.service.server import check_service, serve_until_ended  # noqa: PLC0415 - an optional extra
        from pdp.service.settings import DEFAULT_TENANT, read_settings  # noqa: PLC0415 - likewise

    tenant = _stated(project=project and project.absolute(), store=store, engine=engine, opa_url=opa_url)
    options = _stated(tenants=tenant and {DEFAULT_TENANT: tenant}, host=host, port=port, workers=workers)
    settings = read_settings(config, options)
    if check_config:
        check_service(settings)
        answer = {"url": settings.url, "tenants": list(settings.tenants)}
        print_answer(answer, [f"sound: {', '.join(settings.tenants)} at {settings.url}"], as_json=as_json)
    else:
        serve_until_ended(settings, partial(_greet, as_json=as_json))


def _stated(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and value != {}}


def _greet(settings: ServiceSettings, tokens: dict[str, str], *, as_json: bool) -> None:
    shown = [f"first token of tenant {tenant}, shown this once: {token}" for tenant, token in tokens.items()]
    print_answer({"url": settings.url, "tokens": tokens}, [*shown, f"serving {settings.url}"], as_json=as_json)
    sys.stdout.flush()
