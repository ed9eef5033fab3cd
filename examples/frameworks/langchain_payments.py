"""Supplier payments with LangChain: a wire runs, and another waits for approval. The model is scripted."""

from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from pdp import Approvals, Pep
from pdp.adapters.langchain import LangChainMiddleware

PROJECT = Path(__file__).parents[1] / "payments/pdp.yaml"
SUPERVISOR = {"sub": "supervisor-9", "roles": ["payments.approver"]}
AMOUNTS = {"INV-1": 20_000, "INV-2": 47_500}


class Script(GenericFakeChatModel):
    """A scripted model: it proposes a wire for each invoice, and then reports the result."""

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        """Accept any tools."""
        return self


def turns() -> Any:
    """Return the turns of the model in order."""
    for invoice, amount in AMOUNTS.items():
        wire = {"beneficiary_id": "bene-acme-441", "amount": amount, "source_account": "ops", "reference": invoice}
        yield AIMessage("", tool_calls=[{"name": "initiate_wire", "args": wire, "id": f"call-{invoice}"}])
        yield AIMessage(f"Invoice {invoice} is paid.")


def initiate_wire(beneficiary_id: str, amount: float, source_account: str, reference: str) -> str:
    """Initiate wire transfer on payment hub."""
    print(f"  payment hub: {amount:,.0f} from {source_account} to {beneficiary_id}")
    return f"sent {reference}"


def session(officer: str) -> dict[str, Any]:
    """Return the session of a run from its `context`. The model cannot change it."""
    claims = {"sub": officer, "emts": {"payments.wire.initiate": True}, "limits": {"wire.auto_approved": 25000}}
    return {"claims": claims, "facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}}


with Pep.from_project(PROJECT, approvals=Approvals()) as pep:
    guard, model, saver = LangChainMiddleware(pep, session), Script(messages=turns()), InMemorySaver()
    agent = create_agent(model, [initiate_wire], middleware=[guard], checkpointer=saver, context_schema=str)
    thread = {"configurable": {"thread_id": "payments"}}
    for invoice in AMOUNTS:
        print(f"officer-123: pay {invoice}")
        state = agent.invoke({"messages": f"pay {invoice}"}, thread, context="officer-123")
        for pause in state.get("__interrupt__", ()):
            print(f"  held: {pause.value['reasons']}, for {pause.value['approvers']}")
            pep.approvals.grant(pause.value["approval_id"], SUPERVISOR)
            print("supervisor-9: granted")
            state = agent.invoke(None, thread, context="officer-123")
        print(f"  model: {state['messages'][-1].text}")
