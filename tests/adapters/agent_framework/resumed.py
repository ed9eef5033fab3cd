"""Resumes a paused run of another process: `python -m ... FOLDER`. FOLDER contains the saved `state.json`."""

import asyncio
import json
import sys
from pathlib import Path

from agent_framework import Agent, AgentSession, Content, Message

from pdp import Pep
from pdp.adapters.agent_framework import agent_framework_middleware
from pdp.testing.conformance.world import World, run_body
from tests.adapters.agent_framework.target import ScriptedModel


async def main(folder: Path) -> None:
    def pay_bill(payee: str, amount: float) -> str:
        return run_body(folder / "ran.jsonl", "pay_bill", {"payee": payee, "amount": amount})

    state = json.loads((folder / "state.json").read_text())
    session, request = AgentSession.from_dict(state["session"]), Content.from_dict(state["request"])
    model = ScriptedModel()
    with Pep.from_project(folder / "pdp.yaml") as pep:
        agent = Agent(model, tools=[pay_bill], middleware=agent_framework_middleware(pep, World.session))
        await agent.run(Message("user", [request.to_function_approval_response(True)]), session=session)
    sys.stdout.write(model.results()["first"])


asyncio.run(main(Path(sys.argv[1])))
