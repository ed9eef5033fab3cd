"""`pdp demo`: runs the payments example, in which calls are stopped for different reasons."""

import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import orjson
import typer

from pdp.audit.file import FileAudit
from pdp.audit.verify import verify_chain
from pdp.cli import Exit
from pdp.cli.commands.guard.console import NoBrowser
from pdp.cli.commands.opa import ensured
from pdp.cli.display import STYLES, show, word
from pdp.cli.files import read_session
from pdp.cli.options import AsJson, OpaUrl, command_app
from pdp.cli.output import print_answer
from pdp.engine.protocol import EngineName
from pdp.flow.evaluation import Evaluation
from pdp.installed import extra, packaged
from pdp.pep import Pep
from pdp.project.resources import open_stores, stores_of_pep
from pdp.stores.approvals import ApprovalState

_EXAMPLE: Final = packaged("examples/payments")
_POLL_SECONDS: Final = 0.5
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
    console: Annotated[
        bool, typer.Option("--console", help="Let the wire of 47,500 wait until you decide on it in your browser.")
    ] = False,
    no_browser: NoBrowser = False,
    as_json: AsJson = False,
) -> None:
    """Show a payment agent whose calls are decided, run and recorded.

    Exit code: 0 if every verdict is the expected one, else 1; 130 if Ctrl-C ended the wait for your decision.
    """
    if engine == "sidecar" and opa_url is None:
        ensured()
    if console:
        with extra("service"):
            import_module("pdp.service.settings")
        # Python would end without ending the console.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    session = read_session(_EXAMPLE / "session.json")
    stand_ins = runpy.run_path(str(_EXAMPLE / "tools.py"))
    wires: dict[str, Any] = {}
    tools = stand_ins["tools"]({"payment-hub": wires, "beneficiaries": stand_ins["BENEFICIARIES"]})
    del tools["cancel_wire"]
    folder = Path(tempfile.mkdtemp(prefix="pdp-demo-"))
    story: list[tuple[_Scene, Evaluation]] = []
    with ExitStack() as owned:
        record = f"sqlite:///{folder / 'demo.db'}" if console else str(folder / "audit.jsonl")
        stores = open_stores(record, owned) if console else None
        log: Any = FileAudit(Path(record)) if stores is None else stores.open_audit()
        owned.callback(log.close)
        pep = owned.enter_context(
            Pep.from_files(
                _EXAMPLE / "manifest.json",
                governance=_EXAMPLE / "governance.yaml",
                bundle=None if opa_url else packaged("bundles/payments.tar.gz"),
                engine=engine,
                opa_url=opa_url,
                audit=log,
                tools=tools,
                **({} if stores is None else stores_of_pep(stores)),
            )
        )
        for scene in _SCENES:
            call = {"tool": scene.tool, "arguments": scene.arguments}, session.with_changes(**scene.changes)
            story.append((scene, pep.call(*call)))
            waiting = story[-1][1].approval
            if waiting is not None:
                process = owned.enter_context(_console(record, no_browser=no_browser, as_json=as_json))
                if _is_granted(pep, waiting.id, process):
                    approved = scene._replace(says="wire 47,500, approved", expected="ALLOW")
                    story.append((approved, pep.call(*call)))
        events = (
            [row.line.encode() for row in log.lines(-1, 1000)] if console else Path(record).read_bytes().splitlines()
        )
        scenes = [{"scene": scene.says, "expected": scene.expected, **called.as_json()} for scene, called in story]
        answer = {"scenes": scenes, "audit": record}
        print_answer(answer, lambda: _print_story(engine, story, list(wires.values()), events, record), as_json=as_json)
        if console and not as_json:
            show("The console stays open until you press Ctrl-C.")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            _ = console and process.wait()
    raise typer.Exit(Exit.OK if all(word(evaluation) == scene.expected for scene, evaluation in story) else Exit.FAILED)


@contextmanager
def _console(store: str, *, no_browser: bool, as_json: bool) -> Iterator[subprocess.Popen[bytes]]:
    """Run `pdp console`, which prints its link, for the approver of the example on the database of the demo."""
    files = ("--project", str(_EXAMPLE / "pdp.yaml"), "--session", str(_EXAMPLE / "approver.yaml"), "--store", store)
    if not as_json:
        show("The agent wants to wire 47,500, and waits for your decision in the console.")
        sys.stdout.flush()
    command = [sys.executable, "-P", "-m", "pdp", "console", *files, *(["--no-browser"] if no_browser else [])]
    with subprocess.Popen(command, stdout=sys.stderr if as_json else None) as process:  # noqa: S603 - our own command
        try:
            yield process
        finally:
            process.terminate()


def _is_granted(pep: Pep, approval_id: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a person decides in the console, and return whether the approval is granted."""
    assert pep.approvals is not None  # noqa: S101 - the store has approvals
    while (approval := pep.approvals.get(approval_id)).standing is ApprovalState.PENDING:
        if process.poll() is not None:
            raise typer.Exit(process.returncode or Exit.FAILED)
        time.sleep(_POLL_SECONDS)
    return approval.standing is ApprovalState.GRANTED


def _print_story(
    engine: str, story: list[tuple[_Scene, Evaluation]], wires: list[dict[str, Any]], events: list[bytes], record: str
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
    verify_chain(events)
    decided, ran = (
        sum(orjson.loads(event)["type"].endswith(end) for event in events) for end in (".dispatch", ".result")
    )
    show(f"Audit: {len(events)} events ({decided} decisions, {ran} results), hash chain intact")
    show(f"       {record}")
    for scene, evaluation in story:
        if word(evaluation) != scene.expected:
            show((f"not as expected: {scene.says}: {word(evaluation)}, not {scene.expected}", "bold red"))
