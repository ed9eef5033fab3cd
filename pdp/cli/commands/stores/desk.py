"""The approvals of a store or of a service, as the commands list them and as one person decides them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from pdp.approvals.approvals import Approvals
from pdp.cli.commands.stores.stores import step_audit, store_named
from pdp.cli.files import read_session
from pdp.client.client import Client
from pdp.errors import UsageError
from pdp.stores.approvals import Approval, ApprovalState
from pdp.stores.url import OpenStores

_START: Final = re.compile("[0-9a-f]{6,31}")
_WHOLE: Final = re.compile("[0-9a-f]{32}")


class Desk(Protocol):
    """The approvals, with the methods of `Client.approvals`. One person decides."""

    def list(self, **filters: Any) -> Sequence[Approval]:
        """Return the approvals with these values of `state`, `tool` and `run_id`."""

    def get(self, approval_id: str) -> Approval:
        """Return an approval."""

    def grant(self, approval_id: str, *, reach: str = "once", until: str | None = None) -> Approval:
        """Grant an approval, for its call or beyond."""

    def deny(self, approval_id: str, why: str | None = None) -> Approval:
        """Deny an approval."""

    def withdraw(self, approval_id: str) -> Approval:
        """Withdraw an approval."""


class _StoreDesk:
    def __init__(self, rules: Approvals, claims: Mapping[str, Any] | None) -> None:
        self._rules, self._claims = rules, claims

    def list(self, **filters: Any) -> Sequence[Approval]:
        return self._rules.list(**filters)

    def get(self, approval_id: str) -> Approval:
        return self._rules.get(approval_id)

    def grant(self, approval_id: str, *, reach: str = "once", until: str | None = None) -> Approval:
        return self._rules.grant(approval_id, self._claims, reach=reach, until=until)

    def deny(self, approval_id: str, why: str | None = None) -> Approval:
        return self._rules.deny(approval_id, self._claims, why=why)

    def withdraw(self, approval_id: str) -> Approval:
        return self._rules.withdraw(approval_id, self._claims)


@contextmanager
def open_desk(
    store: str | None, service: str | None, session: Path | None = None, audit: Path | None = None, *, decides: bool
) -> Iterator[tuple[Desk, Mapping[str, Any] | None]]:
    """Open the approvals of a store or a service, and return them with the claims of the session file, if any."""
    with ExitStack() as opened:
        if service is not None:
            yield opened.enter_context(service_client(service, store, session, audit)).approvals, None
            return
        rules, claims = opened.enter_context(open_rules(store, session, audit, decides=decides))
        yield _StoreDesk(rules, claims), claims


@contextmanager
def open_rules(
    store: str | None, session: Path | None = None, audit: Path | None = None, *, decides: bool
) -> Iterator[tuple[Approvals, Mapping[str, Any] | None]]:
    """Open the approvals of a store, and return them with the claims of the session file, which deciding requires."""
    if decides and session is None:
        hint = "name the person with --session FILE, or use --service URL"
        raise UsageError("no session file is given", hint=hint)
    claims = None if session is None else read_session(session).claims
    with ExitStack() as opened:
        url, public_url = store_named(store)
        stores = opened.enter_context(closing(OpenStores(url)))
        rules = Approvals(stores.approvals, public_url=public_url)
        if decides:
            rules.attach(opened.enter_context(step_audit(audit, stores)), stores.actions)
        yield rules, claims


def service_client(service: str, *others: object) -> Client:
    """Return a client of the service. Raise `UsageError` if an option in `others` is set as well."""
    if any(other is not None for other in others):
        raise UsageError("--service excludes --store, --audit and --session", hint="remove the other options")
    return Client(service)


def select_approvals(
    desk: Desk, state: ApprovalState | None, tool: str | None = None, run: str | None = None
) -> Sequence[Approval]:
    """Return the approvals that are in this state now, with this tool and run, oldest first; None means any."""
    # The stored state of an expired approval may still be pending or granted.
    stored = None if state is ApprovalState.EXPIRED else state
    filters = {"state": stored, "tool": tool, "run_id": run}
    found = desk.list(**{name: value for name, value in filters.items() if value is not None})
    return [approval for approval in found if state in (None, approval.standing)]


def open_of(desk: Desk, run: str | None = None) -> Sequence[Approval]:
    """Return the approvals that are not decided yet, or granted and not used yet."""
    states = ApprovalState.PENDING, ApprovalState.GRANTED
    return [approval for state in states for approval in select_approvals(desk, state, run=run)]


def whole_id(desk: Desk, text: str) -> str:
    """Return the id of the only open approval that begins with `text`, 6 digits or more; else `text`, unchanged."""
    if not _START.fullmatch(text):
        return text
    found = [each.id for each in open_of(desk) if each.id.startswith(text) and _WHOLE.fullmatch(each.id)]
    if len(found) > 1:
        raise UsageError(f"{len(found)} approvals begin with {text}", hint="write more digits of the id")
    return found[0] if found else text
