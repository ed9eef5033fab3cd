"""Measure replays of recorded requests: `python -m benchmarks.replay --records 100000`.

A database in SQLite gets that many recorded decisions of the payments example: wires with many amounts and people, and
look-ups. The bare engine is the bundle's WebAssembly in this process: two threads decide the same requests from a list.
`decide_body` includes reading the answer, `evaluate` does not. The replay reads and opens the records, decides them and
compares the answers. All run in turn, and the figure is a ratio of the best runs.

A backtest takes a time for each record, and a time to find the causes of changes. So a tenth of the records and all of
them are measured, and the time for 1,000,000 records is extrapolated.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

import orjson
from sqlalchemy import insert

from pdp import MemoryAudit, Pep
from pdp.audit.chain import AuditEvent
from pdp.audit.requests import Requests
from pdp.clock import to_milliseconds
from pdp.decision import new_id
from pdp.engine.bundle.file import Bundle, baseline_bundle_path, read_bundle
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.json import canonical
from pdp.opa.evaluation import Evaluator
from pdp.opa.program import find_opa
from pdp.stores.sql.database import Database
from pdp.stores.sql.events import AuditRow
from pdp.stores.sql.requests import SqlRequests
from pdp.stores.sql.tables import audit, requests
from pdp.workbench.engines import ENGINE_TIMEOUT
from pdp.workbench.replay import Replay
from tests.support import payments

_KEY: Final = b"k" * 32
_BATCH: Final = 5_000
_CHUNK: Final = 500
_THREADS: Final = 2
_START: Final = 1_780_000_000.0
_OPA: Final = 2_000
_ROUNDS: Final = 2
_RATIO: Final = 0.8
_A_MILLION: Final = 180.0  # seconds


def bodies(count: int) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the events and the requests of wires and look-ups. Each has its own ids, amount and person."""
    log, effective = MemoryAudit(), payments.effective()
    calls: list[dict[str, Any]] = [payments.wire(amount=20_000), payments.wire(), payments.wire(amount=20_000)]
    with payments.engine() as engine:
        pep = Pep(effective, engine, audit=log)
        asked = [pep.decide(call, payments.session()).request for call in calls]
        asked.append(pep.decide(_LOOKUP, payments.session()).request)
    events = log.events
    for number in range(count):
        kind = number % len(asked)
        request = orjson.loads(orjson.dumps(asked[kind]))
        request["context"]["request_id"] = new_id()
        request["subject"]["id"] = f"officer-{number % 977}"
        if "amount" in request["context"]["arguments"]:
            request["context"]["arguments"]["amount"] += number % 5_000
        event = {**events[kind], "seq": number, "time": to_milliseconds(_START + number * 0.6)}
        yield (
            {**event, "request_id": request["context"]["request_id"], "subject": request["subject"]["id"]},
            canonical(request),
        )


_LOOKUP: Final = {"tool": "lookup_beneficiary", "arguments": {"payee_name": "Acme", "invoice_ref": "INV-8842"}}


def fill(database: Database, seal: Requests, count: int) -> None:
    """Insert recorded decisions in bulk. The hashes of the events are not valid."""
    rows: list[dict[str, Any]] = []
    sealed: list[dict[str, Any]] = []
    with payments.engine() as engine:
        for event, body in bodies(count):
            decision = engine.decide_body(body)
            names = {"verdict": decision.verdict.value, "codes": decision.codes, "decision_id": decision.decision_id}
            recorded: dict[str, Any] = {**seal.seal(cast("AuditEvent", event | names), body, decision)}
            seq = recorded["seq"]
            sealed.append({"seq": seq, "expires_at": 1e12, "sealed": recorded.pop("sealed")})
            rows.append(AuditRow.of(recorded, seq, orjson.dumps(recorded).decode())._asdict())
            if len(rows) == _BATCH or seq == count - 1:
                with database.write(durable=False) as connection:
                    connection.execute(insert(audit), rows)
                    connection.execute(insert(requests), sealed)
                rows, sealed = [], []


def _manifests() -> dict[str, Any]:
    effective = payments.effective()
    return {effective.digest: effective.document}


def bare(decide: Callable[[bytes], object], asked: list[bytes]) -> float:
    """Return how many requests a second two threads decide."""
    chunks = [asked[first : first + _CHUNK] for first in range(0, len(asked), _CHUNK)]
    began = time.perf_counter()
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(lambda chunk: [decide(body) for body in chunk], chunks):
            pass
    return len(asked) / (time.perf_counter() - began)


def replayed(database: Database, seal: Requests, bundle: Bundle, new: Bundle | None, count: int) -> float:
    """Return the seconds that a replay of the first records takes, or a backtest with the bundle `new`."""
    with ExitStack() as owned:
        replay = Replay(seal, [bundle], new=new, manifests=_manifests(), data={}, sensitive={}, owned=owned)
        began = time.perf_counter()
        result = replay.run(islice(SqlRequests(database).records({}), count))
        taken = time.perf_counter() - began
    if (result.decided, result.faults if new is None else []) != (count, []):
        sys.exit(f"{result.decided} of {count} were decided again; faults: {result.faults[:3]}")
    return taken


def opa_rate(bundle: Bundle, asked: list[bytes]) -> float | None:
    """Return how many requests a second one run of OPA decides, without its start."""
    opa = find_opa()
    if opa is None:
        return None
    data = {**bundle.data, "manifests": _manifests()}
    with Evaluator(opa, bundle.modules, data) as evaluator:
        times = []
        for some in (asked[:1], asked[: _OPA + 1]):
            began = time.perf_counter()
            evaluator.evaluate(some)
            times.append(time.perf_counter() - began)
    return _OPA / (times[1] - times[0])


def main() -> None:
    """Fill a database, measure, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    count = parser.parse_args().records
    bundle, seal = read_bundle(payments.BUNDLE), Requests(_KEY)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Database.open(f"sqlite:///{Path(folder, 'a.db')}", upgrade=True)) as database,
    ):
        fill(database, seal, count)
        asked = [body for _, body in bodies(min(count, 100_000))]
        opa = opa_rate(bundle, asked)
        with EmbeddedEngine(bundle, manifests=_manifests(), deadline=ENGINE_TIMEOUT) as engine:
            found: dict[str, list[float]] = {}
            for _ in range(_ROUNDS):
                found.setdefault("bare engine, evaluate alone", []).append(bare(engine.evaluate, asked))
                found.setdefault("bare engine, decide_body", []).append(bare(engine.decide_body, asked))
                taken = replayed(database, seal, bundle, None, count)
                found.setdefault("replay", []).append(count / taken)
        new = read_bundle(baseline_bundle_path())
        part, whole = (replayed(database, seal, bundle, new, some) for some in (count // 10, count))
    best = {name: max(rates) for name, rates in found.items()}
    print("bare engine: the bundle's WebAssembly in this process; two threads decide requests from a list")
    for name, rate in best.items():
        print(f"{name:<30} {rate:>8,.0f} a second")
    print(f"{'OPA, one run':<30} {opa or 0:>8,.0f} a second")
    ratio = best["replay"] / best["bare engine, decide_body"]
    _print_goal("replay / bare engine, decide_body", f"{ratio:.2f}", f"{_RATIO:g}", reached=ratio >= _RATIO)
    print(f"replay / bare engine, evaluate alone: {best['replay'] / best['bare engine, evaluate alone']:.2f}")
    each = (whole - part) / (count - count // 10)
    print(f"backtest: {count // 10} records in {part:.1f} s, {count} records in {whole:.1f} s")
    seconds = whole + (1_000_000 - count) * each
    _print_goal(
        "backtest of 1,000,000 records, s", f"{seconds:.0f}", f"{_A_MILLION:.0f}", reached=seconds <= _A_MILLION
    )


def _print_goal(what: str, value: str, goal: str, *, reached: bool) -> None:
    print(f"{what}: {value}, goal {goal}: {'reached' if reached else 'missed'}")


if __name__ == "__main__":
    main()
