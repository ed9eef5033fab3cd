"""Supplier payments with LlamaIndex: a wire runs, and another waits for approval. The model is scripted."""

import asyncio
from pathlib import Path
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent

from pdp import Approvals, Pep
from pdp.adapters.llama_index import guarded_llama_tools

PROJECT = Path(__file__).parents[1] / "payments/pdp.yaml"
SUPERVISOR = {"sub": "supervisor-9", "roles": ["payments.approver"]}


def script(messages: list[ChatMessage], **_: Any) -> ChatMessage:
    """Answer as a scripted model: propose the wire that the user asks for, and then report the result."""
    said = messages[-1].content or ""
    if messages[-1].role == "tool":
        return ChatMessage(f"It was {said}.", role="assistant")
    wire = {"beneficiary_id": "bene-acme-441", "amount": float(said), "source_account": "ops", "reference": "INV-1"}
    call = ToolCallBlock(tool_call_id=f"call-{said}", tool_name="initiate_wire", tool_kwargs=wire)
    return ChatMessage([call], role="assistant")


def initiate_wire(beneficiary_id: str, amount: float, source_account: str, reference: str) -> str:
    """Initiate wire transfer on payment hub."""
    print(f"  payment hub: {amount:,.0f} from {source_account} to {beneficiary_id}")
    return f"sent {reference}"


def session(state: dict[str, Any]) -> dict[str, Any]:
    """Return the session of a run from its state, which the application sets. The model cannot change it."""
    claims = {"emts": {"payments.wire.initiate": True}, "limits": {"wire.auto_approved": 25000}}
    facts = {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}
    return {"claims": {**claims, "sub": state["officer"]}, "facts": facts}


async def main() -> None:
    """Pay two invoices."""
    with Pep.from_project(PROJECT, approvals=Approvals()) as pep:
        tools = guarded_llama_tools([initiate_wire], pep, session, agent="payments")
        agent = FunctionAgent(name="payments", tools=tools, llm=MockFunctionCallingLLM(response_generator=script))
        await (case := Context(agent)).store.set("officer", "officer-123")
        for amount in (20_000, 47_500):
            print(f"officer-123: pay {amount:,}")
            run = agent.run(str(amount), ctx=case)
            async for event in run.stream_events():
                if isinstance(event, InputRequiredEvent):
                    print(f"  held: {event.reasons}, for {event.approvers}\nsupervisor-9: granted")
                    pep.approvals.grant(event.approval_id, SUPERVISOR)
                    run.ctx.send_event(HumanResponseEvent(approval_id=event.approval_id, approved=True))
            print(f"  model: {await run}")


asyncio.run(main())
