"""A FastAPI application whose wires are decided. `Authenticated` stands in for the one that verifies tokens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from pydantic import BaseModel

from pdp import Approvals, Pep
from pdp.adapters.asgi import AsgiMiddleware

PAYMENTS = Path(__file__).parents[1] / "payments"
OFFICER = json.loads((PAYMENTS / "session.json").read_text())
app = FastAPI()


class Wire(BaseModel):
    """What is asked for."""

    beneficiary_id: str
    amount: float
    source_account: str
    reference: str


@app.post("/wires", operation_id="initiate_wire")
def initiate_wire(wire: Wire) -> dict[str, Any]:
    """Stand in for the payment hub."""
    print(f"  the hub wires {wire.amount} for {wire.reference} from {wire.source_account} to {wire.beneficiary_id}")
    return {"wired": wire.reference}


class Authenticated:
    """Puts who calls into the scope, in front of the guard."""

    def __init__(self, guarded: Any) -> None:
        self._guarded = guarded

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection."""
        await self._guarded({**scope, "user": OFFICER["claims"]}, receive, send)


def caller(scope: Any) -> dict[str, Any]:
    """Return whose call this is. A header names the payment, so that it is made once; it cannot name a person."""
    key = dict(scope["headers"]).get(b"idempotency-key", b"").decode()
    return {"claims": scope["user"], "facts": OFFICER["facts"], "idempotency_key": key}


async def main() -> None:
    """Ask for two wires; one is held, granted by a second person, and made by the same request."""
    approvals = Approvals()
    with Pep.from_project(PAYMENTS / "pdp.yaml", approvals=approvals) as pep:
        served = Authenticated(AsgiMiddleware(app, pep, caller, app.openapi()))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://payments") as client:

            async def propose(payment: str, amount: float) -> Any:
                wire = {"beneficiary_id": "bene-acme-441", "amount": amount, "source_account": "acc-1"}
                print(f"the agent proposes {amount}")
                headers = {"Idempotency-Key": payment}
                response = await client.post("/wires", json={**wire, "reference": payment}, headers=headers)
                answer = response.json()
                print(f"  the agent is told: {response.status_code} {answer.get('outcome', answer)}")
                return answer

            await propose("INV-1", 20_000)
            held = await propose("INV-2", 47_500)
            supervisor = {"sub": "supervisor-9", "roles": ["payments.approver"]}
            approvals.grant(held["approval"]["approval_id"], supervisor)
            print("supervisor-9 grants it")
            await propose("INV-2", 47_500)
            await propose("INV-2", 47_500)


asyncio.run(main())
