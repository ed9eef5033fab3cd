"""A call that a pattern or an agent's run has rules for, held to them; what the rules have to know of it.

Other calls do not load this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdp.decision import new_id
from pdp.flow.drive import Work
from pdp.flow.stages import arguments_of, caller_of, result_markings
from pdp.json import JsonValueError, canonical
from pdp.patterns.enforcement import HeldCall
from pdp.patterns.rule import CallFacts

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from pdp.flow.drive import Step
    from pdp.flow.parts import Stores
    from pdp.flow.stages import Decided, Prepared


def hold(decided: Decided, prepared: Prepared, stores: Stores) -> Generator[Step, Any, HeldCall]:
    """Open the run that the call belongs to, and hold the call to the rules of its pattern.

    Raises:
        StateError: the run cannot be opened.
    """
    run = yield Work(lambda: stores.run_of(prepared.asked.session), blocking=stores.reads_sources)
    arguments = arguments_of(prepared.checked.proposal)
    return HeldCall(prepared.checked.tool.entry, arguments, run, _facts(decided, prepared), stores.actions)


def _facts(decided: Decided, prepared: Prepared) -> CallFacts:
    """What the call's pattern has to know: of session and decision, and nothing of the model."""
    return CallFacts(
        caller=caller_of(prepared.asked.session),
        idempotency_key=prepared.checked.idempotency_key,
        decision_id=decided.decision.decision_id if decided.decision else "",
        markings=result_markings(decided),
        clearances=_clearances(prepared.asked.session.claims),
        resource=prepared.resource,
        approved=prepared.approval is not None,
        now=prepared.asked.received.now,
        inputs=_inputs(prepared),
    )


def _clearances(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return what subject and acting agents are all cleared for. An agent that states no clearances narrows nothing.

    The policy has checked the shape of the claims: it allowed the call.
    """
    held = frozenset(claims.get("clearances") or ())
    agent = claims.get("act")
    while isinstance(agent, dict):
        if "clearances" in agent:
            held &= frozenset(agent["clearances"] or ())
        agent = agent.get("act")
    return held


def _inputs(prepared: Prepared) -> bytes:
    tool, session = prepared.checked.tool, prepared.asked.session
    if tool.entry.pattern is None:
        return b""
    state = {key: session.state[key] for key in tool.reads if key in session.state}
    try:
        return canonical({"config": dict(prepared.checked.config), "state": state})
    except JsonValueError:
        # A normalizer may make any object of a config: what cannot be compared is like nothing else.
        return new_id().encode()
