"""One call on its way through the enforcement point, and what its caller may see of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.audit.file import recordable
from pdp.contract.checks import Checked
from pdp.decision import Verdict
from pdp.obligations.obligations import NO_DUTIES
from pdp.proposal import Outcome, Rejection, RejectionCode, Status, Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.contract.invariants import Trip
    from pdp.contract.json_object import JsonObject
    from pdp.decision import Decision, Obligation, Reason
    from pdp.execution.run import Execution
    from pdp.manifest.effective import EffectiveManifest
    from pdp.obligations.obligation import Delivery
    from pdp.proposal import Proposal
    from pdp.session import Session
    from pdp.stores.action import Action
    from pdp.stores.approval import Approval

_NAME_LENGTH: Final = 128


class Call:
    """What is known of one call so far. The enforcement point fills it, and nobody else sees it."""

    __slots__ = (
        "action",
        "approval",
        "body",
        "checked",
        "compensates",
        "decision",
        "delivery",
        "duties",
        "execution",
        "manifest",
        "now",
        "pins",
        "proposal",
        "pruned",
        "rejection",
        "request_id",
        "runs",
        "session",
        "started",
        "state",
        "step_name",
        "tool_call_id",
        "transformed",
    )

    def __init__(
        self, manifest: EffectiveManifest, tool_call_id: str | None, step_name: str | None, *, runs: bool
    ) -> None:
        self.manifest = manifest
        self.tool_call_id = recordable(tool_call_id)
        self.step_name = recordable(step_name)
        self.runs = runs
        self.now = time.time()
        self.started = time.perf_counter()
        self.session: Session | None = None
        self.request_id: str | None = None
        self.transformed = False
        self.execution: Execution | None = None
        self.delivery: Delivery | None = None
        self.action: Action | None = None
        self.compensates: Action | None = None
        self.state: JsonObject | None = None
        self.pins: Mapping[str, str] = {}
        self.restart()

    def restart(self) -> None:
        """Forget what was found out about one proposal, before another one takes its place."""
        self.checked = Checked()
        self.proposal: Proposal | None = None
        self.body: bytes | None = None
        self.rejection: Rejection | None = None
        self.decision: Decision | None = None
        self.approval: Approval | None = None
        self.pruned = False
        self.duties = NO_DUTIES

    @property
    def allowed(self) -> bool:
        """Whether the tool may run."""
        return self.rejection is None and self.decision is not None and self.decision.verdict is Verdict.ALLOW

    @property
    def accepted(self) -> Status:
        """What becomes of a proposal that may run: transformed when it is not the one that was made."""
        return Status.TRANSFORMED if self.transformed or self.checked.trips else Status.ACCEPTED

    @property
    def tool_name(self) -> str:
        """The proposed name, at most 128 characters of it, or the empty string."""
        return self.proposal.tool[:_NAME_LENGTH] if self.proposal else ""

    @property
    def timeout(self) -> float | None:
        """Seconds that the tool may take, or None."""
        tool = self.checked.tool
        return tool.timeout if tool else None

    def arguments(self) -> dict[str, Any]:
        """Return the decided arguments, as a copy that shares nothing with what anybody else holds."""
        decided: dict[str, Any] = orjson.loads(self.proposal.text) if self.proposal else {}
        return decided

    def reject(self, code: RejectionCode, reason: str) -> None:
        """Reject the proposal before the policy is asked."""
        self.rejection = Rejection(code, reason)

    def deny(self, decision: Decision) -> None:
        """Replace whatever was decided by a DENY."""
        self.rejection = None
        self.pruned = False
        self.decision = decision


class Evaluation:
    """One proposal, from its checks to its result. Immutable."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def __repr__(self) -> str:
        return f"Evaluation({self.verdict or 'rejected'}, tool={self._call.tool_name!r}, codes={self.codes})"

    @property
    def allowed(self) -> bool:
        """Whether this call may run, or ran: the verdict is ALLOW."""
        return self._call.allowed

    @property
    def decision(self) -> Decision | None:
        """The decision; None when the policy was not asked, because a check before it failed."""
        return self._call.decision

    @property
    def verdict(self) -> Verdict | None:
        """The decision's verdict; None when the policy was not asked."""
        return self._call.decision.verdict if self._call.decision else None

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The decision's reasons."""
        return self._call.decision.reasons if self._call.decision else ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The reasons' codes, each once, sorted."""
        return self._call.decision.codes if self._call.decision else ()

    @property
    def obligations(self) -> tuple[Obligation, ...]:
        """The decision's obligations."""
        return self._call.decision.obligations if self._call.decision else ()

    @property
    def request(self) -> dict[str, Any] | None:
        """What the policy was asked, as plain JSON and a copy; None when it was not asked."""
        request: dict[str, Any] | None = orjson.loads(self._call.body) if self._call.body else None
        return request

    @property
    def executed(self) -> bool:
        """Whether the tool was started."""
        return self._call.execution is not None and self._call.execution.started

    @property
    def result(self) -> Any:
        """What the tool returned, as obligations leave it; None when it was not executed, failed, or is withheld."""
        return self._call.execution.result if self._call.execution else None

    @property
    def approval(self) -> Approval | None:
        """The approval that a STEP_UP of `call` opened or found pending, or that let this call through.

        As it was then: a call that ran has used it up since.
        """
        return self._call.approval

    @property
    def markings(self) -> tuple[str, ...]:
        """The markings that the result carries (obligation `mark_result`), sorted."""
        return tuple(sorted(self._call.delivery.markings)) if self._call.delivery else ()

    @property
    def retrieval_snapshot(self) -> str | None:
        """The snapshot that the result was retrieved from (obligation `pin_retrieval_snapshot`)."""
        return self._call.delivery.retrieval_snapshot if self._call.delivery else None

    @property
    def corrections(self) -> tuple[Trip, ...]:
        """The invariants that tripped, in their order, each with what became of the call."""
        return self._call.checked.trips

    @property
    def pruned(self) -> bool:
        """Whether an invariant dropped the call: nothing was decided, and nothing runs."""
        return self._call.pruned

    @property
    def action(self) -> Action | None:
        """The action of a call with effects, as it was left: staged by a STEP_UP, committed or failed by its run."""
        return self._call.action

    @property
    def state(self) -> JsonObject | None:
        """The session's state as the result leaves it; None when the tool declares no state effects, or gave none."""
        return self._call.state

    @property
    def pins(self) -> dict[str, str]:
        """The versions of the pinned sources that the tool could use, by source."""
        return dict(self._call.pins)

    @property
    def error(self) -> BaseException | None:
        """What the tool raised, if it did."""
        return self._call.execution.error if self._call.execution else None

    @property
    def outcome(self) -> Outcome:
        """Accepted, rejected or transformed, and how an execution failed."""
        call = self._call
        if call.allowed:
            return Outcome(
                call.accepted, proposal=call.proposal, failure=call.execution.failure if call.execution else None
            )
        if call.pruned:
            return Outcome(Status.TRANSFORMED)
        rejection = call.rejection
        if rejection is None and call.decision is not None:
            why = "; ".join(f"{reason.code}: {reason.message}" for reason in call.decision.reasons)
            rejection = Rejection(RejectionCode.POLICY_VIOLATION, f"{call.decision.verdict}: {why}")
        return Outcome(Status.REJECTED, rejection=rejection)

    @property
    def trace(self) -> Trace:
        """The registry document's trace fields."""
        call, checked, tool = self._call, self._call.checked, self._call.checked.tool
        return Trace(
            tool_name=call.tool_name or None,
            manifest_version=call.manifest.version,
            in_manifest=None if call.proposal is None else tool is not None,
            schema_valid=checked.schema_valid,
            risk_tier=tool.entry.risk_tier if tool else None,
            pdp_action=tool.entry.pdp_action if tool else None,
            idempotency_key=checked.idempotency_key,
            idempotency_missing=checked.idempotency_missing,
            request_id=call.request_id,
            tool_call_id=call.tool_call_id,
            step_name=call.step_name,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp decide --json` prints; its form is stable."""
        decision = self._call.decision
        trace = self.trace
        return {
            "outcome": self.outcome.as_json(),
            "verdict": self.verdict,
            "reasons": [
                {"code": reason.code, "message": reason.message, "details": _ordered(reason.details)}
                for reason in self.reasons
            ],
            "obligations": [
                {"id": obligation.id, "on": obligation.on, "parameters": _ordered(obligation.parameters)}
                for obligation in self.obligations
            ],
            "trace": {name: getattr(trace, name) for name in Trace.__slots__},
            "decision_id": decision.decision_id if decision else None,
            "bundle_revision": decision.bundle_revision if decision else None,
        }


# The engines list the keys of an object in different orders.
def _ordered(value: dict[str, Any]) -> dict[str, Any]:
    ordered: dict[str, Any] = orjson.loads(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
    return ordered
