"""`pdp approvals`: what people are asked to approve, and their decisions on it. The rules are those of `Approvals`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from pdp.approvals.approvals import Approvals
from pdp.cli.commands.stores.stores import StepAudit, StoreUrl, step_audit, stores_named
from pdp.cli.files import read_session
from pdp.cli.options import AsJson, command_app, file_option
from pdp.cli.output import print_answer
from pdp.client.client import Client
from pdp.errors import UsageError
from pdp.json import canonical
from pdp.ledger.words import origins
from pdp.manifest.fields import SUBJECT
from pdp.session import Person
from pdp.stores.approvals import Approval, ApprovalState

app = command_app(
    "Decide on calls that wait for a person. Whoever can write to the store is trusted: the session file says who "
    "decides, and nobody checks that it is the person at the terminal. With --service, the token says who decides."
)

ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The approval, as `pdp approvals list` shows it.")]
Decider = Annotated[
    Path | None,
    file_option("--session", "-s", help="Whose decision it is: a session file, of which the claims count."),
]
ServiceUrl = Annotated[
    str | None,
    typer.Option(
        "--service",
        metavar="URL",
        help="The decision service to ask, in the place of a store; whose decision it is, the token in PDP_TOKEN says.",
    ),
]


@app.command("list")
def listing(
    every: Annotated[bool, typer.Option("--all", help="Also those that are decided, expired or used.")] = False,
    store: StoreUrl = None,
    service: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the approvals, in the order of being opened; without --all those that wait.

    Exit code: 0 shown, 2 bad usage, 1 the store or service cannot be reached.
    """
    stored: Sequence[Approval]
    if service is not None:
        with _client(service, store) as client:
            stored = client.approvals.list(**({} if every else {"state": ApprovalState.PENDING}))
    else:
        with stores_named(store) as stores:
            stored = stores.approvals.list(state=None if every else ApprovalState.PENDING)
    approvals = [approval for approval in stored if every or approval.standing is ApprovalState.PENDING]
    lines = [
        f"{approval.id}  {approval.standing}  {approval.tool} for {_requesters(approval)}: "
        f"{', '.join(approval.reasons)}; {_quorum(approval)}, expires {approval.expires_at}"
        for approval in approvals
    ] or ["no approval" if every else "no approval waits"]
    print_answer([approval.as_json() for approval in approvals], lines, as_json=as_json)


@app.command()
def show(approval_id: ApprovalId, store: StoreUrl = None, service: ServiceUrl = None, as_json: AsJson = False) -> None:
    """Show what is asked: tool, arguments, reasons, who asks, and who has granted it. Arguments are shown whole.

    Exit code: 0 shown, 2 bad usage, 1 no approval of that id, or the store or service cannot be reached.
    """
    if service is not None:
        with _client(service, store) as client:
            approval = client.approvals.get(approval_id)
    else:
        with stores_named(store) as stores:
            approval = Approvals(stores.approvals).get(approval_id)
    _print(approval, as_json=as_json)


@app.command()
def grant(
    approval_id: ApprovalId,
    session: Decider = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    service: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Approve a call, as the person whose claims the session file has; with the last of the quorum it may run once.

    Exit code: 0 counted, 2 bad usage or file, 1 refused, or the store or service cannot be reached.
    """
    _decide("grant", approval_id, session, store, audit, service, as_json=as_json)


@app.command()
def deny(
    approval_id: ApprovalId,
    session: Decider = None,
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help="The reason, for the record.")] = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    service: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Deny a call, as the person whose claims the session file has; one denial is enough.

    Exit code: 0 denied, 2 bad usage or file, 1 refused, or the store or service cannot be reached.
    """
    _decide("deny", approval_id, session, store, audit, service, as_json=as_json, why=why)


@app.command()
def withdraw(
    approval_id: ApprovalId,
    session: Decider = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    service: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take a call back, as the one who asked for it.

    Exit code: 0 withdrawn, 2 bad usage or file, 1 refused, or the store or service cannot be reached.
    """
    _decide("withdraw", approval_id, session, store, audit, service, as_json=as_json)


def _decide(
    step: Literal["grant", "deny", "withdraw"],
    approval_id: str,
    session: Path | None,
    store: str | None,
    audit: Path | None,
    service: str | None,
    *,
    as_json: bool,
    **reason: str | None,
) -> None:
    if service is not None:
        with _client(service, session, store, audit) as client:
            approval: Approval = getattr(client.approvals, step)(approval_id, **reason)
    elif session is None:
        raise UsageError("nobody is named who decides", hint="name a session file with --session, or a --service")
    else:
        claims = read_session(session).claims
        with stores_named(store) as stores, step_audit(audit, stores) as log:
            rules = Approvals(stores.approvals)
            rules.attach(log, stores.actions)
            approval = getattr(rules, step)(approval_id, claims, **reason)
    _print(approval, as_json=as_json)


def _client(service: str, *others: object) -> Client:
    if any(other is not None for other in others):
        raise UsageError("--service stands for store, audit stream and session", hint="leave the others out")
    return Client(service)


def _print(approval: Approval, *, as_json: bool) -> None:
    lines = [f"{approval.standing}  {approval.id}", *(f"  {name:<10} {text}" for name, text in _fields(approval))]
    print_answer(approval.as_json(), lines, as_json=as_json)


def _fields(approval: Approval) -> Iterator[tuple[str, str]]:
    context = approval.request["context"]
    yield "tool", " ".join(text for text in (approval.tool, approval.tool_version) if text)
    for name, value in context["arguments"].items():
        yield "argument", f"{name} = {canonical(value).decode()}"
    for name, value in (approval.task or {}).items():
        yield "task", f"{name} = {canonical(value).decode()}"
    yield from (("origin", line) for line in origins(context.get("flow")))
    if context.get("purpose"):
        yield "purpose", context["purpose"]
    if approval.run_id:
        yield "run", approval.run_id
    yield "asked by", _requesters(approval)
    yield "reasons", ", ".join(approval.reasons)
    own = f"{SUBJECT} ({_person(approval.requesters[0])}, by another token)"
    yield "approvers", ", ".join(own if role == SUBJECT else role for role in approval.approvers) or "nobody"
    yield "quorum", _quorum(approval)
    for granted in approval.grants:
        yield "granted", f"by {_person(granted.person)} as {', '.join(granted.roles)} at {granted.at}"
    yield "opened", approval.opened_at
    yield "expires", approval.expires_at
    if approval.closed_at is not None:
        by = f" by {_person(approval.closed_by)}" if approval.closed_by else ""
        yield "closed", f"{approval.closed_at}{by}{f': {approval.why}' if approval.why else ''}"


def _requesters(approval: Approval) -> str:
    return ", ".join(map(_person, approval.requesters))


def _person(person: Person) -> str:
    return person.sub if person.iss is None else f"{person.sub} ({person.iss})"


def _quorum(approval: Approval) -> str:
    return f"{len(approval.grants)} of {approval.quorum} granted"
