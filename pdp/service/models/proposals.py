"""Request and answer bodies for proposed calls and plans: sessions, results and answers."""

from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    Tag,
    TypeAdapter,
    create_model,
)

from pdp.contract.invariants import Trip
from pdp.decision import Obligation, Reason, Verdict
from pdp.proposal import Failure, FailureCode, Rejection, Status, Trace
from pdp.service.models import Body, JsonObject
from pdp.service.models.approvals import ApprovalBody
from pdp.session import Session
from pdp.stores.actions import Action

KEY_CODES: Final = ("idempotency.in_flight", "idempotency.unknown")

_FIELDS: dict[str, Any] = {
    name: (JsonObject if field.annotation == dict[str, Any] else field.annotation, field)
    for name, field in Session.model_fields.items()
}
del _FIELDS["time"]  # The time is left out, because the service uses its own clock.
_FIELDS["claims"] = (JsonObject, Field(default_factory=dict))
StatedSession = create_model(
    "Session",
    __base__=Body,
    __doc__="The session of a call: its caller and purpose. A token without the scope `assert` may state only "
    "`purpose`, `idempotency_key`, `run_id`, `request_id` and `plan`; the claims are then those of the token.",
    **_FIELDS,
)


class SessionBody(Body):
    """A body that contains only a session."""

    session: StatedSession = Field(default_factory=StatedSession)


class ProposedCall(SessionBody):
    """A proposed call. Choose a random `id` of at least 128 bits, and send the same `id` in a retry.

    `proposal` is `{tool, arguments}`, `{tool_name, payload}`, or a tool call in the format of OpenAI, Anthropic, MCP or
    Gemini. With `run: false`, the service only decides and the call does not begin.
    """

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._~-]{22,128}$")] | None = None
    proposal: Annotated[Any, Field(examples=[{"tool": "initiate_wire", "arguments": {"amount": 20000}}])]
    tool_call_id: str | None = None
    step_name: str | None = None
    run: StrictBool = True


class ProposedPlan(SessionBody):
    """A plan to check before its first call: at most 100 proposals, each with an optional `step_name`."""

    plan: list[Any]


class Succeeded(Body):
    """The result of a tool. `attempts` is the number of times that the tool was started."""

    started: Annotated[Literal[True], BeforeValidator(TypeAdapter(StrictBool).validate_python)] = True
    attempts: Annotated[StrictInt, Field(ge=1)] = 1
    result: Any


class ReportedFailure(Body):
    """The reason why a call has no result."""

    code: FailureCode
    message: str
    details: JsonObject = Field(default_factory=dict)


class Failed(Body):
    """A call without a result.

    `failure.details.effect` says whether the tool took effect: `none`, `done` or `unknown` (the default).
    """

    started: StrictBool = True
    attempts: Annotated[StrictInt, Field(ge=1)] = 1
    failure: ReportedFailure


def _kind(value: Any) -> str:
    is_failed = isinstance(value, Failed) or (isinstance(value, dict) and "failure" in value)
    return "Failed" if is_failed else "Succeeded"


class ReportedResult(Body):
    """The result or the failure of a call that has begun."""

    execution: Annotated[
        Annotated[Succeeded, Tag("Succeeded")] | Annotated[Failed, Tag("Failed")], Discriminator(_kind)
    ]


class OutcomeBody(BaseModel):
    """The status of a proposal, and the rejection or failure that caused it."""

    status: Status
    proposal: JsonObject | None = None
    rejection: Rejection | None = None
    failure: Failure | None = None


class ModelAnswer(BaseModel):
    """The text to return to the model as the answer to its tool call."""

    text: str
    is_error: bool


class ProposalAnswer(BaseModel):
    """The answer to a proposed call, and later to its reported result. Clients must ignore unknown fields.

    Attributes:
        begun: if true, run the tool now, with exactly these `arguments`. If false, do not run it, even on ALLOW.
        running_until: the deadline for the result, in seconds since 1970. After it, the call is recorded as `unknown`.
        replayed: if true, this is the result of an earlier call, and the tool must not run.
        verdict: null if a check stopped the call before the policy. `failed_check` names the check.
        answer: null while the call runs.
        markings, retrieval_snapshot, state: the markings and retrieval snapshot of the result, and the state after it.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    begun: bool
    arguments: JsonObject | None = None
    running_until: float | None = None
    manifest_digest: str | None = None
    executed: bool
    replayed: bool
    result: Any = None
    answer: ModelAnswer | None
    approval: ApprovalBody | None
    action: Action | None
    outcome: OutcomeBody
    verdict: Verdict | None
    reasons: tuple[Reason, ...]
    codes: tuple[str, ...] = ()
    obligations: tuple[Obligation, ...]
    trace: Trace
    trips: tuple[Trip, ...] = ()
    decision_id: str | None
    bundle_revision: str | None
    failed_check: str | None = None
    markings: frozenset[str] = frozenset()
    retrieval_snapshot: str | None = None
    state: JsonObject | None = None


class PlannedStep(Body):
    """A step of a plan, with the result of the checks that run before the policy."""

    name: str | None
    status: Status
    rejection: Rejection | None
    trips: list[str]


class PlanAnswer(Body):
    """The answer to a plan. `plan` has the accepted and corrected steps; send it in the session of each call."""

    acceptable: bool
    plan: list[Any]
    steps: list[PlannedStep]
    verdict: Verdict
    reasons: tuple[Reason, ...]
    codes: tuple[str, ...]
    obligations: tuple[Obligation, ...]
    decision_id: str
    bundle_revision: str | None
    release: int | None
