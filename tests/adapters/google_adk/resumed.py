"""Resumes a paused run of another process: `python -m ... FOLDER`. FOLDER contains the stored `sessions.db`."""

import asyncio
import json
import sys
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from pdp import Pep
from pdp.adapters.google_adk import AdkPlugin
from pdp.testing.conformance.world import World, run_body
from tests.adapters.google_adk.target import Run, ScriptedLlm


async def main(folder: Path, asked: str) -> None:
    def pay_bill(payee: str, amount: float) -> str:
        return run_body(folder / "ran.jsonl", "pay_bill", {"payee": payee, "amount": amount})

    with Pep.from_project(folder / "pdp.yaml") as pep:
        agent = LlmAgent(name="kit", model=ScriptedLlm(), tools=[pay_bill])
        app = App(name="kit", root_agent=agent, plugins=[AdkPlugin(pep, World.session)])
        async with Runner(app=app, session_service=SqliteSessionService(str(folder / "sessions.db"))) as runner:
            run = Run(runner, "s1")
            run.waits["first"] = (asked, None)
            await run.resume("first")
    sys.stdout.write(json.dumps(run.told))


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
