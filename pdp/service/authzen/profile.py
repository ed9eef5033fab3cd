"""The answer's context: reasons, obligations, and what a STEP_UP needs.

`obligations` follows the AuthZEN Obligations Profile, a draft. A STEP_UP has a member of our own, `needs_approval`: the
draft's type `step-up` asks for stronger authentication, and `access_request` for endpoints that are not offered here.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from pdp.clock import to_seconds
from pdp.decision import Decision, Verdict, denied
from pdp.manifest.model import Tool
from pdp.obligations.handlers import ObligationError

_FULFILLED: Final = frozenset(("log_level", "note"))  # by the service itself: its event says it


def fulfillable(decision: Decision, context: Mapping[str, Any]) -> Decision:
    """Return an ALLOW whose obligations the caller has named in `context.supported_obligations`; another one denied.

    A caller that knows nothing of obligations would go on without fulfilling them.
    """
    if decision.verdict is not Verdict.ALLOW or not decision.obligations:
        return decision
    stated = context.get("supported_obligations")
    supported = {name for name in stated if isinstance(name, str)} if isinstance(stated, list) else set()
    missing = sorted({duty.id for duty in decision.obligations} - supported - _FULFILLED)
    if not missing:
        return decision
    return denied(ObligationError.code, f"{', '.join(missing)}: not among context.supported_obligations")


def answer_context(decision: Decision, entry: Tool | None, url: str) -> dict[str, Any]:
    """Return `context` of an answer; empty for an ALLOW without obligations.

    A STEP_UP says who approves, and where an approval is asked for: by a proposal of the call.
    """
    context: dict[str, Any] = {}
    obligations = [
        {"id": f"{decision.decision_id}-{at}", "type": duty.id, "properties": duty.as_json()["parameters"]}
        for at, duty in enumerate(decision.obligations)
        if duty.id not in _FULFILLED
    ]
    if decision.verdict is not Verdict.ALLOW:
        words = " ".join(reason.text for reason in decision.reasons)
        context = {
            "verdict": decision.verdict,
            "evaluation_id": decision.decision_id,
            "evaluated_at": to_seconds(time.time()),
            "reason_admin": {"403": words},
            "reasons": [reason.as_json() for reason in decision.reasons],
        }
        if decision.verdict is Verdict.STEP_UP and entry is not None:
            needed = {name: getattr(entry.approval, name) for name in ("approvers", "quorum", "expires")}
            context["needs_approval"] = {**needed, "endpoint": f"{url}/v1/proposals"}
    return {**context, "obligations": obligations} if obligations else context
