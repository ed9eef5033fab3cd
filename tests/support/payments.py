"""The payments example, as tests use it: its files, its session and its proposals."""

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
"""Of `limits.exceeded`."""

ARGUMENTS = {
    "beneficiary_id": "bene-acme-441",
    "amount": 47500,
    "source_account": "acct-operating-4412",
    "reference": "INV-8842",
}


def effective() -> EffectiveManifest:
    """The example's manifest with its governance."""
    return load_effective(EXAMPLE / "manifest.json", EXAMPLE / "governance.yaml")


def engine() -> EmbeddedEngine:
    """The released bundle of the example, which holds the manifest as well."""
    return EmbeddedEngine(read_bundle(BUNDLE))


def session(**changes: Any) -> Session:
    """The worked example's session, with `changes` laid over it."""
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
    """The worked example's proposal, with some arguments changed."""
    return {"tool": "initiate_wire", "arguments": {**ARGUMENTS, **changes}}


class Hub:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.wires: list[dict[str, Any]] = []

    def initiate_wire(self, **arguments: Any) -> dict[str, Any]:
        self.wires.append(arguments)
        return {"wire_id": f"wire-{len(self.wires)}"}
