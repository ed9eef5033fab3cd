"""Supplier payments with the Agent Framework: a wire runs, and another waits for approval. The model is scripted."""

import asyncio
from pathlib import Path
from typing import Any

import agent_framework as maf

from pdp import Approvals, Pep
from pdp.adapters.agent_framework import agent_framework_middleware

PROJECT = Path(__file__).parents[1] / "payments/pdp.yaml"
SUPERVISOR = {"sub": "supervisor-9", "roles": ["payments.approver"]}


class Script(maf.FunctionInvocationLayer, maf.ChatMiddlewareLayer, maf.BaseChatClient):
    """A scripted model: it proposes the wire that the user asks for, and then reports the result."""

    async def _inner_get_response(self, *, messages: Any, **_: Any) -> Any:
        said = messages[-1].contents[-1]
        if said.type == "function_result":
            return maf.ChatResponse(messages=[maf.Message("assistant", [f"It was {said.result}."])])
        wire = {"beneficiary_id": "bene-acme-441", "source_account": "ops-main", "reference": "INV-8842"}
        arguments = {**wire, "amount": float(said.text)}
        call = maf.Content.from_function_call(f"call-{said.text}", "initiate_wire", arguments=arguments)
        return maf.ChatResponse(messages=[maf.Message("assistant", [call])])


def initiate_wire(beneficiary_id: str, amount: float, source_account: str, reference: str) -> str:
    """Initiate wire transfer on payment hub."""
    print(f"  payment hub: {amount:,.0f} from {source_account} to {beneficiary_id}")
    return f"sent {reference}"


def session(run: maf.AgentContext) -> dict[str, Any]:
    """Return the session of a run from the application's values. The model cannot change them."""
    claims = {"emts": {"payments.wire.initiate": True}, "limits": {"wire.auto_approved": 25000}}
    facts = {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}
    return {"claims": {**claims, "sub": run.function_invocation_kwargs["officer"]}, "facts": facts}


async def main() -> None:
    """Pay two invoices."""
    with Pep.from_project(PROJECT, approvals=Approvals()) as pep:
        agent = maf.Agent(Script(), tools=[initiate_wire], middleware=agent_framework_middleware(pep, session))
        run = {"session": maf.AgentSession(), "function_invocation_kwargs": {"officer": "officer-123"}}
        for amount in (20_000, 47_500):
            print(f"officer-123: pay {amount:,}")
            response = await agent.run(str(amount), **run)
            for request in response.user_input_requests:
                pending = request.additional_properties["approval"]
                print(f"  held: {pending['reasons']}, for {pending['approvers']}")
                pep.approvals.grant(pending["approval_id"], SUPERVISOR)
                print("supervisor-9: granted")
                response = await agent.run(maf.Message("user", [request.to_function_approval_response(True)]), **run)
            print(f"  model: {response.text}")


asyncio.run(main())
