"""A new user adds two lines to a LangGraph app. Then a call is held, granted on the command line, and run once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import copy

import pytest

from tests.support import ROOT

APP = '''\
"""Pays an invoice; started again, it goes on where it was."""

import sqlite3

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver


class Script(GenericFakeChatModel):
    def bind_tools(self, *_, **__):
        return self


def initiate_wire(beneficiary_id: str, amount: float, source_account: str, reference: str) -> str:
    """Initiate wire transfer on payment hub."""
    with open("hub.txt", "a") as hub:
        print(reference, amount, file=hub)
    return f"sent {reference}"


wire = {"beneficiary_id": "bene-acme-441", "amount": 47500, "source_account": "ops", "reference": "INV-1"}
proposal = AIMessage("", tool_calls=[{"name": "initiate_wire", "args": wire, "id": "call-1"}])
middleware = []
# two lines
with SqliteSaver.from_conn_string("threads.db") as saver:
    thread = {"configurable": {"thread_id": "1"}}
    waits = saver.get_tuple(thread) is not None
    model = Script(messages=iter([*([] if waits else [proposal]), AIMessage("INV-1 is paid")]))
    agent = create_agent(model, [initiate_wire], middleware=middleware, checkpointer=saver)
    state = agent.invoke(None if waits else {"messages": "pay INV-1"}, thread)
    for pause in state.get("__interrupt__", ()):
        print("waits for", *pause.value["approvers"])
    print(state["messages"][-1].text)
'''
LINES = """\
from pdp import Pep; from pdp.adapters.langchain import LangChainMiddleware; pep = Pep.from_project("pdp.yaml")
middleware = [LangChainMiddleware(pep, {"claims": {"sub": "officer-123", "emts": {"payments.wire.initiate": True}}})]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    for name in ("manifest.json", "governance.yaml"):
        copy(ROOT / "examples/payments" / name, tmp_path)
    (tmp_path / "pdp.yaml").write_text(
        "manifest: manifest.json\ngovernance: governance.yaml\nstore: sqlite:///pdp.db\n"
    )
    (tmp_path / "boss.yaml").write_text("claims: {sub: supervisor-9, roles: [payments.approver]}\n")
    return tmp_path


def command(folder: Path, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
def test_held_call_runs_once_after_a_grant_on_the_command_line(folder: Path) -> None:
    app = folder / "app.py"
    app.write_text(APP)
    assert command(folder, "app.py") == "INV-1 is paid\n"
    (folder / "threads.db").unlink()
    (folder / "hub.txt").unlink()

    app.write_text(APP.replace("# two lines\n", LINES))
    assert command(folder, "app.py") == "waits for payments.approver\n\n"
    assert command(folder, "app.py") == "waits for payments.approver\n\n"
    (waiting,) = json.loads(command(folder, "-m", "pdp", "approvals", "list", "--json"))
    assert not (folder / "hub.txt").exists()

    command(folder, "-m", "pdp", "approvals", "grant", waiting["id"], "--session", "boss.yaml")
    said = [command(folder, "app.py"), command(folder, "app.py")]

    assert said == ["INV-1 is paid\n"] * 2
    assert (folder / "hub.txt").read_text() == "INV-1 47500.0\n"
