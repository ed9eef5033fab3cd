"""Bodies for health, readiness, audit events, tools, the manifest and errors."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from pdp.clock import to_milliseconds
from pdp.manifest.exports import ExportFormat
from pdp.service.models import DIGITS, Body, JsonObject


def _dated(time: Any) -> Any:
    # Pydantic would also read a number as seconds since 1970.
    if not (isinstance(time, str) and time[4:5] == "-"):
        raise ValueError("write a time such as 2026-07-01T10:00:00Z")
    return time


EventTime = Annotated[
    AwareDatetime, BeforeValidator(_dated), AfterValidator(lambda time: to_milliseconds(time.timestamp()))
]


class Alive(Body):
    """The answer of a running process to a liveness check."""

    status: Literal["ok"] = "ok"


class ReadinessPart(BaseModel):
    """The state of an engine or store. If it is unready, `reason` explains why; programs can rely on `code`."""

    model_config = ConfigDict(extra="allow")

    status: Literal["ready", "unready"]
    code: str | None = None
    reason: str | None = None


class ReadinessAnswer(Body):
    """Whether the engines and stores of all tenants work. Only a service with one tenant shows `engine` and `store`."""

    status: Literal["ready", "unready"]
    engine: ReadinessPart | None = None
    store: ReadinessPart | None = None


class AuditQuery(Body):
    """A page of events that match the filters: at most `limit` (default: `limits.page`) after number `after`."""

    after: Annotated[int, Field(ge=-1, lt=2**63), DIGITS] = -1
    limit: Annotated[int, Field(ge=1), DIGITS] | None = None
    since: EventTime | None = None
    until: EventTime | None = None
    tool: str | None = None
    run_id: str | None = None
    subject: str | None = None
    code: str | None = None


class Event(BaseModel):
    """An audit event. Fields that do not apply to the event are null."""

    model_config = ConfigDict(extra="allow")

    seq: int
    time: str
    type: str
    prev_hash: str | None
    hash: str


class AuditPage(Body):
    """Audit events, the oldest first. Send `last` as `after` for the next page, until the answer's `last` equals it."""

    events: list[Event]
    last: int


class ToolsQuery(Body):
    """The format of the tool definitions."""

    format: ExportFormat = ExportFormat.PLAIN


class VisibleTool(Body):
    """A tool that the subject may call. If `visibility` is DEPENDS, `condition` says on what the decision depends."""

    name: str
    visibility: Literal["ALLOW", "DEPENDS"]
    condition: str | None
    definition: JsonObject


class ToolList(Body):
    """The tools that the subject may be able to call, depending on the arguments."""

    tools: list[VisibleTool]
    manifest_version: str
    manifest_digest: str


class ManifestAnswer(Body):
    """The effective manifest. The policy reads `document`, which has the digest `digest`. `tools` has all entries."""

    version: str
    digest: str
    document: JsonObject
    tools: JsonObject


class Problem(Body):
    """The reason why a request failed. Programs can rely on `code`, but not on `message`; `hint` says what to do.

    `link` is the URL of the page about the code.
    """

    code: str
    message: str
    hint: str | None = None
    link: str


class ErrorAnswer(Body):
    """The body of an answer with an error status (400 or higher). AuthZEN endpoints answer with a string instead."""

    error: Problem
