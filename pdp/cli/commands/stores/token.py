"""`pdp token`: creates access tokens of the decision service in its store."""

from pathlib import Path
from typing import Annotated

import typer

from pdp.cli.commands.stores.stores import StepAudit, StoreUrl, step_audit, stores_named
from pdp.cli.files import read_session
from pdp.cli.options import AsJson, command_app, file_option, user_name
from pdp.cli.output import print_answer
from pdp.service.models.tokens import LIFETIME
from pdp.service.security.principal import Scope
from pdp.service.security.tokens import issue_token, token_event

app = command_app(
    "Create access tokens of the decision service. Needs write access to its store; the service need not run. "
    "List and revoke tokens over HTTP: /v1/tokens."
)


@app.callback()
def _group() -> None:
    pass  # a group with a single command would otherwise lose that command's name


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that describes the token's use.")],
    scope: Annotated[list[Scope], typer.Option("--scope", help="What the token permits. May be repeated.")],
    session: Annotated[
        Path | None, file_option("--session", "-s", help="A session file; its claims identify the token's owner.")
    ] = None,
    expires_in: Annotated[
        int, typer.Option("--expires-in", metavar="SECONDS", help="Seconds until the token expires. Default: one year.")
    ] = LIFETIME,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant of the token.")] = "default",
    store: StoreUrl = None,
    audit: StepAudit = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it. Only its digest is stored, so it cannot be shown again.

    Exit code: 0 created, 2 bad usage or file, 1 the store cannot be reached.
    """
    claims = {} if session is None else read_session(session).claims
    order = {"name": name, "scopes": scope, "claims": claims, "expires_in": expires_in}
    with stores_named(store) as stores, step_audit(audit, stores) as log:
        record, token = issue_token(stores.tokens, tenant, order)
        log.append(token_event("token.created", user_name(None), record.id, record.scopes))
    print_answer({**record.as_json(), "token": token}, [token], as_json=as_json)
