"""Supplier payments with CrewAI: a wire runs, and another waits for approval. The model is scripted."""

import json
import os
from pathlib import Path
from typing import Any

# This disables network access and prompts of CrewAI.
os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TESTING": "true"}

from crewai import Agent, Crew, Task
from crewai.llms.base_llm import BaseLLM
from crewai.tools import tool

from pdp import Approvals, Pep
from pdp.adapters.crewai import CrewAiGuard

PROJECT = Path(__file__).parents[1] / "payments/pdp.yaml"
SUPERVISOR = {"sub": "supervisor-9", "roles": ["payments.approver"]}
CLAIMS = {"sub": "officer-123", "emts": {"payments.wire.initiate": True}, "limits": {"wire.auto_approved": 25000}}
FACTS = {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}
OFFICER = {"claims": CLAIMS, "facts": FACTS, "run_id": "july"}  # The run lasts until a held call expires.


class Script(BaseLLM):
    """A scripted model: it proposes the wire of the task, and then reports the result."""

    def call(self, messages: Any, *_: Any, **__: Any) -> Any:
        """Answer the messages."""
        if messages[-1]["role"] == "tool":
            return f"It was: {messages[-1]['content']}"
        amount = float(next(word for word in messages[-1]["content"].split() if word.isdigit()))
        wire = {"beneficiary_id": "bene-acme-441", "source_account": "ops-main", "reference": "INV-8842"}
        function = {"name": "initiate_wire", "arguments": json.dumps({**wire, "amount": amount})}
        return [{"id": f"call-{amount}", "type": "function", "function": function}]

    def supports_function_calling(self) -> bool:
        """Return true, because the model's API calls tools."""
        return True


@tool
def initiate_wire(beneficiary_id: str, amount: float, source_account: str, reference: str) -> str:
    """Initiate wire transfer on payment hub."""
    print(f"  payment hub: {amount:,.0f} from {source_account} to {beneficiary_id}")
    return f"sent {reference}"


with Pep.from_project(PROJECT, approvals=Approvals()) as pep:
    tools = CrewAiGuard(pep, OFFICER).tools([initiate_wire])
    officer = Agent(role="payments", goal="pay", backstory="pays", llm=Script(model="script"), tools=tools)
    crew = Crew(agents=[officer], tasks=[Task(description="Pay {amount}", expected_output="paid", agent=officer)])
    for amount in (20_000, 47_500, 47_500, 47_500):
        print(f"officer-123: pay {amount:,}")
        print(f"  model: {crew.kickoff({'amount': str(amount)}).raw[:59]}")
        for held in (each for each in pep.approvals.list() if each.state == "pending"):
            pep.approvals.grant(held.id, SUPERVISOR)
            print(f"supervisor-9: granted what waits for {', '.join(held.approvers)}")
