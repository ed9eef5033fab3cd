"""The files, session and proposals of the payments example."""

from typing import Any

from pdp.engine.bundle.file import read_bundle
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.load import load_effective
from pdp.session import Session
from tests.support import ROOT

EXAMPLE = ROOT / "examples/payments"
BUNDLE = ROOT / "bundles/payments.tar.gz"

REMEDY = "Stay within the limit, or ask one of the approvers. A session has its limits in the claim `limits`."
"""The remedy that the policy gives with the reason `limits.exceeded`."""

ARGUMENTS = {
    "beneficiary_id": "bene-acme-441",
    "amount": 47500,
    "source_account": "acct-operating-4412",
    "reference": "INV-8842",
}


def effective() -> EffectiveManifest:
    return load_effective(EXAMPLE / "manifest.json", EXAMPLE / "governance.yaml")


def engine() -> EmbeddedEngine:
    """Return an embedded engine with the released bundle of the example, which contains the manifest."""
    return EmbeddedEngine(read_bundle(BUNDLE))


def session(**changes: Any) -> Session:
    claims = {
        "sub": "officer-123",
        "emts": {"payments.lookup": True, "payments.validate": True, "payments.wire.initiate": True},
        "limits": {"wire.auto_approved": 25000},
    }
    whole = Session(
        claims=claims,
        facts={"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"},
        idempotency_key="idm-4a2b",
        run_id="run-1",
        request_id="req-1",
        time="2026-07-01T10:00:00Z",
    )
    return whole.with_changes(**changes)


def wire(**changes: Any) -> dict[str, Any]:
    """Return the proposal of a wire in the example, with these arguments changed."""
    return {"tool": "initiate_wire", "arguments": {**ARGUMENTS, **changes}}


class Hub:
    """A simulated payment hub that records the wires it sends."""

    def __init__(self) -> None:
        self.wires: list[dict[str, Any]] = []

    def initiate_wire(self, **arguments: Any) -> dict[str, Any]:
        self.wires.append(arguments)
        return {"wire_id": f"wire-{len(self.wires)}"}
