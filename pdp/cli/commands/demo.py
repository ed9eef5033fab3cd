"""`pdp demo`: runs the payments example, in which calls are stopped for different reasons."""

import runpy
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import orjson
import typer

from pdp.audit.file import FileAudit
from pdp.audit.verify import verify_chain
from pdp.cli import Exit
from pdp.cli.commands.opa import ensured
from pdp.cli.display import STYLES, show, word
from pdp.cli.files import read_session
from pdp.cli.options import AsJson, OpaUrl, command_app
from pdp.cli.output import print_answer
from pdp.engine.protocol import EngineName
from pdp.flow.evaluation import Evaluation
from pdp.installed import packaged
from pdp.pep import Pep

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
        "wire 20,000 (limit 25,000)",
        "initiate_wire", {**_PAYMENT, "amount": 20000}, {"idempotency_key": "idm-20k0"}, "ALLOW",
    ),
    _Scene("wire 47,500 (limit 25,000)", "initiate_wire", {**_PAYMENT, "amount": 47500}, {}, "STEP_UP"),
    _Scene("run a shell", "shell_exec", {"command": "id"}, {}, "REJECTED"),
    _Scene("wire an amount given as text", "initiate_wire", {**_PAYMENT, "amount": "20000"}, {}, "REJECTED"),
    _Scene(
        "wire without idempotency key",
        "initiate_wire", {**_PAYMENT, "amount": 20000}, {"idempotency_key": None}, "REJECTED",
    ),
    _Scene(
        "wire to a payee not screened",
        "initiate_wire", {**_PAYMENT, "amount": 20000},
        {
            "idempotency_key": "idm-20k1",
            "facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "not_screened"},
        }, "DENY",
    ),
)  # fmt: skip


app = command_app()


@app.command("demo")
def demo(
    engine: Annotated[EngineName, typer.Option(help="The engine; sidecar starts a local OPA.")] = "embedded",
    opa_url: OpaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a payment agent whose calls are decided, run and recorded.

    Exit code: 0 if every verdict is the expected one, else 1.
    """
    if engine == "sidecar" and opa_url is None:
        ensured()
    example = packaged("examples/payments")
    session = read_session(example / "session.json")
    stand_ins = runpy.run_path(str(example / "tools.py"))
    wires: dict[str, Any] = {}
    tools = stand_ins["tools"]({"payment-hub": wires, "beneficiaries": stand_ins["BENEFICIARIES"]})
    del tools["cancel_wire"]
    record = Path(tempfile.mkdtemp(prefix="pdp-demo-"), "audit.jsonl")
    with (
        closing(FileAudit(record)) as log,
        Pep.from_files(
            example / "manifest.json",
            governance=example / "governance.yaml",
            bundle=None if opa_url else packaged("bundles/payments.tar.gz"),
            engine=engine,
            opa_url=opa_url,
            audit=log,
            tools=tools,
        ) as pep,
    ):
        story = [
            (scene, pep.call({"tool": scene.tool, "arguments": scene.arguments}, session.with_changes(**scene.changes)))
            for scene in _SCENES
        ]
    scenes = [{"scene": scene.says, "expected": scene.expected, **called.as_json()} for scene, called in story]
    answer = {"scenes": scenes, "audit": str(record)}
    print_answer(answer, lambda: _print_story(engine, story, list(wires.values()), record), as_json=as_json)
    raise typer.Exit(Exit.OK if all(word(evaluation) == scene.expected for scene, evaluation in story) else Exit.FAILED)


def _print_story(
    engine: str, story: list[tuple[_Scene, Evaluation]], wires: list[dict[str, Any]], record: Path
) -> None:
    show(f"A payment agent proposes {len(story)} tool calls; the {engine} engine decides.")
    show()
    show(f"{'it wants to':<30}{'verdict':<10}{'because':<41}executed")
    for scene, evaluation in story:
        verdict, rejection = word(evaluation), evaluation.outcome.rejection
        codes = ", ".join(evaluation.codes) or (rejection.code if rejection else "")
        executed = "yes" if evaluation.executed else "no"
        show(f"{scene.says:<30}", (f"{verdict:<10}", STYLES[verdict]), f"{codes:<41}{executed}")
    stopped = {
        reason.code: reason.message
        for _, evaluation in story
        if evaluation.verdict and not evaluation.allowed
        for reason in evaluation.reasons
    }
    show()
    for code, message in stopped.items():
        show((code, "bold"), f"  {message}")
    times = {0: "not at all", 1: "once"}.get(len(wires), f"{len(wires)} times")
    amounts = ", ".join(f"{wire['amount']:,} to {wire['beneficiary_id']}" for wire in wires)
    show()
    show(f"Payment hub (a stand-in): called {times}{f', {amounts}' if wires else ''}")
    events = record.read_bytes().splitlines()
    verify_chain(events)
    ran = sum(orjson.loads(event)["type"].endswith(".result") for event in events)
    show(f"Audit: {len(events)} events ({len(events) - ran} decisions, {ran} results), hash chain intact")
    show(f"       {record}")
    for scene, evaluation in story:
        if word(evaluation) != scene.expected:
            show((f"not as expected: {scene.says}: {word(evaluation)}, not {scene.expected}", "bold red"))
