"""The payment agent's tools, with simulated payment hub and register of beneficiaries.

The hub records its calls, so that the example can show them. A real application uses its own client instead, and needs
no other change.
"""

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

BENEFICIARIES: Final = {"bene-acme-441": {"sanctions_status": "clear"}}


class PaymentHub:
    """A simulated payment hub: it moves no money and records every wire."""

    def __init__(self, wires: MutableMapping[str, Any] | None = None) -> None:
        self.wires = {} if wires is None else wires

    def initiate_wire(self, beneficiary_id: str, amount: float, source_account: str, reference: str) -> dict[str, Any]:
        """Accept a wire and return its number."""
        wire = {
            "beneficiary_id": beneficiary_id,
            "amount": amount,
            "source_account": source_account,
            "reference": reference,
        }
        number = f"wire-{len(self.wires) + 1:03}"
        self.wires[number] = wire
        return {"wire_id": number, **wire}


class Register:
    """A simulated register of beneficiaries and their screening."""

    def __init__(self, beneficiaries: Mapping[str, Any] | None = None) -> None:
        self._beneficiaries = BENEFICIARIES if beneficiaries is None else beneficiaries

    def lookup_beneficiary(self, payee_name: str, invoice_ref: str) -> dict[str, Any]:
        """Return the beneficiary of a payee. The register only has the one in the registry document's example."""
        return {"beneficiary_id": min(self._beneficiaries), "payee_name": payee_name, "invoice_ref": invoice_ref}

    def validate_payment(
        self, beneficiary_id: str, amount: float, source_account: str, reference: str
    ) -> dict[str, Any]:
        """Return the screening. Beneficiaries that are not in the register have not been screened."""
        record = self._beneficiaries.get(beneficiary_id, {"sanctions_status": "not_screened"})
        return {
            "beneficiary_id": beneficiary_id,
            "amount": amount,
            "source_account": source_account,
            "reference": reference,
            "sanctions_status": record["sanctions_status"],
        }


def tools(world: Mapping[str, MutableMapping[str, Any]] | None = None) -> dict[str, Callable[..., Any]]:
    """Return the tools by name, with a new payment hub or the systems of a scenario's world.

    An engineer added `cancel_wire`, but did not declare it in the manifest, so no agent can call it.
    """
    hub = PaymentHub(world and world["payment-hub"])
    register = Register(world and world["beneficiaries"])
    return {
        "lookup_beneficiary": register.lookup_beneficiary,
        "validate_payment": register.validate_payment,
        "initiate_wire": hub.initiate_wire,
        "cancel_wire": hub.wires.clear,
    }
