"""Who the client of the gateway is."""

from __future__ import annotations

import getpass
import uuid
from typing import TYPE_CHECKING

from pdp.documents import read_document
from pdp.session import Session

if TYPE_CHECKING:
    from pdp.project.file import Project


def session_of_project(project: Project, *, in_run: bool) -> Session:
    """Return the session of calls over stdio: what the project's session file states, of the user of this process.

    `in_run`: they are one run; an approval is then of this run, and of no use after a restart. UsageError: the file
    cannot be read, or is not a session.
    """
    stated = {} if project.session is None else read_document(project.session).value
    run = {"run_id": f"mcp-{uuid.uuid4()}"} if in_run else {}
    fields = {**run, **stated} if isinstance(stated, dict) else stated
    if isinstance(fields, dict) and isinstance(fields.get("claims", {}), dict):
        fields["claims"] = {"sub": getpass.getuser(), **fields.get("claims", {})}
    return Session.read(fields)
