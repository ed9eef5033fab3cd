"""`pdp console`: the console of one project, for one person on this machine."""

import sys
import threading
import webbrowser
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pdp.approvals.people import named_person
from pdp.cli.commands.guard.serve import ServedProject, ServedStore, stated
from pdp.cli.files import read_session
from pdp.cli.options import AsJson, command_app, file_option
from pdp.cli.output import print_answer
from pdp.errors import UsageError
from pdp.installed import extra

app = command_app()

NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the link, but do not open it.")]


@app.command("console")
def console(
    session: Annotated[Path, file_option("--session", "-s", help="The session file of the person who decides.")],
    project: ServedProject = None,
    store: ServedStore = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0 for any free port.")] = 0,
    no_browser: NoBrowser = False,
    as_json: AsJson = False,
) -> None:
    """Open the console of a project in your browser; see docs/how-to/sign-in.md.

    The session file names the person who decides. Its claims are not verified, so protect the store.
    Exit code: 0 ended by SIGTERM, 130 by Ctrl-C; 2 bad usage or file; 1 anything else, such as a store that is down.
    """
    with extra("service"):
        from pdp.service.app import create_app  # noqa: PLC0415 - an optional extra
        from pdp.service.console.sign_in.link import MINUTES, OneTimeLink  # noqa: PLC0415 - an optional extra
        from pdp.service.server import serve_until_ended  # noqa: PLC0415 - an optional extra
        from pdp.service.settings import DEFAULT_TENANT, read_settings  # noqa: PLC0415 - an optional extra

    claims = read_session(session).claims
    if named_person({**claims}) is None:
        raise UsageError(f"{session}: the claims name no person", hint="add claims.sub, such as approver-7, and roles")
    tenant = stated(project=project and project.absolute(), store=store)
    options = {"tenants": {DEFAULT_TENANT: tenant}, "port": port, "log_level": "warning"}
    settings, link = read_settings(None, options, variables=False), OneTimeLink(claims)

    def started(bound: Any, _: object) -> None:
        address = link.address(bound.url)
        lines = [f"console for {claims['sub']}: {address}", f"The link works once, for {MINUTES} minutes."]
        print_answer({"url": bound.url, "link": address}, [*lines, "End the console with Ctrl-C."], as_json=as_json)
        sys.stdout.flush()
        if not no_browser:
            # A browser of the terminal would keep the function waiting.
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    serve_until_ended(settings, started, partial(create_app, link=link), first_tokens=False)
