"""A Strands agent proposes two wires. The second waits for approval, and runs when the run continues."""

import json
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.models import Model

from pdp import Approvals, Pep
from pdp.adapters.strands import StrandsPlugin

PAYMENTS = Path(__file__).parents[1] / "payments"
OFFICER = json.loads((PAYMENTS / "session.json").read_text())
del OFFICER["idempotency_key"]  # The id is derived from the run and the call.
WIRE = {"beneficiary_id": "bene-acme-441", "source_account": "acc-1", "reference": "INV-1"}


class ScriptedModel(Model):
    """A scripted model: it proposes a wire of the amount that the user names."""

    get_config = update_config = structured_output = lambda *_, **__: None

    async def stream(self, messages: list[Any], *_: Any, **__: Any) -> Any:
        """Answer the last message."""
        said = messages[-1]["content"][0].get("text")
        call = {"name": "initiate_wire", "toolUseId": f"wire-of-{said}"}
        wire = {"toolUse": {"input": json.dumps({**WIRE, "amount": int(said or 0)})}}
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {"toolUse": call} if said else {}}}
        yield {"contentBlockDelta": {"delta": wire if said else {"text": "Done."}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if said else "end_turn"}}


@tool
def initiate_wire(beneficiary_id: str, amount: float, source_account: str, reference: str) -> str:
    """Simulate the payment hub."""
    print(f"  the hub wires {amount:.0f} for {reference} from {source_account} to {beneficiary_id}")
    return "wired"


approvals = Approvals()
with Pep.from_project(PAYMENTS / "pdp.yaml", approvals=approvals) as pep:
    plugin = StrandsPlugin(pep, lambda context: {"officer-123": OFFICER}[context.invocation_state["user"]])
    agent = Agent(ScriptedModel(), tools=[initiate_wire], plugins=[plugin], callback_handler=None)
    for amount in ("20000", "47500"):
        print(f"the agent proposes {amount}")
        result = agent(amount, invocation_state={"user": "officer-123"})
    (held,) = result.interrupts
    print("  the run pauses:", *held.reason["reasons"])
    approvals.grant(held.reason["approval_id"], {"sub": "supervisor-9", "roles": ["payments.approver"]})
    print("supervisor-9 grants it, and the run goes on")
    answer = {"interruptResponse": {"interruptId": held.id, "response": True}}
    agent([answer], invocation_state={"user": "officer-123"})
