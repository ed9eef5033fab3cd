"""Supplier payments with the OpenAI Agents SDK: a wire runs, and another waits for approval. The model is scripted."""

import asyncio
from pathlib import Path

from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from pdp import Approvals, Pep
from pdp.adapters.openai_agents import guarded_openai_agent

PROJECT = Path(__file__).parents[1] / "payments/pdp.yaml"
SUPERVISOR = {"sub": "supervisor-9", "roles": ["payments.approver"]}


@function_tool
def initiate_wire(beneficiary_id: str, amount: float, source_account: str, reference: str) -> str:
    """Initiate wire transfer on payment hub."""
    print(f"  payment hub: {amount:,.0f} from {source_account} to {beneficiary_id}")
    return f"sent {reference}"


def session(officer: dict) -> dict:
    """Return the session of a run from the application's context. The model cannot change it."""
    claims = {"sub": officer["id"], "emts": {"payments.wire.initiate": True}, "limits": {"wire.auto_approved": 25000}}
    facts = {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}
    return {"claims": claims, "facts": facts, "run_id": officer["case"]}


def wire(amount: int, number: str) -> list:
    """Return the model's turns: the proposed wire, and the final text."""
    details = {"beneficiary_id": "bene-acme-441", "source_account": "ops-main", "reference": number}
    call = function_call("initiate_wire", {**details, "amount": amount}, call_id=f"call-{number}")
    return [[call], [assistant_message(f"Invoice {number} is paid.")]]


async def main() -> None:
    """Pay two invoices."""
    with Pep.from_project(PROJECT, approvals=Approvals()) as pep:
        model = ScriptedModel([*wire(20_000, "INV-1"), *wire(47_500, "INV-2")])
        agent = guarded_openai_agent(Agent(name="payments", model=model, tools=[initiate_wire]), pep, session)
        officer, config = {"id": "officer-123", "case": "case-17"}, RunConfig(tracing_disabled=True)
        for invoice in ("INV-1", "INV-2"):
            print(f"officer-123: pay {invoice}")
            result = await Runner.run(agent, f"pay {invoice}", context=officer, run_config=config)
            while result.interruptions:
                item, state = result.interruptions[0], result.to_state()
                pending = await item.agent.pending(item, officer)
                print(f"  held: {pending['reasons']}, for {pending['approvers']}")
                pep.approvals.grant(pending["approval_id"], SUPERVISOR)
                print("supervisor-9: granted")
                state.approve(item)
                result = await Runner.run(agent, state, run_config=config)
            print(f"  model: {result.final_output}")


asyncio.run(main())
