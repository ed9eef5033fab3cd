"""AuthZEN requests about the payments example, and a directory of subjects and resources."""

import json
from pathlib import Path
from typing import Any

from tests.support.payments import ARGUMENTS, BUNDLE, EXAMPLE
from tests.support.service import OFFICER

SCOPED = {"scopes": sorted(OFFICER["emts"]), "limits": OFFICER["limits"]}
"""The properties of the officer in a request, equal to the properties that the officer's claims give."""

ME = {"type": "user", "id": "officer-123"}
PAYEE = {"type": "wire_payment", "id": "bene-acme-441"}
WIRE = {"name": "initiate_wire"}

DIRECTORY = {
    "directory": {
        "subjects": {
            "user": {
                "officer-123": SCOPED,
                "officer-124": {**SCOPED, "limits": {"wire.auto_approved": 10}},
                "officer-125": SCOPED,
                "clerk-1": {"scopes": ["payments.lookup"]},
            },
            "service": {},
        },
        "resources": {
            "wire_payment": {"bene-acme-441": {}, "bene-acme-442": {}, "bene-globex-1": {"markings": ["secret"]}}
        },
    }
}


def wire(amount: float = 20000, **changes: Any) -> dict[str, Any]:
    """Return an evaluation request in which the officer wants to wire an amount to the payee."""
    payee = (changes.get("resource") or {}).get("id") or PAYEE["id"]
    context = {
        "arguments": {**ARGUMENTS, "amount": amount, "beneficiary_id": payee},
        "sanctions_status": "clear",
        "looked_up_beneficiary": payee,
        "idempotency_key": "idm-4a2b",
    }
    return {"subject": ME, "action": WIRE, "resource": PAYEE, "context": context, **changes}


def project_in(folder: Path, data: dict[str, Any] = DIRECTORY) -> Path:
    """Write a project file of the payments example. The project includes the directory."""
    (folder / "directory.json").write_text(json.dumps(data))
    file = folder / "pdp.yaml"
    stated = {
        "manifest": str(EXAMPLE / "manifest.json"),
        "governance": str(EXAMPLE / "governance.yaml"),
        "bundle": str(BUNDLE),
        "data": ["directory.json"],
    }
    file.write_text(json.dumps(stated))
    return file
