"""`pdp token`: access tokens of the decision service, made where they are stored."""

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
    "Access tokens of the decision service. Whoever can write to its store can make them; it need not run. All else "
    "an administrator does over HTTP: /v1/tokens."
)


@app.callback()
def _group() -> None:
    pass  # so that its one command keeps its name


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
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant whose token it is.")] = "default",
    store: StoreUrl = None,
    audit: StepAudit = None,
    as_json: AsJson = False,
) -> None:
    """Make a token, and print it: it is stored as a digest, and nowhere to be read again.

    Exit code: 0 made, 2 bad usage or file, 1 the store cannot be reached.
    """
    claims = {} if session is None else read_session(session).claims
    order = {"name": name, "scopes": scope, "claims": claims, "expires_in": expires_in}
    with stores_named(store) as stores, step_audit(audit, stores) as log:
        record, token = issue_token(stores.tokens, tenant, order)
        log.append(token_event("token.created", user_name(None), record.id, record.scopes))
    print_answer({**record.as_json(), "token": token}, [token], as_json=as_json)
