"""A FastAPI application with decided wires. `authenticated` takes the place of token verification."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from pdp import Approvals, Pep
from pdp.adapters.asgi import AsgiMiddleware

PAYMENTS = Path(__file__).parents[1] / "payments"
OFFICER = json.loads((PAYMENTS / "session.json").read_text())
app = FastAPI()


@app.post("/wires", operation_id="initiate_wire")
def initiate_wire(beneficiary_id: str, amount: float, source_account: str, reference: str) -> dict[str, str]:
    """Simulate the payment hub."""
    print(f"  the hub wires {amount} for {reference} from {source_account} to {beneficiary_id}")
    return {"wired": reference}


def caller(scope: Any) -> dict[str, Any]:
    """Return the caller's session. A header names the payment, so that it runs once, but cannot name the person."""
    key = dict(scope["headers"]).get(b"idempotency-key", b"").decode()
    return {"claims": scope["user"], "facts": OFFICER["facts"], "idempotency_key": key}


async def main() -> None:
    """Request two wires. The second waits until another person approves it, and the same request then runs it."""
    approvals = Approvals()
    with Pep.from_project(PAYMENTS / "pdp.yaml", approvals=approvals) as pep:
        guarded = AsgiMiddleware(app, pep, caller, app.openapi())

        async def authenticated(scope: Any, receive: Any, send: Any) -> None:
            await guarded({**scope, "user": OFFICER["claims"]}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(authenticated)) as client:

            async def propose(payment: str, amount: float) -> Any:
                wire = {"beneficiary_id": "bene-acme-441", "source_account": "acc-1", "reference": payment}
                print(f"the agent proposes {amount}")
                asked = {"params": {**wire, "amount": amount}, "headers": {"Idempotency-Key": payment}}
                response = await client.post("http://payments/wires", **asked)
                print(f"  the agent is told: {response.status_code} {response.json().get('outcome', response.json())}")
                return response.json()

            await propose("INV-1", 20_000)
            held = await propose("INV-2", 47_500)
            approvals.grant(held["approval"]["approval_id"], {"sub": "supervisor-9", "roles": ["payments.approver"]})
            print("supervisor-9 grants it")
            await propose("INV-2", 47_500)
            await propose("INV-2", 47_500)


asyncio.run(main())
