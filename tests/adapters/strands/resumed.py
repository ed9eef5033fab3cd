"""Resumes a paused run of another process: `python -m ... FOLDER`. FOLDER contains the stored `sessions`."""

import asyncio
import json
import sys
from pathlib import Path

from strands import tool
from strands.session import FileSessionManager

from pdp import Pep
from pdp.adapters.strands import StrandsPlugin
from pdp.testing.conformance.world import World, run_body
from tests.adapters.strands.target import Run, agent_of


async def main(folder: Path, interrupt_id: str) -> None:
    @tool
    def pay_bill(payee: str, amount: float) -> str:
        """Pay."""
        return run_body(folder / "ran.jsonl", "pay_bill", {"payee": payee, "amount": amount})

    with Pep.from_project(folder / "pdp.yaml") as pep:
        manager = FileSessionManager("s1", storage_dir=str(folder / "sessions"))
        run = Run(agent_of(StrandsPlugin(pep, World.session), tools=[pay_bill], session_manager=manager))
        await run.answer({interrupt_id: True})
        sys.stdout.write(json.dumps(run.told))


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
