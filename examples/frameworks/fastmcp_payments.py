"""A FastMCP server with decided wires. With `auth` over HTTP, use `get_access_token().claims` as claims."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from fastmcp import Client, Context, FastMCP

from pdp import Approvals, Pep
from pdp.adapters.fastmcp import FastMcpMiddleware

PAYMENTS = Path(__file__).parents[1] / "payments"
OFFICER = json.loads((PAYMENTS / "session.json").read_text())


def caller(context: Context) -> dict[str, Any]:
    """Return the caller's session. The client names the payment, so that it runs once, but cannot name the person."""
    request = context.request_context
    return {**OFFICER, "idempotency_key": ((request and request.meta) or {}).get("example/payment")}


def initiate_wire(beneficiary_id: str, amount: float, source_account: str, reference: str) -> str:
    """Simulate the payment hub."""
    print(f"  the hub wires {amount} for {reference} from {source_account} to {beneficiary_id}")
    return "wired"


async def main() -> None:
    """Propose two wires. The second waits until another person approves it, and the same call then runs it."""
    approvals = Approvals()
    with Pep.from_project(PAYMENTS / "pdp.yaml", approvals=approvals) as pep:
        server = FastMCP("payments", middleware=[FastMcpMiddleware(pep, caller)])
        server.tool(initiate_wire)
        async with Client(server) as client:
            print("tools:", [tool.name for tool in await client.list_tools()])

            async def propose(payment: str, amount: float) -> str:
                wire = {"beneficiary_id": "bene-acme-441", "amount": amount, "source_account": "acc-1"}
                print(f"the agent proposes {amount}")
                options: Any = {"meta": {"example/payment": payment}, "raise_on_error": False}
                result = await client.call_tool("initiate_wire", {**wire, "reference": payment}, **options)
                text: str = result.content[0].text
                print(f"  the agent is told: {text.partition(': The amount')[0]}")
                return text

            await propose("INV-1", 20_000)
            held = re.search(r"approval ([\w-]+)", await propose("INV-2", 47_500))
            approvals.grant(held[1] if held else "", {"sub": "supervisor-9", "roles": ["payments.approver"]})
            print("supervisor-9 grants it")
            await propose("INV-2", 47_500)
            await propose("INV-2", 47_500)


asyncio.run(main())
