"""Health, readiness, the record of events, tools, the manifest, errors."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from pdp.manifest.exports import ExportFormat
from pdp.service.models import DIGITS, Body, JsonObject


class Alive(Body):
    """The process runs."""

    status: Literal["ok"] = "ok"


class ReadinessPart(BaseModel):
    """An engine or a store. If it is unready, `code` is stable and `reason` says why; further fields describe it."""

    model_config = ConfigDict(extra="allow")

    status: Literal["ready", "unready"]
    code: str | None = None
    reason: str | None = None


class ReadinessAnswer(Body):
    """Whether the engines and stores of all tenants can be used. Only a service with one tenant names the parts."""

    status: Literal["ready", "unready"]
    engine: ReadinessPart | None = None
    store: ReadinessPart | None = None


class AuditQuery(Body):
    """Which events are read: those after the number `after`, at most `limit`; `limits.page` when absent."""

    after: Annotated[int, Field(ge=-1, lt=2**63), DIGITS] = -1
    limit: Annotated[int, Field(ge=1), DIGITS] | None = None


class Event(BaseModel):
    """One event of the record; docs/operations.md names its other fields. A field that does not apply is null."""

    model_config = ConfigDict(extra="allow")

    seq: int
    time: str
    type: str
    prev_hash: str | None
    hash: str


class AuditPage(Body):
    """Some events, in the order of their chain. `last`: the number of the last one, for the next page."""

    events: list[Event]
    last: int


class ToolsQuery(Body):
    """The form of the tools' definitions."""

    format: ExportFormat = ExportFormat.PLAIN


class VisibleTool(Body):
    """A tool that the subject may use. If it is DEPENDS, `condition` says in words on what."""

    name: str
    visibility: Literal["ALLOW", "DEPENDS"]
    condition: str | None
    definition: JsonObject


class ToolList(Body):
    """The tools that the subject may be able to call."""

    tools: list[VisibleTool]
    manifest_version: str
    manifest_digest: str


class ManifestAnswer(Body):
    """The effective manifest. `digest` is that of `document`, which the policy reads; `tools` has the whole entries."""

    version: str
    digest: str
    document: JsonObject
    tools: JsonObject


class Problem(Body):
    """Why a request failed. `code` is stable, the message is not; `hint` says what to do."""

    code: str
    message: str
    hint: str | None = None


class ErrorAnswer(Body):
    """The body of an answer from 400 on. AuthZEN's endpoints answer with a string instead."""

    error: Problem
