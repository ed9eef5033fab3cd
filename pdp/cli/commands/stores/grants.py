"""`pdp grants`: show and revoke lasting grants. The class `LastingGrants` checks who may do this."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from pdp.cli.commands.stores.approvals import Decider, ServiceUrl
from pdp.cli.commands.stores.desk import open_rules, service_client
from pdp.cli.commands.stores.stores import StepAudit, StoreUrl
from pdp.cli.options import AsJson, command_app
from pdp.cli.output import print_answer
from pdp.clock import to_seconds

app = command_app("Show and revoke grants that last longer than one call. `pdp approvals grant ID --for` makes them.")

GrantId = Annotated[str, typer.Argument(metavar="ID", help="The grant's id from `pdp grants list`.")]


@app.command("list")
def listing(
    every: Annotated[bool, typer.Option("--all", help="Include grants that have ended.")] = False,
    store: StoreUrl = None,
    service: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """List the grants that can still let calls through, the oldest first; with --all, also ended grants.

    Exit code: 0 shown, 2 bad usage, 1 the store or service cannot be reached.
    """
    with ExitStack() as opened:
        if service is not None:
            grants = opened.enter_context(service_client(service, store)).grants(active=not every)["grants"]
        else:
            rules, _ = opened.enter_context(open_rules(store, decides=False))
            grants = [_json(grant) for grant in rules.lasting.list(active=not every)]
    lines = [
        f"{grant['id']}  {grant['state']}  {grant['tool']} for {grant['subject']}: {_about(grant)}; "
        f"{_reach(grant)}, {grant['uses_left']} of {grant['uses']} uses left, until {grant['expires_at']}"
        for grant in grants
    ] or ["no grants" if every else "no active grants"]
    print_answer(grants, lines, as_json=as_json)


@app.command()
def show(grant_id: GrantId, store: StoreUrl = None, service: ServiceUrl = None, as_json: AsJson = False) -> None:
    """Show the calls that a grant covers, the people who gave it, and its end.

    Exit code: 0 shown, 2 bad usage, 1 no grant with that id, or the store or service cannot be reached.
    """
    with ExitStack() as opened:
        if service is not None:
            grant = opened.enter_context(service_client(service, store)).grant(grant_id)
        else:
            rules, _ = opened.enter_context(open_rules(store, decides=False))
            grant = _json(rules.lasting.get(grant_id))
    _print(grant, as_json=as_json)


@app.command()
def revoke(
    grant_id: GrantId,
    session: Decider = None,
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help="The reason, which is recorded.")] = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    service: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """End a grant at once. Its subject, the people who gave it and its approvers may do this.

    Exit code: 0 revoked, 2 bad usage or file, 1 rejected, or the store or service cannot be reached.
    """
    with ExitStack() as opened:
        if service is not None:
            grant = opened.enter_context(service_client(service, session, store, audit)).revoke(grant_id, why)
        else:
            rules, claims = opened.enter_context(open_rules(store, session, audit, decides=True))
            grant = _json(rules.lasting.revoke(grant_id, claims, why=why))
    _print(grant, as_json=as_json)


def _json(grant: Any) -> dict[str, Any]:
    shown: dict[str, Any] = grant.as_json(to_seconds(time.time()))
    return shown


def _print(grant: dict[str, Any], *, as_json: bool) -> None:
    lines = [f"{grant['state']}  {grant['id']}", *(f"  {name:<10} {text}" for name, text in _fields(grant))]
    print_answer(grant, lines, as_json=as_json)


def _fields(grant: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "tool", grant["tool"]
    yield "for", f"{grant['subject']}{' by agent ' + grant['agent'] if grant['agent'] else ''}"
    yield "reach", _reach(grant)
    yield "limited to", _about(grant)
    yield from (("at most", f"{name} = {value}") for name, value in grant["most"].items())
    yield "clears", ", ".join(grant["codes"])
    yield from (("granted", f"by {each['sub']} at {each['at']}") for each in grant["grants"])
    yield "uses left", f"{grant['uses_left']} of {grant['uses']}"
    yield "ends", grant["expires_at"]
    if grant["closed_at"] is not None:
        yield "closed", f"{grant['closed_at']}{' by ' + grant['closed_by']['sub'] if grant['closed_by'] else ''}"
    if grant["why"] is not None:
        yield "reason", grant["why"]


def _about(grant: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {text}" for name, text in grant["about"].items())


def _reach(grant: dict[str, Any]) -> str:
    return f"run {grant['run_id']}" if grant["reach"] == "run" else "every run"
