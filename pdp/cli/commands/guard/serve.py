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

ServedProject = Annotated[
    Path | None, file_option("--project", help="The project file. Default: the nearest pdp.yaml.")
]
ServedStore = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="sqlite:///agent.db or postgresql://... Default: the project's store, or pdp.db beside the project.",
    ),
]


@app.command("serve")
def serve(
    config: Annotated[
        Path | None, file_option("--config", "-c", help="The service's configuration, YAML or JSON.")
    ] = None,
    project: ServedProject = None,
    store: ServedStore = None,
    engine: Annotated[EngineName | None, typer.Option("--engine", help="The engine. Default: the project's.")] = None,
    opa_url: OpaUrl = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0 for any free port. Default: 8181.")] = None,
    workers: Annotated[int | None, typer.Option(help="The number of worker processes. Default: 1.")] = None,
    secrets: Annotated[
        Path | None, file_option("--secrets", metavar="DIR", help="A folder with one file for each secret setting.")
    ] = None,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Open all configured resources, report faults, and exit.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings and where they come from, and exit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Serve decisions, proposals and approvals over HTTP; see docs/how-to/deploy.md.

    Options override variables PDP_SERVICE_..., which override secrets, which override the configuration. Exit code:
    0 ended by a signal, or no faults; 2 bad usage or file; 1 anything else, such as a store or engine that is down.
    """
    with extra("service"):
        from pdp.service.server import check_service, serve_until_ended  # noqa: PLC0415 - an optional extra
        from pdp.service.settings import DEFAULT_TENANT, read_settings, settings_lines  # noqa: PLC0415 - an optional extra

    tenant = stated(project=project and project.absolute(), store=store, engine=engine, opa_url=opa_url)
    options = stated(host=host, port=port, workers=workers, secrets_dir=secrets and secrets.absolute())
    options |= stated(tenants=tenant and {DEFAULT_TENANT: tenant})
    settings = read_settings(config, options)
    if print_config:
        lines = [*settings_lines(config, options)]
        print_answer(lines, lines, as_json=as_json)
    elif check_config:
        check_service(settings)
        answer = {"url": settings.url, "tenants": list(settings.tenants)}
        print_answer(answer, [f"no faults: {', '.join(settings.tenants)} at {settings.url}"], as_json=as_json)
    else:
        serve_until_ended(settings, partial(_greet, as_json=as_json))


def stated(**options: Any) -> dict[str, Any]:
    """Return the options that are set."""
    return {name: value for name, value in options.items() if value is not None and value != {}}


def _greet(settings: ServiceSettings, tokens: dict[str, str], *, as_json: bool) -> None:
    shown = [f"first token of tenant {tenant}, issued only once: {token}" for tenant, token in tokens.items()]
    print_answer({"url": settings.url, "tokens": tokens}, [*shown, f"serving {settings.url}"], as_json=as_json)
    sys.stdout.flush()
