"""Parse and check a proposal, build its request, and ask the policy. Any failure is a DENY with a stable code."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pdp.audit.chain import recordable
from pdp.contract.checks import Checked, Rejected, rejection_of
from pdp.contract.compiled import CompiledManifest
from pdp.contract.request import MappingError, build_request, check
from pdp.decision import Decision, Verdict, new_id
from pdp.engine.protocol import REQUEST_INVALID
from pdp.errors import AuditError, StateError, UsageError
from pdp.flow.drive import Question, Step, Work
from pdp.flow.parts import Parts, Stores, Tools
from pdp.flow.record import log_decision, record_decision
from pdp.flow.stages import Asked, Decided, Ended, Prepared, Received, Replaced, Unread
from pdp.json import JsonValueError, canonical
from pdp.manifest.expressions.path import ExpressionError
from pdp.proposal import Proposal, ProposalRejectedError, Rejection, RejectionCode
from pdp.request import bounded
from pdp.session import Session

if TYPE_CHECKING:  # Only some calls need these modules at run time.
    from pdp.contract.budgets import Spending
    from pdp.ledger.summary import CallFlow

_log = logging.getLogger("pdp.pep")

INTERNAL_ERROR: Final = "pep.internal_error"


def decide(received: Received, proposal: Any, session: Any, parts: Parts) -> Generator[Step, Any, Decided | Ended]:
    """Decide and record a proposal, and the proposal that the policy puts in its place. A second change is denied."""
    decided = yield from _through_stages(received, proposal, session, parts)
    if isinstance(decided, Replaced):
        first, other = decided
        recorded = yield from record_decision(first, parts.audit, superseded=True)
        if recorded.allowed:
            asked = first.asked
            again = asked.received._replace(transformed=True)
            # A second replacement raises `ObligationError`, which becomes a DENY.
            second = yield from _through_stages(again, other, asked.session, parts, asked.request_id)
            decided = second.decided if isinstance(second, Replaced) else second
        else:
            reason = "the decision on the original proposal could not be recorded"
            decided = first.denied(AuditError.code, reason)
    decided = yield from record_decision(decided, parts.audit)
    if isinstance(decided, Decided) and decided.duties is not None and decided.duties.log_level is not None:
        log_decision(decided, decided.duties.log_level)
    return decided


def _through_stages(
    received: Received, proposal: Any, session: Any, parts: Parts, request_id: str | None = None
) -> Generator[Step, Any, Decided | Ended | Replaced]:
    stage: Ended | Prepared | Decided = Ended(Unread(received))
    try:
        asked = read(received, proposal, session, parts.tools, request_id)
        if isinstance(asked, Ended):
            return asked
        stage = Ended(asked)
        checked = check_call(asked, parts.manifest)
        if isinstance(checked, Ended):
            return checked
        stage = Ended(asked, checked)
        prepared = yield from prepare(asked, checked, parts)
        if isinstance(prepared, Ended):
            return prepared
        stage = prepared
        decision: Decision = yield Question(prepared.body)
        decided = conclude(prepared, decision, parts)
        if isinstance(decided, Decided):
            stage = decided
            if decision.verdict is Verdict.STEP_UP and parts.approvals is not None:
                decided = yield from _held(decided, parts)
    except Exception as error:  # noqa: BLE001 - any failure on the way is a DENY
        return stage.denied(*failed(error))
    except BaseException:
        # The caller was cancelled or interrupted before the decision, but the attempt is still recorded.
        yield from record_decision(stage.denied(INTERNAL_ERROR, "the caller was cancelled or interrupted"), parts.audit)
        raise
    return decided


def _held(decided: Decided, parts: Parts) -> Generator[Step, Any, Decided | Replaced]:
    """Decide a STEP_UP again with the lasting grant that covers the call. Without such a grant, open an approval."""
    from pdp.flow.reserve import open_approval, with_grant  # noqa: PLC0415 - only if an approval is needed

    prepared = yield from with_grant(decided.prepared, parts)
    if prepared is not None:
        decision: Decision = yield Question(prepared.body)
        # Only the policy decides whether the grant clears the STEP_UP.
        if decision.verdict is not Verdict.STEP_UP:
            return conclude(prepared, decision, parts)
    received = decided.asked.received
    return (yield from open_approval(decided, parts)) if received.to_run or received.hold else decided


def read(received: Received, proposal: Any, session: Any, tools: Tools, request_id: str | None = None) -> Asked | Ended:
    """Parse the session and the proposal, and add the tool's default arguments. Return `Ended` if that fails."""
    proposed: Proposal | ProposalRejectedError
    try:
        proposed = tools.filled(Proposal.read(proposal))
    except ProposalRejectedError as error:
        proposed = error
    if proposed.call is not None:
        call_id = received.tool_call_id or recordable(proposed.call.id)
        received = received._replace(call=proposed.call, tool_call_id=call_id)
    name = proposed.tool if isinstance(proposed, Proposal) else recordable(proposed.call and proposed.call.tool) or ""
    try:
        own_session = Session.read(session)
    except (UsageError, JsonValueError) as error:
        return Ended(Unread(received, tool_name=name)).denied(REQUEST_INVALID, str(error))
    request_id = request_id or own_session.request_id or new_id()
    if isinstance(proposed, Proposal):
        if own_session.plan and received.step_name is None:
            from pdp.contract.plan import planned_step  # noqa: PLC0415 - only for calls of a plan

            received = received._replace(step_name=recordable(planned_step(proposed, own_session.plan)))
        return Asked(received, own_session, request_id, proposed)
    rejected = Rejected("proposal", None, Rejection(proposed.rejection, proposed.message))
    return Ended(Unread(received, own_session, request_id, tool_name=name), rejected)


def check_call(asked: Asked, manifest: CompiledManifest) -> Checked | Ended:
    """Check the proposal. Return `Ended` if a check rejects the proposal or the tool's config cannot be resolved."""
    try:
        checked = check(asked.proposal, asked.session, manifest)
    except UsageError as error:
        tool = manifest.tool(asked.proposal.tool)
        unresolved = Rejected("config", asked.proposal, None, tool, schema_valid=True)
        return Ended(asked, unresolved).denied(REQUEST_INVALID, str(error))
    return Ended(asked, checked) if isinstance(checked, Rejected) else checked


def prepare(asked: Asked, checked: Checked, parts: Parts) -> Generator[Step, Any, Prepared | Ended]:
    """Build the request to the policy, including the stored approval for exactly this call, if there is one.

    Return `Ended` if a mapping of the manifest fails, the claims have no subject, or the request is too large.
    """
    approval, flow = None, None
    spendings: Sequence[Spending] = ()
    try:
        if parts.manifest.manifest.tracks_flow:
            flow = yield from call_flow(asked, checked, parts.stores)
        known = None if flow is None else (flow.digested, flow.context)
        request = build_request(checked, asked.session, request_id=asked.request_id, now=asked.received.now, flow=known)
        if parts.approvals is not None:
            from pdp.flow.reserve import find_approval  # noqa: PLC0415 - only if approvals are configured

            approval, request = yield from find_approval(asked, checked, request, parts.approvals, parts.stores)
        if checked.tool.spends:
            from pdp.flow.reserve import read_spent  # noqa: PLC0415 - only for tools with cumulative limits

            spendings, request = yield from read_spent(asked, checked, request, parts.stores)
        # `Request.canonical` would check every value again. All values were checked before: claims and facts with the
        # session, arguments with the proposal, computed values by `Expression.evaluate`, and the names in an approval
        # when it was granted. The ledger's values are built here.
        body = bounded(canonical(request.as_json()))
        return Prepared(asked, checked, request, body, approval, flow, spendings)
    except (MappingError, ExpressionError) as error:
        stopped = rejection_of("request", checked, Rejection(RejectionCode.INVALID_PAYLOAD, error.message))
        return Ended(asked, stopped)
    except (UsageError, JsonValueError) as error:
        return Ended(asked, checked, approval=approval).denied(REQUEST_INVALID, str(error))


def call_flow(asked: Asked, checked: Checked, stores: Stores) -> Generator[Step, Any, CallFlow | None]:
    """Return the labels of the call's run; None without a `run_id`. Raise `StateError` if the run cannot be read."""
    session, ledger = asked.session, stores.ledger
    if not session.run_id:
        return None
    work = partial(checked.tool.tracker.call_flow, checked.proposal.arguments, session, ledger, asked.received.now)
    flow: CallFlow = yield Work(work, blocking=ledger.blocking)
    return flow


def conclude(prepared: Prepared, decision: Decision, parts: Parts) -> Decided | Replaced:
    """Find the handlers of the decision's obligations. Deny a call that an outdated policy release has decided."""
    answer = decision
    if decision.verdict is not Verdict.ALLOW:
        from pdp.flow.reasons import explained  # noqa: PLC0415 - only if a call is not allowed

        decision = explained(decision, prepared.asked.session.claims, prepared.request, parts.ignored_claims)
    decided = Decided(prepared, decision, approval=prepared.approval, answer=answer)
    if parts.newest.is_stale(decision):
        return decided.denied(
            "bundle.stale", f"release {decision.release} is older than a release that decided an earlier call"
        )
    if not decision.obligations:
        return decided
    from pdp.obligations.handlers import ObligationError, transformed  # noqa: PLC0415 - only for decisions with obligations

    try:
        duties = parts.obligations().duties(decision, transformed=prepared.asked.received.transformed)
        decided = decided._replace(duties=duties)
        if duties.transform is not None:
            return Replaced(decided, transformed(prepared.checked.proposal, duties.transform))
    except ObligationError as error:
        return decided.denied(error.code, error.message)
    return decided


def failed(error: Exception) -> tuple[str, str]:
    """Log an unexpected error, and return the code and message with which the call is denied."""
    from pdp.contract.sensitive import place_of  # noqa: PLC0415 - only if a step fails

    if not isinstance(error, StateError):
        _log.error("the decision failed, so the call is denied: %s", place_of(error))
        return INTERNAL_ERROR, "the enforcement point failed; see its log"
    if error.code != "flow.expired":
        _log.error("the decision failed, so the call is denied: %s", place_of(error))
    return error.code, str(error)
