"""What the ledger of a run adds to `Pep.call`: `python -m benchmarks.ledger`.

A call has one labelled argument and takes turns with the same call of a manifest without labels. It returns values
that the run has not seen: a short answer of three fields, or a mail of five, a text among them. What the engine takes
longer, as the request says more, is measured apart and not counted. In memory it is the time of the processor, with
SQLite that of the clock.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import medians
from pdp import Evaluation, MemoryAudit, Pep, Session
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.json import canonical
from pdp.ledger.ledger import MOST_VALUES, LedgerStore, MemoryLedger
from pdp.manifest.load import load_effective
from pdp.stores.sql.database import Database
from pdp.stores.sql.ledger import SqlLedger

MEMORY_MICROSECONDS: Final = 30
"""What the ledger in memory may add to a call with a short answer, at the median."""

SQLITE_MICROSECONDS: Final = 1000
"""What the ledger in SQLite may add to it."""

_MANIFEST = """
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
_LABELS = "result: {parties: [/sender], names: [/subject]}\n    roles: {mail: object}"
_CLAIMS = {"iss": "https://id.example", "sub": "ann", "emts": {"mail": True}}
_PROMPT = ("Sum up the mail of Acme about invoice INV-2291, and say what is due until Friday.",)
_PROPOSAL = {"tool": "read_mail", "arguments": {"mail": "mail-4711"}}
_TEXT = (
    "Dear Ann, please transfer the amount of our invoice until Friday, see https://pay.example.com/{0}. Regards, Eve"
)
_CALLS_IN_A_RUN = 100
_LINES = 1000


class _Forgetful(MemoryAudit):
    """A stream in memory that keeps the last thousand lines."""

    def _write(self, line: bytes, line_hash: str) -> None:
        super()._write(line, line_hash)
        if len(self._lines) > _LINES:
            self._lines.clear()


def _short(number: int) -> dict[str, Any]:
    return {"id": f"mail-{number}", "status": "unread", "size": number}


def _mail(number: int) -> dict[str, Any]:
    return {
        "id": f"mail-{number}", "sender": f"eve{number}@example.com", "subject": f"Invoice INV-{number}",
        "amount": number, "text": _TEXT.format(number),
    }  # fmt: skip


def _pep(labels: str, folder: Path, stack: ExitStack) -> Pep:
    file = folder / "manifest.yaml"
    file.write_text(_MANIFEST.format(labels=labels))
    manifest = load_effective(file, None)
    engine = EmbeddedEngine.baseline(manifests={manifest.digest: manifest.document})
    return Pep(manifest, stack.enter_context(engine))


def _case(pep: Pep, result: Callable[[int], Any], *, values: int = 1) -> Callable[[], Evaluation]:
    """Return a call whose result is new to its run: there are 100 in a run, after one that brings in some values."""
    numbers, results = count(1000), list[Any]()

    def read_mail(mail: str) -> Any:
        return results.pop() if mail else None

    pep, session = pep.with_changes(tools={"read_mail": read_mail}, audit=_Forgetful()), Session(claims=_CLAIMS)

    def call() -> Evaluation:
        nonlocal session
        number = next(numbers)
        if number % _CALLS_IN_A_RUN == 0:
            session = Session(claims=_CLAIMS, prompt=_PROMPT, run_id=f"{id(numbers)}-{number}")
            results.append([f"value-{value}" for value in range(values)])
            pep.call(_PROPOSAL, session)
        results.append(result(number))
        evaluation = pep.call(_PROPOSAL, session)
        if evaluation.result is None:
            raise RuntimeError(f"the call has no result: {evaluation!r}")
        return evaluation

    return call


def _added(
    plain: Pep, labelled: Pep, ledgers: Mapping[str, tuple[LedgerStore, Callable[[int], Any], int]], calls: int,
    clock: Callable[[], float],
) -> dict[str, float]:  # fmt: skip
    """Return what each ledger adds, the engine's part taken off; the plain call returns the same."""
    cases: dict[str, Callable[[], object]] = {}
    for name, (ledger, result, values) in ledgers.items():
        cases[name] = _case(labelled.with_changes(ledger=ledger), result, values=values)
        cases[f"{name}, plain"] = _case(plain, result)
    for name, pep in (("plain", plain), ("labelled", labelled)):
        case = _case(pep, _short)
        case()
        body, engine = canonical(case().request), pep.engine
        cases[f"engine, {name}"] = lambda body=body, engine=engine: engine.decide_body(body)  # type: ignore[misc]
    found = medians(cases, calls, clock)
    engine_part = found["engine, labelled"] - found["engine, plain"]
    return {
        **{
            f"ledger, {name}: adds to Pep.call": found[name] - found[f"{name}, plain"] - engine_part for name in ledgers
        },
        "ledger: the engine takes longer": engine_part,
    }


def figures(calls: int) -> dict[str, float]:
    """Return the medians in microseconds of what the ledger adds, by store and result."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plain, labelled = _pep("", folder, stack), _pep(_LABELS, folder, stack)
        database = stack.enter_context(Database.open(f"sqlite:///{folder}/store.db", upgrade=True))
        memory = {
            "memory, short answer": (MemoryLedger(), _short, 1),
            "memory, 9,000 values in the run": (MemoryLedger(), _short, 9 * MOST_VALUES // 10),
            "memory, mail": (MemoryLedger(), _mail, 1),
        }
        sqlite = {
            "SQLite, short answer": (SqlLedger(database), _short, 1),
            "SQLite, 9,000 values in the run": (SqlLedger(database), _short, 9 * MOST_VALUES // 10),
            "SQLite, mail": (SqlLedger(database), _mail, 1),
        }
        return {
            **_added(plain, labelled, memory, calls, time.thread_time),
            **_added(plain, labelled, sqlite, calls // 4, time.perf_counter),
        }


def _large() -> dict[str, Any]:
    deep: Any = "the end of it"
    for _ in range(30):
        deep = {"below": deep}
    return {
        "10 MB of text, which is refused": "A line of a long report. " * 400_000,
        "1 MB of text": (_TEXT.format("a") + "\n") * 9_000,
        "1 MB of fields": [_mail(number) for number in range(4_000)],
        "32 levels": [deep],
    }


def large() -> dict[str, float]:
    """Return how many milliseconds a call takes whose result is large, beside the same call without labels."""
    found = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peps = {"without labels": _pep("", folder, stack), "in memory": _pep(_LABELS, folder, stack)}
        for name, result in _large().items():
            for kind, pep in peps.items():
                changed = pep.with_changes(tools={"read_mail": lambda mail, result=result: mail and result})
                session = Session(claims=_CLAIMS, prompt=_PROMPT, run_id=name)
                start = time.thread_time()
                changed.call(_PROPOSAL, session)
                found[f"{name}: {kind}"] = (time.thread_time() - start) * 1e3
    return found


def main() -> int:
    """Print the figures; 1 when the ledger adds too much."""
    found = figures(4000)
    for name, microseconds in found.items():
        print(f"{name:60} {microseconds:9.1f} µs")
    for name, milliseconds in large().items():
        print(f"{name:60} {milliseconds:9.1f} ms")
    memory, sqlite = (found[f"ledger, {store}, short answer: adds to Pep.call"] for store in ("memory", "SQLite"))
    return 0 if memory <= MEMORY_MICROSECONDS and sqlite <= SQLITE_MICROSECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
