"""An agent of Google's ADK proposes two wires. The second waits for approval, and runs when the run continues."""

import asyncio
import json
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from pdp import Approvals, Pep
from pdp.adapters.google_adk import AdkPlugin

PAYMENTS = Path(__file__).parents[1] / "payments"
# The id is derived from session and call.
OFFICER = json.loads((PAYMENTS / "session.json").read_text()) | {"idempotency_key": None}
WIRE = {"beneficiary_id": "bene-acme-441", "source_account": "acc-1", "reference": "INV-1"}


class ScriptedModel(BaseLlm):  # The model proposes a wire of the amount that the user names.
    async def generate_content_async(self, llm_request: Any, **_: Any) -> Any:
        said = llm_request.contents[-1].parts[0].text
        call = {"name": "initiate_wire", "args": {**WIRE, "amount": int(said or 0)}}
        yield LlmResponse(content=types.ModelContent(types.Part(function_call=call) if said else "Done."))


def initiate_wire(beneficiary_id: str, amount: float, source_account: str, reference: str) -> str:
    print(f"  the hub wires {amount} for {reference} from {source_account} to {beneficiary_id}")
    return "wired"


async def main() -> None:
    with Pep.from_project(PAYMENTS / "pdp.yaml", approvals=Approvals()) as pep:
        plugin = AdkPlugin(pep, lambda context: {"officer-123": OFFICER}[context.user_id])
        agent = LlmAgent(name="payer", model=ScriptedModel(model="scripted"), tools=[initiate_wire])
        runner = InMemoryRunner(app=App(name="payments", root_agent=agent, plugins=[plugin]))
        runner.auto_create_session = True

        async def say(**part: Any) -> Any:
            held, message = None, types.UserContent(types.Part(**part))
            async for event in runner.run_async(user_id="officer-123", session_id="s1", new_message=message):
                held = next((call for call in event.get_function_calls() if "confirmation" in call.name), held)
                for answer in event.get_function_responses():
                    print("  the agent is told:", str(answer.response).partition(": The amount")[0])
            return held

        for amount in ("20000", "47500"):
            print(f"the agent proposes {amount}")
            held = await say(text=amount)
        pending = held.args["toolConfirmation"]["payload"]
        pep.approvals.grant(pending["approval_id"], {"sub": "supervisor-9", "roles": ["payments.approver"]})
        print("supervisor-9 grants it, and the run goes on")
        await say(function_response={"id": held.id, "name": held.name, "response": {"confirmed": True}})


asyncio.run(main())
