"""Resumes a paused run of another process: `python -m ... FOLDER`. FOLDER contains the saved `state.json`."""

import asyncio
import json
import sys
from pathlib import Path

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.workflow import Context, HumanResponseEvent

from pdp import Pep
from pdp.adapters.llama_index import guarded_llama_tools
from pdp.testing.conformance.world import World, run_body
from tests.adapters.llama_index.target import Script


async def main(folder: Path) -> None:
    def pay_bill(payee: str, amount: float) -> str:
        return run_body(folder / "ran.jsonl", "pay_bill", {"payee": payee, "amount": amount})

    state, script = json.loads((folder / "state.json").read_text()), Script()
    with Pep.from_project(folder / "pdp.yaml") as pep:
        agent = FunctionAgent(tools=guarded_llama_tools([pay_bill], pep, World.session), llm=script.model())
        context = Context.from_dict(agent, state["context"])
        await context.store.set(
            "memory", ChatMemoryBuffer.from_defaults(llm=agent.llm)
        )  # LlamaIndex does not save the memory with the context.
        handler = agent.run(ctx=context)
        handler.ctx.send_event(HumanResponseEvent(approval_id=state["approval"], approved=True))
        await handler
    sys.stdout.write(script.told["first"])


asyncio.run(main(Path(sys.argv[1])))
