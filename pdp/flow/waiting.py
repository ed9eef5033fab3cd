"""Calls that the policy allows only with an approval: a lasting grant may cover the call, or an approval is opened."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

import orjson

from pdp.decision import Decision, Verdict
from pdp.flow.decide import conclude
from pdp.flow.drive import Question, Step, Work
from pdp.flow.parts import Parts
from pdp.flow.reserve import open_approval
from pdp.flow.stages import Decided, Prepared, Replaced
from pdp.json import canonical
from pdp.request import bounded
from pdp.stores.approvals import lasting_offer


def held(decided: Decided, parts: Parts) -> Generator[Step, Any, Decided | Replaced]:
    """Decide a STEP_UP again with the lasting grant that covers the call. Without such a grant, open an approval.

    The grant counts only if the policy then allows the call. Raise `AuditError` or `StoreError` on failure.
    """
    prepared = yield from _with_grant(decided.prepared, parts)
    if prepared is not None:
        decision: Decision = yield Question(prepared.body)
        if decision.verdict is not Verdict.STEP_UP:
            return conclude(prepared, decision, parts)
    received = decided.asked.received
    return (yield from open_approval(decided, parts)) if received.to_run or received.hold else decided


def _with_grant(prepared: Prepared, parts: Parts) -> Generator[Step, Any, Prepared | None]:
    entry, approvals, context = prepared.checked.tool.entry, parts.approvals, prepared.request.context
    if approvals is None or entry.approval.lasting is None or prepared.approval is not None:
        return None
    offer = lasting_offer(orjson.loads(prepared.body), entry)
    if offer is None:
        return None
    asked = prepared.asked
    find = partial(
        approvals.lasting.covering,
        offer,
        context["run_id"],
        context["time"],
        asked.session.claims,
        asked.received.proposer,
    )
    grant = yield Work(find, approvals.blocking)
    if grant is None:
        return None
    request = prepared.request._replace(context={**context, "grant": grant.as_context(context["time"])})
    return prepared._replace(request=request, body=bounded(canonical(request.as_json())), grant=grant)
