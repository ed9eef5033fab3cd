"""`pdp token`: access tokens of the decision service, made, listed and revoked where they are stored."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from pdp.cli.commands.stores.named import StepAudit, StoreUrl, step_audit, stores_named
from pdp.cli.files import read_session
from pdp.cli.options import AsJson, By, command_app, file_option, user_name
from pdp.cli.output import print_answer
from pdp.errors import UsageError
from pdp.service.security.principal import Scope
from pdp.service.security.tokens import LIFETIME, issue_token, token_event

app = command_app(
    "Access tokens of the decision service. Whoever can write to its store can make them; it need not run."
)

Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant whose token it is.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for, for people.")],
    scope: Annotated[list[Scope], typer.Option("--scope", help="What it is good for. May be repeated.")],
    session: Annotated[
        Path | None,
        file_option("--session", "-s", help="Whom it stands for: a session file, of which the claims count."),
    ] = None,
    expires_in: Annotated[
        int, typer.Option("--expires-in", metavar="SECONDS", help="How long it counts; a year if absent.")
    ] = LIFETIME,
    tenant: Tenant = "default",
    by: By = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    as_json: AsJson = False,
) -> None:
    """Make a token, and print it: it is stored as a digest, and nowhere to be read again.

    Exit code: 0 made, 2 bad usage or file, 1 the store cannot be reached.
    """
    claims = {} if session is None else read_session(session).claims
    with stores_named(store) as stores, step_audit(audit, stores) as log:
        record, token = issue_token(stores.tokens, tenant, name, scope, claims, seconds=expires_in)
        log.append(token_event("token.created", user_name(by), record.id, record.scopes))
    print_answer({**record.as_json(), "token": token}, [token], as_json=as_json)


@app.command("list")
def listing(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show the tokens of all tenants, without their secrets, in the order of being made.

    Exit code: 0 shown, 2 bad usage, 1 the store cannot be reached.
    """
    with stores_named(store) as stores:
        tokens = [record.as_json() for record in stores.tokens.list()]
    lines = [
        f"{token['id']}  {token['tenant']}  {token['name']}: {', '.join(token['scopes'])}; "
        + ("revoked" if token["revoked"] else f"expires {token['expires_at']}")
        for token in tokens
    ]
    print_answer(tokens, lines or ["no token"], as_json=as_json)


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token, as `pdp token list` shows it.")],
    by: By = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a token, and the browser sessions opened with it. A service that runs notices within five seconds.

    Exit code: 0 revoked, 2 bad usage or id, 1 the store cannot be reached.
    """
    with stores_named(store) as stores, step_audit(audit, stores) as log:
        if not stores.tokens.revoke(token_id, time.time()):
            raise UsageError("no token has that id", hint="see: pdp token list")
        log.append(token_event("token.revoked", user_name(by), token_id))
    print_answer({"id": token_id, "revoked": True}, [f"revoked  {token_id}"], as_json=as_json)
