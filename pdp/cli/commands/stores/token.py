"""`pdp token`: creates, lists, revokes and rotates access tokens of the decision service."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from pdp.cli.commands.stores.approvals import ServiceUrl
from pdp.cli.commands.stores.desk import service_client
from pdp.cli.commands.stores.stores import StepAudit, StoreUrl, step_audit, stores_named
from pdp.cli.files import read_session
from pdp.cli.options import AsJson, command_app, file_option, user_name
from pdp.cli.output import print_answer, print_error
from pdp.documents import FieldError
from pdp.errors import UsageError
from pdp.manifest.fields import duration_seconds
from pdp.service.models.tokens import LIFETIME
from pdp.service.security.principal import Scope
from pdp.service.security.tokens import issue_token, replaced_token, shown_token, token_event

app = command_app(
    "Create, list, revoke and rotate access tokens of the decision service: in its store, to which this needs write "
    "access, or with --service and the token of an administrator in PDP_TOKEN."
)

TokenId = Annotated[str, typer.Argument(metavar="ID", help="The token's id from `pdp token list`.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that describes the token's use.")],
    scope: Annotated[list[Scope], typer.Option("--scope", help="A permission of the token. May be repeated.")],
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
    with stores_named(store) as stores, step_audit(audit, stores, begin=True) as log:
        record, token = issue_token(stores.tokens, tenant, order)
        log.append(token_event("token.created", user_name(None), record.id, record.scopes))
    shown = {**shown_token(record), "token": token}
    for warning in shown["warnings"]:
        print_error(f"warning: the token {warning}")
    print_answer(shown, [token], as_json=as_json)


@app.command("list")
def listing(store: StoreUrl = None, service: ServiceUrl = None, as_json: AsJson = False) -> None:
    """List tokens without their secrets, the oldest first, with warnings. A service lists those of one tenant.

    Exit code: 0 shown, 2 bad usage, 1 the store or service cannot be reached.
    """
    with ExitStack() as opened:
        if service is not None:
            tokens = opened.enter_context(service_client(service, store)).tokens()["tokens"]
        else:
            tokens = [*map(shown_token, opened.enter_context(stores_named(store)).tokens.list())]
    lines = []
    for token in tokens:
        who = f"{token['name']} of {token['tenant']} for {token['claims'].get('sub', 'no person')}"
        times = f"{token['created_at']} to {token['expires_at']}"
        lines += [f"{token['id']}  {token['state']:<7}  {who}: {' '.join(token['scopes'])}; {times}"]
        lines += [f"  warning: {warning}" for warning in token["warnings"]]
    print_answer(tokens, lines or ["no tokens"], as_json=as_json)


@app.command()
def revoke(
    token_id: TokenId, store: StoreUrl = None, audit: StepAudit = None, service: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Revoke a token and its browser sessions. Services notice within five seconds.

    Exit code: 0 revoked, 2 bad usage or id, 1 the store or service cannot be reached.
    """
    if service is not None:
        with service_client(service, store, audit) as client:
            client.revoke_token(token_id)
    else:
        with stores_named(store) as stores, step_audit(audit, stores, begin=True) as log:
            if not stores.tokens.revoke(token_id, time.time()):
                raise UsageError(f"{token_id:.60}: no token has this id", hint="see: pdp token list")
            log.append(token_event("token.revoked", user_name(None), token_id))
    print_answer({"id": token_id}, [f"revoked {token_id}"], as_json=as_json)


@app.command()
def rotate(
    token_id: TokenId,
    grace: Annotated[str, typer.Option(metavar="1h", help="How long the old token is still valid.")] = "0s",
    store: StoreUrl = None, audit: StepAudit = None, service: ServiceUrl = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Print a new token with the name, scopes, claims and lifetime of another one, and revoke that one.

    Exit code: 0 rotated, 2 bad usage or id, 1 the store or service cannot be reached.
    """
    try:
        seconds = int(duration_seconds(("P" if grace.endswith("d") else "PT") + grace.upper()))
    except FieldError:
        raise UsageError(f"--grace {grace!r:.60}: not a duration", hint="write it as 30s, 10m, 1h or 2d") from None
    if service is not None:
        with service_client(service, store, audit) as client:
            made = client.rotate_token(token_id, seconds)
    else:
        with stores_named(store) as stores, step_audit(audit, stores, begin=True) as log:
            record, token = replaced_token(stores.tokens, token_id, None, seconds)
            log.append(token_event("token.created", user_name(None), record.id, record.scopes))
            log.append(token_event("token.revoked", user_name(None), token_id, [f"after {seconds} s"] * bool(seconds)))
        made = {**shown_token(record), "token": token}
    print_answer(made, [made["token"]], as_json=as_json)
