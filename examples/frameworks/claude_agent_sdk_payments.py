"""Supplier payments with the Claude Agent SDK: one wire runs, one waits for a second person. The model is a script."""

import asyncio
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ToolResultBlock, create_sdk_mcp_server, tool

from pdp import Approvals, Pep
from pdp.adapters.claude_agent_sdk import guarded_claude_options

PAYMENTS = Path(__file__).parents[1] / "payments"
SUPERVISOR = {"sub": "supervisor-9", "roles": ["payments.approver"]}
CLAIMS = {"sub": "officer-123", "emts": {"payments.wire.initiate": True}, "limits": {"wire.auto_approved": 25000}}
OFFICER = {"claims": CLAIMS, "facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}}
SCHEMA = next(
    each for each in json.loads((PAYMENTS / "manifest.json").read_text())["tools"] if each["name"] == "initiate_wire"
)["schema"]


class Script(BaseHTTPRequestHandler):
    """Stand in for the model's API: propose the wire that the user asks for, and be told what came of it."""

    asked: float | None = None

    def do_POST(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers["Content-Length"]))
        asked, Script.asked = Script.asked, None
        wire = {"beneficiary_id": "bene-acme-441", "source_account": "ops-main", "reference": "INV-8842"}
        given = json.dumps({**wire, "amount": asked})
        block: dict[str, Any] = {"type": "text", "text": ""}
        delta, stop = {"type": "text_delta", "text": "done"}, "end_turn"
        if asked:
            block = {"type": "tool_use", "id": f"toolu_{id(self)}", "name": "mcp__hub__initiate_wire", "input": {}}
            delta, stop = {"type": "input_json_delta", "partial_json": given}, "tool_use"
        usage = {"input_tokens": 1, "output_tokens": 1}
        message: dict[str, Any] = {
            "id": "msg",
            "type": "message",
            "role": "assistant",
            "model": "script",
            "content": [],
        }
        message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in (
            {
                "type": "message_start",
                "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage},
            },
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        ):
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@tool("initiate_wire", "Initiate wire transfer on payment hub.", SCHEMA)
async def initiate_wire(wire: dict[str, Any]) -> dict[str, Any]:
    """Take a wire."""
    print(f"  payment hub: {wire['amount']:,.0f} from {wire['source_account']} to {wire['beneficiary_id']}")
    return {"content": [{"type": "text", "text": f"sent {wire['reference']}"}]}


async def main(url: str, home: str) -> None:
    """Pay two invoices."""
    environment = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "HOME": home}
    environment["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] = "1"
    options = ClaudeAgentOptions(
        mcp_servers={"hub": create_sdk_mcp_server("hub", tools=[initiate_wire])},
        allowed_tools=["mcp__hub__initiate_wire"], cwd=home, env=environment,
    )  # fmt: skip
    with Pep.from_project(PAYMENTS / "pdp.yaml", approvals=Approvals()) as pep:
        async with ClaudeSDKClient(await guarded_claude_options(options, pep, OFFICER)) as client:
            for amount in (20_000, 47_500, 47_500, 47_500):
                print(f"officer-123: pay {amount:,}")
                Script.asked = amount
                await client.query(f"pay {amount}")
                async for message in client.receive_response():
                    for block in getattr(message, "content", ()):
                        if isinstance(block, ToolResultBlock):
                            text = block.content if isinstance(block.content, str) else block.content[0]["text"]
                            print(f"  model is told: {text[:43]}")
                for held in (each for each in pep.approvals.list() if each.state == "pending"):
                    pep.approvals.grant(held.id, SUPERVISOR)
                    print(f"supervisor-9: granted what waits for {', '.join(held.approvers)}")


with ThreadingHTTPServer(("127.0.0.1", 0), Script) as api, TemporaryDirectory() as folder:
    Thread(target=api.serve_forever, daemon=True).start()
    asyncio.run(main(f"http://127.0.0.1:{api.server_port}", folder))
    api.shutdown()
