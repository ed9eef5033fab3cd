"""`pdp demo`: the worked example of the tool registry document, and every way in which a call is stopped."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table
from rich.text import Text

from pdp.audit import FileAudit, verify_chain
from pdp.cli import Exit
from pdp.cli.display import STYLES, console, word
from pdp.cli.engines import open_engine
from pdp.cli.examples import packaged, tools_of
from pdp.cli.files import read_session
from pdp.manifest.loading import load_effective
from pdp.pep import Pep

if TYPE_CHECKING:
    from pdp.call import Evaluation
    from pdp.session import Session

_PAYMENT = {"beneficiary_id": "bene-acme-441", "source_account": "acct-operating-4412", "reference": "INV-8842"}


class _Scene(NamedTuple):
    says: str
    tool: str
    arguments: dict[str, Any]
    changes: dict[str, Any]
    expected: str


_SCENES = (
    _Scene("look the payee up", "lookup_beneficiary", {"payee_name": "Acme", "invoice_ref": "INV-8842"}, {}, "ALLOW"),
    _Scene("validate the payment", "validate_payment", {**_PAYMENT, "amount": 47500}, {}, "ALLOW"),
    _Scene(
        "wire 20,000, within the limit of 25,000",
        "initiate_wire", {**_PAYMENT, "amount": 20000}, {"idempotency_key": "idm-20k0"}, "ALLOW",
    ),
    _Scene("wire 47,500, above it", "initiate_wire", {**_PAYMENT, "amount": 47500}, {}, "STEP_UP"),
    _Scene("run a shell", "shell_exec", {"command": "id"}, {}, "REJECTED"),
    _Scene("wire an amount that is a string", "initiate_wire", {**_PAYMENT, "amount": "20000"}, {}, "REJECTED"),
    _Scene(
        "wire without an idempotency key",
        "initiate_wire", {**_PAYMENT, "amount": 20000}, {"idempotency_key": None}, "REJECTED",
    ),
    _Scene(
        "wire to a beneficiary not screened",
        "initiate_wire", {**_PAYMENT, "amount": 20000},
        {"idempotency_key": "idm-20k1", "facts": {"sanctions_status": "not_screened"}}, "DENY",
    ),
)  # fmt: skip


def demo(engine: str, opa_url: str | None = None) -> int:
    """Tell the story on the engine and return 0 when every verdict was the expected one."""
    if engine == "sidecar" and opa_url is None:
        from pdp.cli.opa import ensured  # noqa: PLC0415

        ensured()
    example = packaged("examples/payments")
    effective = load_effective(example / "manifest.json", example / "governance.yaml")
    session = read_session(example / "session.json")
    stand_ins = tools_of(example)
    hub = stand_ins.PaymentHub()
    tools = {
        "lookup_beneficiary": stand_ins.lookup_beneficiary,
        "validate_payment": stand_ins.validate_payment,
        "initiate_wire": hub.initiate_wire,
    }
    record = Path(tempfile.mkdtemp(prefix="pdp-demo-"), "audit.jsonl")
    log = FileAudit(record)
    bundle = None if opa_url else packaged("bundles/payments.tar.gz")
    with open_engine(engine, {effective.digest: effective.document}, bundle=bundle, opa_url=opa_url) as opened:
        pep = Pep(effective, opened, audit=log, tools=tools)
        told = [(scene, pep.call(_proposal(scene), _session(session, scene))) for scene in _SCENES]
    log.close()

    out = console()
    out.print(f"An agent proposes {len(told)} tool calls; the {engine} engine decides them (examples/payments).\n")
    out.print(_table(told))
    out.print(f"\nThe payment hub (a stand-in) was called {_times(len(hub.wires))}: {_amounts(hub.wires)}.")
    out.print(
        f"{verify_chain(record.read_bytes().splitlines())} audit events, their hash chain intact, are in {record}"
    )
    unexpected = [scene.says for scene, evaluation in told if word(evaluation) != scene.expected]
    for says in unexpected:
        out.print(Text(f"not as expected: {says}", style="bold red"))
    return Exit.FAILED if unexpected else Exit.OK


def _proposal(scene: _Scene) -> dict[str, Any]:
    return {"tool": scene.tool, "arguments": scene.arguments}


def _session(session: Session, scene: _Scene) -> Session:
    return session.with_changes(**scene.changes)


def _table(told: list[tuple[_Scene, Evaluation]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("the agent wants to", "verdict", "because", "executed"):
        table.add_column(title, overflow="fold")
    for scene, evaluation in told:
        shown = word(evaluation)
        table.add_row(
            scene.says, Text(shown, style=STYLES[shown]), _because(evaluation), "yes" if evaluation.executed else "no"
        )
    return table


def _because(evaluation: Evaluation) -> str:
    if evaluation.decision is not None:
        return ", ".join(evaluation.codes)
    rejection, trace = evaluation.outcome.rejection, evaluation.trace
    why = rejection.code.value if rejection else ""
    if trace.in_manifest is False:
        return f"{why}, in_manifest: false"
    if trace.schema_valid is False:
        return f"{why}, schema_valid: false"
    return f"{why}, idempotency_missing: true" if trace.idempotency_missing else why


def _times(count: int) -> str:
    return {0: "not at all", 1: "once"}.get(count, f"{count} times")


def _amounts(wires: list[dict[str, Any]]) -> str:
    return ", ".join(f"{wire['amount']:,} to {wire['beneficiary_id']}" for wire in wires) or "no wire"
