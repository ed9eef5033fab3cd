"""The stages of a call: one frozen record for each stage.

    Received -> Asked -> Prepared -> Decided -> Reserved -> Ready -> Executed

A call becomes `Ended` if it is malformed, a check rejects it, or its request cannot be built. A call that the policy
does not allow stays `Decided`. If the outcome is known without running the tool, `Known` takes the place of `Ready`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

import orjson

from pdp.contract.checks import Checked, Rejected
from pdp.contract.compiled import CompiledTool
from pdp.decision import Decision, Verdict, denied
from pdp.errors import PdpError
from pdp.manifest.effective import EffectiveManifest
from pdp.proposal import Execution, Failure, FailureCode, Proposal, Rejection, RejectionCode, Status
from pdp.request import Request
from pdp.session import Session

if TYPE_CHECKING:  # Only some calls need these modules at run time.
    from pdp.contract.budgets import Spending
    from pdp.ledger.summary import CallFlow
    from pdp.model_calls import ToolCall
    from pdp.obligations.handlers import Duties
    from pdp.patterns.enforcement import EnforcedCall
    from pdp.stores.actions import Action
    from pdp.stores.approvals import Approval
    from pdp.stores.grants import LastingGrant
    from pdp.stores.keys import KeyRecord

_NAME_LENGTH: Final = 128
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class CallIds(TypedDict, total=False):
    """Optional ids for the audit: the model's id of the call, and the name of the call's step in its plan."""

    tool_call_id: str | None
    step_name: str | None


class Received(NamedTuple):
    """A call as the application made it, before the session and the proposal are parsed."""

    manifest: EffectiveManifest
    to_run: bool  # If False, the call is only decided.
    tool_call_id: str | None
    step_name: str | None
    now: float  # Arrival time in seconds since 1970.
    started: float  # Arrival time on the clock that measures durations.
    compensates: Action | None = None  # The action that the call undoes.
    staged: Action | None = None  # The action to commit. The call is only decided, to open its approval.
    hold: bool = False  # A STEP_UP opens an approval even if `to_run` is False.
    transformed: bool = False  # The policy has replaced the proposal.
    call: ToolCall | None = None  # The proposal as a tool call of a model's API.
    proposer: Mapping[str, Any] = _NOTHING  # Claims of the token that sent the proposal, not the session's claims.


class Asked(NamedTuple):
    """A call whose session and proposal are parsed and can no longer change."""

    received: Received
    session: Session
    request_id: str  # The session's request id, or a new id.
    proposal: Proposal


class Unread(NamedTuple):
    """A call whose session or proposal is malformed."""

    received: Received
    session: Session | None = None  # Like `request_id`, set if only the proposal is malformed.
    request_id: str | None = None
    proposal: None = None
    tool_name: str = ""  # The proposed name, if readable.


class Prepared(NamedTuple):
    """A call that passed its checks, with the request that the policy decides."""

    asked: Asked
    checked: Checked
    request: Request
    body: bytes  # The request as canonical JSON.
    approval: Approval | None = None  # The stored approval for exactly this call.
    flow: CallFlow | None = None  # The labels of the call's run, if the manifest tracks flow.
    spendings: Sequence[Spending] = ()  # The amounts that the call spends of its cumulative limits.
    grant: LastingGrant | None = None  # The lasting grant that the policy decided with.

    @property
    def call_digest(self) -> str:
        """A digest that identifies the call. An approval contains the digest, and is valid for this call only."""
        digest: str = self.request.context["call_digest"]
        return digest

    @property
    def call_id(self) -> str:
        """The call's id in the run ledger: the model's id of the call, or else the request id."""
        return self.asked.received.tool_call_id or self.asked.request_id

    @property
    def resource(self) -> tuple[str, str]:
        """Type and id of the resource that the tool acts on."""
        return self.request.resource[:2]

    def denied(self, code: str, message: str) -> Decided:
        """Return the call as denied, without a decision by a policy."""
        return Decided(self, denied(code, message), approval=self.approval)


class Ended(NamedTuple):
    """A call that ended before the policy could decide, or that a remote service decided."""

    asked: Asked | Unread
    checked: Checked | Rejected | None = None  # None if the call was not checked.
    decision: Decision | None = None  # None if the checks rejected or pruned the proposal.
    approval: Approval | None = None

    @property
    def allowed(self) -> bool:
        """Whether the call's tool may run."""
        return self.decision is not None and self.decision.verdict is Verdict.ALLOW

    @property
    def status(self) -> Status:
        """Whether the proposal was accepted, rejected, or transformed (replaced, or dropped from its plan)."""
        if self.allowed:
            return Status.TRANSFORMED if self.asked.received.transformed else Status.ACCEPTED
        return Status.TRANSFORMED if self.pruned else Status.REJECTED

    @property
    def rejection(self) -> Rejection | None:
        """The reason for which a check or the verdict rejects the call; None if the call is not rejected."""
        if self.decision is None:
            return self.checked.rejection if isinstance(self.checked, Rejected) else None
        return _rejection(self.decision)

    @property
    def pruned(self) -> bool:
        """Whether an invariant dropped the call from its plan, so that the call is neither decided nor run."""
        return self.decision is None and isinstance(self.checked, Rejected) and self.checked.rejection is None

    @property
    def tool(self) -> CompiledTool | None:
        """The compiled manifest entry of the tool; None if the manifest has no such tool."""
        return self.checked.tool if self.checked is not None else None

    @property
    def proposal(self) -> Proposal | None:
        """The proposal after the checks; the original proposal if no check ran."""
        return self.checked.proposal if self.checked is not None else self.asked.proposal

    @property
    def tool_name(self) -> str:
        """The proposed tool name, cut to 128 characters; empty if the proposal could not be parsed."""
        proposal = self.proposal
        name = proposal.tool if proposal else self.asked.tool_name if isinstance(self.asked, Unread) else ""
        return name[:_NAME_LENGTH]

    def denied(self, code: str, message: str) -> Ended:
        """Return the call with a DENY as its decision."""
        return self._replace(decision=denied(code, message))


class Decided(NamedTuple):
    """A call that the policy has decided."""

    prepared: Prepared
    decision: Decision
    duties: Duties | None = None
    approval: Approval | None = None  # The approval that allowed the call, or that a person must still grant.
    action: Action | None = None  # The action that waits for an approval.
    answer: Decision | None = None  # The policy's answer, to which the decision adds explanations.

    @property
    def asked(self) -> Asked:
        """The call as parsed, before its checks."""
        return self.prepared.asked

    @property
    def checked(self) -> Checked:
        """The results of the call's checks."""
        return self.prepared.checked

    @property
    def allowed(self) -> bool:
        """Whether the call's tool may run."""
        return self.decision.verdict is Verdict.ALLOW

    @property
    def status(self) -> Status:
        """Whether the proposal was accepted, rejected, or transformed (replaced, or corrected)."""
        if self.decision.verdict is not Verdict.ALLOW:
            return Status.REJECTED
        prepared = self.prepared
        changed = prepared.asked.received.transformed or prepared.checked.trips
        return Status.TRANSFORMED if changed else Status.ACCEPTED

    @property
    def rejection(self) -> Rejection | None:
        """The reason why the call is rejected; None if the call is allowed."""
        return _rejection(self.decision)

    @property
    def pruned(self) -> bool:
        """Always False, because a call that was dropped from its plan is never decided."""
        return False

    @property
    def tool(self) -> CompiledTool:
        """The compiled manifest entry of the tool."""
        return self.prepared.checked.tool

    @property
    def proposal(self) -> Proposal:
        """The proposal that was decided."""
        return self.prepared.checked.proposal

    @property
    def markings(self) -> frozenset[str]:
        """The markings that the policy puts on the result (obligation `mark_result`)."""
        duties = (duty for duty in self.decision.obligations if duty.id == "mark_result")
        return frozenset(name for duty in duties for name in duty.parameters["markings"])

    @property
    def tool_name(self) -> str:
        """The tool's name, cut to 128 characters."""
        return self.prepared.checked.proposal.tool[:_NAME_LENGTH]

    def denied(self, code: str, message: str) -> Decided:
        """Return the call with a DENY as its decision."""
        return self._replace(decision=denied(code, message))


class Replaced(NamedTuple):
    """A decided call whose proposal the policy replaces. The new `proposal` is then checked and decided too."""

    decided: Decided
    proposal: Proposal


class CallDeniedError(PdpError):
    """An allowed call must be denied before its tool starts. The DENY has this `code` and message as its reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]


class OverspentError(Exception):
    """Other calls have spent the budget or the grant of this allowed call, so the call has to be decided again."""


class Reserved(NamedTuple):
    """An allowed call with its reservations, which must later be committed or released."""

    decided: Decided
    enforced: EnforcedCall | None = None  # None if neither pattern nor run has rules for the call.
    key: KeyRecord | None = None
    budgets: str | None = None  # The id of the reservation of budgets.

    @property
    def prepared(self) -> Prepared:
        """The call with its request to the policy."""
        return self.decided.prepared


class Known(NamedTuple):
    """A call whose outcome is known without running the tool, such as a repeated call with the same idempotency key."""

    reserved: Reserved
    execution: Execution
    action: None = None


class Ready(NamedTuple):
    """A call whose tool can start, with the function's arguments and the action that the call commits, if any."""

    reserved: Reserved
    arguments: Mapping[str, Any]
    action: Action | None = None


class Executed(NamedTuple):
    """A call with its outcome and everything that its caller gets. `Evaluation` describes the fields."""

    decided: Decided | Ended
    execution: Execution
    action: Action | None = None
    markings: frozenset[str] = frozenset()
    retrieval_snapshot: str | None = None
    pins: Mapping[str, str] = _NOTHING
    state: dict[str, Any] | None = None


def _rejection(decision: Decision) -> Rejection | None:
    if decision.verdict is Verdict.ALLOW:
        return None
    why = "; ".join(reason.text for reason in decision.reasons)
    return Rejection(RejectionCode.POLICY_VIOLATION, f"{decision.verdict}: {why}")


def arguments_of(proposal: Proposal) -> dict[str, Any]:
    """Return a new copy of the arguments that were decided."""
    arguments: dict[str, Any] = orjson.loads(proposal.text)
    return arguments


def not_run(message: str, effect: str = "none") -> Execution:
    """Return the outcome of a call whose tool was not started. `effect` is the effect of an earlier call."""
    failure = Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"effect": effect})
    return Execution(failure=failure, started=False)


def withheld(execution: Execution, message: str) -> Execution:
    """Return the outcome without its result. The failure tells whether the tool's effect is known."""
    effect = "done" if execution.failure is None else execution.failure.details.get("effect", "unknown")
    failure = Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"effect": effect})
    return execution._replace(result=None, failure=failure, error=None)
