"""`pdp approvals`: show, grant, deny and withdraw approvals. The class `Approvals` checks who may do this."""

import time
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
from pdp.clock import LAST_SECOND, to_seconds
from pdp.documents import FieldError
from pdp.errors import UsageError
from pdp.json import canonical
from pdp.ledger.words import origins
from pdp.manifest.fields import SUBJECT, duration_seconds
from pdp.session import Person
from pdp.stores.approvals import Approval, ApprovalState

app = command_app(
    "Decide on calls that wait for a person. The session file names the person who decides; its claims are not "
    "verified, so protect the store. With --service, the token identifies the person."
)

ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The approval's id from `pdp approvals list`.")]
Decider = Annotated[
    Path | None, file_option("--session", "-s", help="A session file; its claims identify the person who decides.")
]
ServiceUrl = Annotated[
    str | None,
    typer.Option(
        "--service",
        metavar="URL",
        help="The URL of a decision service to use instead of a store. The token in PDP_TOKEN identifies the person.",
    ),
]


@app.command("list")
def listing(
    every: Annotated[bool, typer.Option("--all", help="Include decided, expired and used approvals.")] = False,
    store: StoreUrl = None,
    service: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """List pending approvals, the oldest first; with --all, also decided, expired and used approvals.

    Exit code: 0 shown, 2 bad usage, 1 the store or service cannot be reached.
    """
    stored: Sequence[Approval]
    if service is not None:
        with service_client(service, store) as client:
            stored = client.approvals.list(**({} if every else {"state": ApprovalState.PENDING}))
    else:
        with stores_named(store) as stores:
            stored = stores.approvals.list(state=None if every else ApprovalState.PENDING)
    approvals = [approval for approval in stored if every or approval.standing is ApprovalState.PENDING]
    lines = [
        f"{approval.id}  {approval.standing}  {approval.tool} for {_requesters(approval)}: "
        f"{', '.join(approval.reasons)}; {_quorum(approval)}, expires {approval.expires_at}"
        for approval in approvals
    ] or ["no approvals" if every else "no pending approvals"]
    print_answer([approval.as_json() for approval in approvals], lines, as_json=as_json)


@app.command()
def show(approval_id: ApprovalId, store: StoreUrl = None, service: ServiceUrl = None, as_json: AsJson = False) -> None:
    """Show an approval: tool, all arguments, reasons, requester, and who has granted the approval.

    Exit code: 0 shown, 2 bad usage, 1 no approval with that id, or the store or service cannot be reached.
    """
    if service is not None:
        with service_client(service, store) as client:
            approval = client.approvals.get(approval_id)
    else:
        with stores_named(store) as stores:
            approval = Approvals(stores.approvals).get(approval_id)
    _print(approval, as_json=as_json)


@app.command()
def grant(
    approval_id: ApprovalId,
    session: Decider = None,
    reach: Annotated[
        str | None,
        typer.Option("--for", metavar="run|P7D", help="Also approve similar calls, of this run or for a duration."),
    ] = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    service: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Approve a call, as the person in the session file. When enough people have approved the call, it may run once.

    With --for, similar calls may run as well, as far as `approval.lasting` of the tool's entry allows.

    Exit code: 0 counted, 2 bad usage or file, 1 rejected, or the store or service cannot be reached.
    """
    _decide("grant", approval_id, session, store, audit, service, as_json=as_json, **reach_of_option(reach))


def reach_of_option(text: str | None) -> dict[str, str | None]:
    """Return the reach and the end of a grant for the value of `--for`: `run`, or a duration such as `P7D`."""
    if text in (None, "run"):
        return {} if text is None else {"reach": "run"}
    try:
        seconds = duration_seconds(text)
    except FieldError as error:
        raise UsageError(f"--for {text!r:.60}: {error}", hint="write `run`, or a duration: P7D, PT4H") from None
    return {"reach": "until", "until": to_seconds(min(time.time() + seconds, LAST_SECOND))}


@app.command()
def deny(
    approval_id: ApprovalId,
    session: Decider = None,
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help="The reason, which is recorded.")] = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    service: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Deny a call, as the person in the session file. One denial is enough to stop the call.

    Exit code: 0 denied, 2 bad usage or file, 1 rejected, or the store or service cannot be reached.
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
    """Withdraw an approval that you requested.

    Exit code: 0 withdrawn, 2 bad usage or file, 1 rejected, or the store or service cannot be reached.
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
    **choice: str | None,
) -> None:
    if service is not None:
        with service_client(service, session, store, audit) as client:
            approval: Approval = getattr(client.approvals, step)(approval_id, **choice)
    elif session is None:
        raise UsageError("no session file is given", hint="name the person with --session FILE, or use --service URL")
    else:
        claims = read_session(session).claims
        with stores_named(store) as stores, step_audit(audit, stores) as log:
            rules = Approvals(stores.approvals)
            rules.attach(log, stores.actions)
            approval = getattr(rules, step)(approval_id, claims, **choice)
    _print(approval, as_json=as_json)


def service_client(service: str, *others: object) -> Client:
    """Return a client of the service. Raise `UsageError` if an option in `others` is set as well."""
    if any(other is not None for other in others):
        raise UsageError("--service excludes --store, --audit and --session", hint="remove the other options")
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
    if approval.lasting is not None:
        yield "may last", f"{' or '.join(approval.lasting.reaches)}, for at most PT{approval.lasting.seconds}S"
        yield from (("limited to", f"{name} = {text}") for name, text in approval.lasting.about.items())
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
