"""The stages of one call: a frozen record for each that it has passed.

    Received -> Asked -> Prepared -> Decided -> Reserved -> Ready -> Executed

Each stage takes the record before it and returns its own. A call that ends before its decision becomes `Ended`: its
session or proposal is malformed, a check rejects it (pdp/contract/checks.py), or no request can be made of it. A call
that is not allowed stays `Decided`. `Known` takes the place of `Ready` where the outcome is known without the tool.
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

if TYPE_CHECKING:  # only some calls load these
    from pdp.contract.budgets import Spending
    from pdp.ledger.summary import CallFlow
    from pdp.model_calls import ToolCall
    from pdp.obligations.handlers import Duties
    from pdp.patterns.enforcement import HeldCall
    from pdp.stores.actions import Action
    from pdp.stores.approvals import Approval
    from pdp.stores.keys import KeyRecord

_NAME_LENGTH: Final = 128
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class CallIds(TypedDict, total=False):
    """For the record: the model's id of a call, and the plan step that it belongs to."""

    tool_call_id: str | None
    step_name: str | None


class Received(NamedTuple):
    """A call before anything of it is read.

    Attributes:
        to_run: whether its tool runs when it is allowed; False: it is only decided.
        now: when it came in, in seconds since 1970; started: the same on the clock that measures durations.
        compensates: the action that the call undoes.
        staged: the action that it would commit; the call is only decided, so that a person is asked.
        hold: whether a STEP_UP opens an approval though the tool is not to run now.
        transformed: whether the policy has replaced the proposal.
        call: the proposal as the model's API spells it, if it came in such a form.
        proposer: the claims of the token that proposed it to a service; the session may be somebody else's.
    """

    manifest: EffectiveManifest
    to_run: bool
    tool_call_id: str | None
    step_name: str | None
    now: float
    started: float
    compensates: Action | None = None
    staged: Action | None = None
    hold: bool = False
    transformed: bool = False
    call: ToolCall | None = None
    proposer: Mapping[str, Any] = _NOTHING


class Asked(NamedTuple):
    """A call that has been read: who proposes what, bounded and frozen; `request_id` is the session's, or a new one."""

    received: Received
    session: Session
    request_id: str
    proposal: Proposal


class Unread(NamedTuple):
    """A call whose session or proposal cannot be read; `session` and `request_id` are there where only the latter.

    `tool_name` is the proposed one, as far as it could be read.
    """

    received: Received
    session: Session | None = None
    request_id: str | None = None
    proposal: None = None
    tool_name: str = ""


class Prepared(NamedTuple):
    """A checked call with the question that it puts to the policy, `body` being its canonical form.

    `approval` is the one in the store that lets exactly this call through; it stands in `context.approval` as well.
    `flow` is what the ledger says of the call, where labels are in use.
    `spendings` are what it takes of its cumulative limits, whose sums stand in `context.spent`.
    """

    asked: Asked
    checked: Checked
    request: Request
    body: bytes
    approval: Approval | None = None
    flow: CallFlow | None = None
    spendings: Sequence[Spending] = ()

    @property
    def call_digest(self) -> str:
        """The digest that an approval is bound to."""
        digest: str = self.request.context["call_digest"]
        return digest

    @property
    def call_id(self) -> str:
        """The call's name in the ledger: the model's id of it, or else the request's."""
        return self.asked.received.tool_call_id or self.asked.request_id

    @property
    def resource(self) -> tuple[str, str]:
        """Type and id of the resource."""
        return self.request.resource[:2]

    def denied(self, code: str, message: str) -> Decided:
        """Return the call with a DENY, without a policy's decision."""
        return Decided(self, denied(code, message), approval=self.approval)


class Ended(NamedTuple):
    """A call that ends before its decision. A call that a service decides is one as well: the rest of it is there.

    Attributes:
        checked: how far the checks went; None: none has run.
        decision: None when a check rejected or pruned the proposal.
        approval: the one that would have let the call through.
    """

    asked: Asked | Unread
    checked: Checked | Rejected | None = None
    decision: Decision | None = None
    approval: Approval | None = None

    @property
    def allowed(self) -> bool:
        """Whether the tool may run."""
        return self.decision is not None and self.decision.verdict is Verdict.ALLOW

    @property
    def status(self) -> Status:
        """Accepted, rejected, or transformed: replaced or pruned."""
        if self.allowed:
            return Status.TRANSFORMED if self.asked.received.transformed else Status.ACCEPTED
        return Status.TRANSFORMED if self.pruned else Status.REJECTED

    @property
    def rejection(self) -> Rejection | None:
        """Why the call is rejected, by a check or by a verdict; None where it is not."""
        if self.decision is None:
            return self.checked.rejection if isinstance(self.checked, Rejected) else None
        return _rejection(self.decision)

    @property
    def pruned(self) -> bool:
        """Whether an invariant dropped the call: nothing was decided, and nothing runs."""
        return self.decision is None and isinstance(self.checked, Rejected) and self.checked.rejection is None

    @property
    def tool(self) -> CompiledTool | None:
        """The compiled entry; None when the manifest has none of the proposed name."""
        return self.checked.tool if self.checked is not None else None

    @property
    def proposal(self) -> Proposal | None:
        """What would have been decided on."""
        return self.checked.proposal if self.checked is not None else self.asked.proposal

    @property
    def tool_name(self) -> str:
        """The proposed name, at most 128 characters of it, or the empty string."""
        proposal = self.proposal
        name = proposal.tool if proposal else self.asked.tool_name if isinstance(self.asked, Unread) else ""
        return name[:_NAME_LENGTH]

    def denied(self, code: str, message: str) -> Ended:
        """Return the call with a DENY as its decision."""
        return self._replace(decision=denied(code, message))


class Decided(NamedTuple):
    """A call that has been decided.

    Attributes:
        duties: the decision's obligations, with those who fulfil them; None when it has none.
        approval: the one that lets the call through, or that a person has still to grant; of a staging, for the commit.
        action: the action of a call with effects that waits for a person.
    """

    prepared: Prepared
    decision: Decision
    duties: Duties | None = None
    approval: Approval | None = None
    action: Action | None = None

    @property
    def asked(self) -> Asked:
        """The call as it was read."""
        return self.prepared.asked

    @property
    def checked(self) -> Checked:
        """The call as it passed the checks."""
        return self.prepared.checked

    @property
    def allowed(self) -> bool:
        """Whether the tool may run."""
        return self.decision.verdict is Verdict.ALLOW

    @property
    def status(self) -> Status:
        """Accepted, rejected, or transformed: replaced or corrected."""
        if self.decision.verdict is not Verdict.ALLOW:
            return Status.REJECTED
        prepared = self.prepared
        changed = prepared.asked.received.transformed or prepared.checked.trips
        return Status.TRANSFORMED if changed else Status.ACCEPTED

    @property
    def rejection(self) -> Rejection | None:
        """Why the call is rejected; None where it is not."""
        return _rejection(self.decision)

    @property
    def pruned(self) -> bool:
        """Whether an invariant dropped the call: never of one that was decided."""
        return False

    @property
    def tool(self) -> CompiledTool:
        """The compiled entry."""
        return self.prepared.checked.tool

    @property
    def proposal(self) -> Proposal:
        """What was decided on."""
        return self.prepared.checked.proposal

    @property
    def markings(self) -> frozenset[str]:
        """The markings that the result carries by the policy (obligation `mark_result`)."""
        duties = (duty for duty in self.decision.obligations if duty.id == "mark_result")
        return frozenset(name for duty in duties for name in duty.parameters["markings"])

    @property
    def tool_name(self) -> str:
        """The tool's name."""
        return self.prepared.checked.proposal.tool[:_NAME_LENGTH]

    def denied(self, code: str, message: str) -> Decided:
        """Return the call with a DENY as its decision."""
        return self._replace(decision=denied(code, message))


class Replaced(NamedTuple):
    """A call that the policy allows with another proposal, which goes through all stages in its place."""

    decided: Decided
    proposal: Proposal


class CallDeniedError(PdpError):
    """An allowed call may not run after all; `code` and message are those of the DENY."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]


class OverspentError(Exception):
    """Others have spent what a call was allowed to spend: it has to be decided again, with the new sum."""


class Reserved(NamedTuple):
    """An allowed call with what is reserved for it, to be settled or released.

    Attributes:
        held: the rules of pattern and run that the call is held to; None: it has none.
        key: the record of the reserved idempotency key; None when none is reserved.
        budgets: the id of what it has reserved of its budgets; None when it takes nothing of any.
    """

    decided: Decided
    held: HeldCall | None = None
    key: KeyRecord | None = None
    budgets: str | None = None

    @property
    def prepared(self) -> Prepared:
        """The call as it was put to the policy."""
        return self.decided.prepared


class Known(NamedTuple):
    """A call whose outcome is known without its tool, such as that of an earlier call with the same key."""

    reserved: Reserved
    execution: Execution
    action: None = None


class Ready(NamedTuple):
    """A call that has all that its run needs: the function's arguments, and the action that it commits, if any."""

    reserved: Reserved
    arguments: Mapping[str, Any]
    action: Action | None = None


class Executed(NamedTuple):
    """A call whose tool ran, or should have, with what its caller gets of the result; see `Evaluation`."""

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
    """Return a copy of the decided arguments."""
    arguments: dict[str, Any] = orjson.loads(proposal.text)
    return arguments


def not_run(message: str, effect: str = "none") -> Execution:
    """Return the outcome of a call whose tool was not started; `effect`: of an earlier call with the same key."""
    failure = Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"effect": effect})
    return Execution(failure=failure, started=False)


def withheld(execution: Execution, message: str) -> Execution:
    """Return the outcome of a run without its result, which cannot go out: it says what is known of the effect."""
    effect = "done" if execution.failure is None else execution.failure.details.get("effect", "unknown")
    failure = Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"effect": effect})
    return execution._replace(result=None, failure=failure, error=None)
