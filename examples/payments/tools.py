"""The payment agent's tools, with a stand-in for the payment hub.

The hub keeps what it was told, so that the example can show what was called and what was not. A real application puts
its own client here; nothing else changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class PaymentHub:
    """Stands in for the payment hub: it moves no money and remembers every wire it was asked for."""

    def __init__(self) -> None:
        self.wires: list[dict[str, Any]] = []

    def initiate_wire(self, beneficiary_id: str, amount: float, source_account: str, reference: str) -> dict[str, Any]:
        """Take a wire and return its number."""
        wire = {
            "beneficiary_id": beneficiary_id,
            "amount": amount,
            "source_account": source_account,
            "reference": reference,
        }
        self.wires.append(wire)
        return {"wire_id": f"wire-{len(self.wires):03}", **wire}


def lookup_beneficiary(payee_name: str, invoice_ref: str) -> dict[str, Any]:
    """Resolve a payee to the beneficiary that the registry document's example names."""
    return {"beneficiary_id": "bene-acme-441", "payee_name": payee_name, "invoice_ref": invoice_ref}


def validate_payment(beneficiary_id: str, amount: float, source_account: str, reference: str) -> dict[str, Any]:
    """Report the stand-in's screening: this beneficiary is clear, every other one has not been screened."""
    status = "clear" if beneficiary_id == "bene-acme-441" else "not_screened"
    return {
        "beneficiary_id": beneficiary_id,
        "amount": amount,
        "source_account": source_account,
        "reference": reference,
        "sanctions_status": status,
    }


def tools() -> dict[str, Callable[..., Any]]:
    """Return the tools by name, with a payment hub of their own.

    `cancel_wire` is what an engineer added and nobody entered into the manifest: no agent ever gets to it.
    """
    hub = PaymentHub()
    return {
        "lookup_beneficiary": lookup_beneficiary,
        "validate_payment": validate_payment,
        "initiate_wire": hub.initiate_wire,
        "cancel_wire": hub.wires.clear,
    }
