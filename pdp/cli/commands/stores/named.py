"""The stores that a command names, and its step recorded in a stream of events."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from pdp.audit.chain import AuditEvent, AuditLog
from pdp.cli.files import key_of_environment, open_audit, project_with
from pdp.cli.options import file_option
from pdp.cli.output import complain
from pdp.errors import PdpError, StoreError, UsageError
from pdp.project.file import PROJECT_FILE
from pdp.stores.url import OpenStores

URL_VARIABLE: Final = "PDP_DATABASE_URL"
"""Where the URL may stand instead of on the command line, which other users of the machine can read."""

_URL: Final = f"sqlite:///agent.db or postgresql://...; else the variable {URL_VARIABLE}, else the project's."
DatabaseUrl = Annotated[str | None, typer.Argument(metavar="[URL]", help=_URL)]
StoreUrl = Annotated[str | None, typer.Option("--store", metavar="URL", help=_URL)]
StepAudit = Annotated[
    Path | None,
    file_option(
        "--audit",
        help="The application's audit stream; its head in PDP_AUDIT_HEAD. The database's, if it has one, if absent.",
    ),
]


def stores_named(url: str | None, *, upgrade: bool = False) -> AbstractContextManager[OpenStores]:
    """Open the stores of the URL that the line, the variable or the project file states, in this order."""
    stated = url or os.environ.get(URL_VARIABLE) or project_with().store
    if stated is None:
        hint = f"name one, as sqlite:///agent.db, set {URL_VARIABLE}, or state `store:` in {PROJECT_FILE}"
        raise UsageError("no database is named", hint=hint)
    return closing(OpenStores(stated, upgrade=upgrade))


def step_audit(audit: Path | None, stores: OpenStores) -> AbstractContextManager[AuditLog]:
    """Open the stream of events of a step: the file that is named, else the database's, if a service writes one there.

    Without one, it is said that no stream has it.
    """
    if audit is None:
        own = stores.open_audit(key_of_environment())
        if own.last_seq() >= 0:
            return closing(own)
        complain("note: no audit stream records this step; name the application's with --audit")
    return closing(open_audit(audit))


@contextmanager
def recorded(log: AuditLog, event: AuditEvent) -> Iterator[None]:
    """Record a step and then make it, as every step: what cannot be recorded does not happen."""
    log.append(event)
    try:
        yield
    except PdpError as error:
        log.append({**event, "outcome": "unknown" if isinstance(error, StoreError) else "failed"})
        raise
