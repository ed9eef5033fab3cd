"""Supplier payments with Pydantic AI: a wire runs, and another waits for approval. The model is scripted."""

import asyncio
from pathlib import Path

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from pdp import Approvals, Pep
from pdp.adapters.pydantic_ai import PydanticAiCapability

PROJECT = Path(__file__).parents[1] / "payments/pdp.yaml"
SUPERVISOR = {"sub": "supervisor-9", "roles": ["payments.approver"]}
AMOUNTS = {"INV-1": 20_000, "INV-2": 47_500}


def session(officer: str) -> dict:
    """Return the session of a run from its `deps`. The model cannot change it."""
    claims = {"sub": officer, "emts": {"payments.wire.initiate": True}, "limits": {"wire.auto_approved": 25000}}
    return {"claims": claims, "facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}}


def initiate_wire(beneficiary_id: str, amount: float, source_account: str, reference: str) -> str:
    """Initiate wire transfer on payment hub."""
    print(f"  payment hub: {amount:,.0f} from {source_account} to {beneficiary_id}")
    return f"Invoice {reference} is paid."


def script(messages: list, _: object) -> ModelResponse:
    """Propose a wire for the invoice, and then repeat the tool's result."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse([TextPart(last.content)])
    wire = {"beneficiary_id": "bene-acme-441", "amount": AMOUNTS[last.content], "source_account": "ops-main"}
    return ModelResponse([ToolCallPart("initiate_wire", {**wire, "reference": last.content})])


async def main() -> None:
    """Pay two invoices."""
    with Pep.from_project(PROJECT, approvals=Approvals()) as pep:
        guard, output = PydanticAiCapability(pep, session), [str, DeferredToolRequests]
        model = FunctionModel(script)
        agent = Agent(model, name="payments", tools=[initiate_wire], capabilities=[guard], output_type=output)
        for invoice in AMOUNTS:
            print(f"officer-123: pay {invoice}")
            run = await agent.run(invoice, deps="officer-123")
            while isinstance(run.output, DeferredToolRequests):
                for pending in run.output.metadata.values():
                    print(f"  held: {pending['reasons']}, for {pending['approvers']}")
                    pep.approvals.grant(pending["approval_id"], SUPERVISOR)
                print("supervisor-9: granted")
                asked = DeferredToolResults(approvals={call.tool_call_id: True for call in run.output.approvals})
                history = run.all_messages()
                run = await agent.run(message_history=history, deferred_tool_results=asked, deps="officer-123")
            print(f"  model: {run.output}")


asyncio.run(main())
