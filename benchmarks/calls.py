"""Measure the cost of the parts of a call: `python -m benchmarks.calls [contract] [idempotency] [ledger] [shadow]`.

Each figure is a median. The compared calls alternate. The exit code is 1 if a goal is missed.

contract     the checks of a call: schema, three invariants and config; also a corrected call and a plan
grants       a decision with 1,000 lasting grants of the subject, compared with none
idempotency  a replay from SQLite, compared with sqlite3 reading the same row
ledger       the time that labels add to `Pep.call`, without the additional time of the engine
shadow       a decision with a shadow in the process, for one caller and for 16
"""

import argparse
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import medians, throughput
from pdp import Approvals, EmbeddedEngine, Engine, Evaluation, MemoryAudit, Pep, Session, ShadowEngine, SqlApprovals
from pdp.contract.plan import validate_plan
from pdp.contract.registry.registry import Registry
from pdp.contract.request import check
from pdp.json import canonical
from pdp.ledger.ledger import LedgerStore, MemoryLedger
from pdp.manifest.load import load_effective
from pdp.manifest.model import Manifest
from pdp.proposal import Execution, Proposal
from pdp.stores.keys import Fresh, IdempotencyKey, Stored
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency
from pdp.stores.sql.ledger import SqlLedger
from tests.support import ROOT, payments
from tests.support.bundle_releases import lax

Goals = dict[str, tuple[float, float]]
"""Figures that have to be reached, each with the most that it may be."""

_TEXTS: Final = {"type": "array", "items": {"type": "string"}}
_RETRIEVE: Final[dict[str, Any]] = {
    "name": "retrieve_evidence",
    "schema": {
        "type": "object", "required": ["query"],
        "properties": {
            "subquestion_id": {"type": "string"}, "subquestion_ids": _TEXTS, "web_search": {"type": "boolean"},
            "query": {"type": "string"},
        },
    },
    "invariants": [
        {
            "id": "EXCLUSIVE", "rule": "Cannot use both",
            "check": "!(has(call.subquestion_id) && has(call.subquestion_ids))",
        },
        {
            "id": "WEB", "rule": "Bundled steps search", "correct": {"set": {"web_search": True}},
            "check": "!has(call.subquestion_ids) || call.web_search == true",
        },
        {
            "id": "MODE", "rule": "Fast mode asks one thing",
            "check": 'config.mode != "fast" || size(call.query) < 200',
        },
    ],
    "config": [{"key": "mode", "default": "Fast", "normalize": ["strip", "lower"]}],
}  # fmt: skip
_MAIL: Final = """
manifest_version: 2026.1.0
tools:
  - name: read_mail
    version: 1.0.0
    effect_class: read-internal
    risk_tier: low
    scopes: [mail]
    schema: {{type: object, required: [mail], properties: {{mail: {{type: string, maxLength: 40}}}}}}
    {labels}
"""
_LABELS: Final = "result: {parties: [/sender], names: [/subject]}\n    roles: {mail: object}"
_CLAIMS: Final = {"iss": "https://id.example", "sub": "ann", "emts": {"mail": True}}
_READ: Final = {"tool": "read_mail", "arguments": {"mail": "mail-4711"}}
_CALLS_IN_A_RUN: Final = 100


def contract(calls: int) -> tuple[dict[str, float], Goals]:
    """Time the checks of a call and of a plan with four steps."""
    compiled = Registry(Manifest.model_validate({"manifest_version": "1", "tools": [_RETRIEVE]})).compiled
    session = Session(claims={"sub": "clinician-7"}, config={"mode": " FAST "})

    def checking(**arguments: Any) -> Callable[[], object]:
        words = {"query": "metformin and contrast media", "subquestion_ids": ["q1", "q2"], **arguments}
        proposal = Proposal.read({"tool": "retrieve_evidence", "arguments": words})
        return lambda: check(proposal, session, compiled)

    plan = [{"tool": "retrieve_evidence", "arguments": {"query": f"question {at}"}} for at in range(4)]
    cases = {
        "contract: schema, three invariants, config": checking(web_search=True),
        "contract: the same, one corrected": checking(),
        "contract: a plan of four steps": lambda: validate_plan(plan, session, compiled),
    }
    found = medians(cases, calls)
    return found, {"contract, µs": (next(iter(found.values())), 40)}


def idempotency(calls: int) -> tuple[dict[str, float], Goals]:
    """Time a replay from SQLite."""
    now, numbers = 1_782_900_000.0, count()

    def key(number: int) -> IdempotencyKey:
        return IdempotencyKey("https://id.example", "officer-123", "initiate_wire", "2", f"idm-{number}")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        url = f"sqlite:///{path}"
        with Database.open(url, upgrade=True) as database, closing(sqlite3.connect(path)) as plain:
            store = SqlIdempotency(database)

            def run() -> None:
                begun = store.begin(key(next(numbers)), "sha256:a", ttl=86400.0, now=now)
                if not isinstance(begun, Fresh):
                    raise TypeError("the key is not fresh")
                store.finish(begun.record, Execution(result={"wire_id": "w-1", "amount": 20000}), now=now)

            def replay() -> None:
                if not isinstance(store.begin(key(500), "sha256:a", ttl=86400.0, now=now), Stored):
                    raise TypeError("the result is not stored")

            for _ in range(1000):
                run()
            row = ("SELECT * FROM pdp_idempotency WHERE id = ?", (key(500).id,))
            cases = {
                "idempotency: replay from SQLite": replay,
                "idempotency: the same row by sqlite3 alone": lambda: plain.execute(*row).fetchone(),
            }
            found = medians(cases, calls)
            # This runs separately, because it waits for the disk.
            found |= medians({"idempotency: begin and finish, SQLite": run}, calls // 10)
    return found, {"replay from SQLite, µs": (found["idempotency: replay from SQLite"], 300)}


def ledger(calls: int) -> tuple[dict[str, float], Goals]:
    """Time the cost of labels for a call with a short answer, in memory (processor time) and in SQLite (clock)."""
    found: dict[str, float] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(Database.open(f"sqlite:///{folder}/store.db", upgrade=True))

        def pep(labels: str) -> Pep:
            file = folder / "manifest.yaml"
            file.write_text(_MAIL.format(labels=labels))
            manifest = load_effective(file, None)
            engine = EmbeddedEngine.baseline(manifests={manifest.digest: manifest.document})
            return Pep(manifest, stack.enter_context(engine))

        plain, labelled = pep(""), pep(_LABELS)
        stores: dict[str, tuple[LedgerStore, int, Callable[[], float]]] = {
            "memory": (MemoryLedger(), calls, time.thread_time),
            "SQLite": (SqlLedger(database), calls // 4, time.perf_counter),
        }
        for name, (store, times, clock) in stores.items():
            cases = {"labelled": _mail_call(labelled.with_changes(ledger=store)), "plain": _mail_call(plain)}
            bodies = {kind: (canonical(case().request), part.engine)
                      for (kind, case), part in zip(cases.items(), (labelled, plain), strict=True)}  # fmt: skip
            engines = {
                f"engine, {kind}": lambda body=body, engine=engine: engine.decide_body(body)
                for kind, (body, engine) in bodies.items()
            }
            taken = medians({**cases, **engines}, times, clock)
            part = taken["engine, labelled"] - taken["engine, plain"]
            found[f"ledger, {name}: adds to Pep.call"] = taken["labelled"] - taken["plain"] - part
    memory, sqlite = found.values()
    return found, {"ledger in memory, µs": (memory, 30), "ledger in SQLite, µs": (sqlite, 1000)}


def _mail_call(pep: Pep) -> Callable[[], Any]:
    """Return a call whose result is new to its run; each run has a hundred calls."""
    numbers, session = count(), Session(claims=_CLAIMS)
    pep = pep.with_changes(
        tools={"read_mail": lambda mail: {"id": f"{mail}-{next(numbers)}", "status": "unread"}}, audit=MemoryAudit()
    )

    def call() -> Any:
        nonlocal session
        number = next(numbers)
        if number % _CALLS_IN_A_RUN < 2:  # noqa: PLR2004 - a call takes two numbers
            session = Session(claims=_CLAIMS, prompt=("Sum up the mail of Acme.",), run_id=f"{id(numbers)}-{number}")
        return pep.call(_READ, session)

    return call


def shadow(calls: int) -> tuple[dict[str, float], Goals]:
    """Time a decision with a shadow, which may cost one more engine call."""
    with payments.engine() as engine:
        pep = Pep(payments.effective(), engine, audit=MemoryAudit())
        body = canonical(pep.decide(payments.wire(amount=20000), payments.session()).request)
    found: dict[str, float] = {}
    with payments.engine() as bare, ShadowEngine(payments.engine(), EmbeddedEngine(lax())) as shadowed:
        for _ in range(2):  # The second round counts, when everything is warm.
            sides: dict[str, Engine] = {"alone": bare, "with a shadow": shadowed}
            for name, side in sides.items():
                decide = lambda side=side: side.decide_body(body)  # noqa: E731
                found |= medians({f"shadow: one caller, {name}": decide}, calls // 2)
                found[f"shadow: 16 callers, {name}, per s"] = throughput(decide, 16, 1.0)
                while shadowed.counts().waiting:
                    time.sleep(0.001)
    one = found["shadow: one caller, with a shadow"] / found["shadow: one caller, alone"]
    many = found["shadow: 16 callers, alone, per s"] / found["shadow: 16 callers, with a shadow, per s"]
    return found, {"one caller with a shadow / alone": (one, 2), "16 callers alone / with a shadow": (many, 2)}


def grants(calls: int) -> tuple[dict[str, float], Goals]:
    """Time the decision of a call that needs an approval, without lasting grants and with 1,000 of its subject."""
    manifest = load_effective(*(ROOT / "tests/scenarios" / name for name in ("grants.yaml", "grants-governance.yaml")))
    claims = {"sub": "clerk", "scope": "desk.write"}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine = stack.enter_context(EmbeddedEngine.baseline(manifests={manifest.digest: manifest.document}))
        cases: dict[str, Callable[[], object]] = {}
        for active in (0, 1_000):
            database = stack.enter_context(Database.open(f"sqlite:///{folder}/{active}.db", upgrade=True))
            approvals = Approvals(SqlApprovals(database), MemoryAudit())
            pep = Pep(manifest, engine, approvals=approvals, audit=MemoryAudit())

            def decide(recipient: str = "bob", *, pep: Pep = pep, hold: bool = False) -> Evaluation:
                call = {"tool": "send_notice", "arguments": {"recipient": recipient, "text": "one"}}
                return pep.decide(call, Session(claims=claims, run_id="run-1"), hold=hold)

            for number in range(active):
                approval = decide(f"person-{number}", hold=True).approval
                if approval is None:
                    raise TypeError("the call needs no approval")
                approvals.grant(approval.id, {"sub": "lead", "roles": ["desk.lead"]}, reach="until")
            cases[f"grants: a decision with {active:,}"] = decide
        found = medians(cases, calls // 4)
    none, many = found.values()
    return found, {"decision with 1,000 grants / without": (many / none, 1.2)}


PARTS: Final = {part.__name__: part for part in (contract, grants, idempotency, ledger, shadow)}


def main() -> int:
    """Print the figures and goals of the named parts, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all, if absent")
    parser.add_argument("--quick", action="store_true", help="fewer calls: a first look")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    missed = False
    for name in options.parts or PARTS:
        figures, goals = PARTS[name](400 if options.quick else 4000)
        for what, figure in figures.items():
            print(f"{what:60} {figure:10.1f}")
        for what, (value, most) in goals.items():
            print(f"{what:60} {value:10.2f}  at most {most:g}: {'reached' if value <= most else 'missed'}")
            missed = missed or value > most
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
