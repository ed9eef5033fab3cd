"""Measure the speed of a decision as ratios within one run: `scripts/bench`, or `scripts/bench --quick` for a first
look.

Each figure is a median. The compared calls alternate. The example is the wire of 20,000 of the payments manifest. Its
released bundle has eleven concerns of the baseline and one of the example.
"""

import argparse
import asyncio
import http.client
import json
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, UnixConnector

from benchmarks.measuring import medians, throughput
from pdp import MemoryAudit, Pep
from pdp.engine.bundle.file import read_bundle
from pdp.engine.opa.engine import SidecarEngine
from pdp.engine.protocol import Engine
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.json import canonical, digest
from pdp.manifest.effective import EffectiveManifest
from pdp.opa.local import local_opa
from pdp.opa.program import find_opa
from pdp.request import Entity, Request, RequestedAction
from tests.support import payments

_TOOLS = (10, 1_000, 10_000)
_KEPT = 1000
_PATH = "/v1/data/authz/decision?strict-builtin-errors=true&provenance=true"


class Bench:
    """One run."""

    def __init__(self, calls: int, seconds: float, stack: ExitStack) -> None:
        self.calls = calls
        self.seconds = seconds
        self.figures: dict[str, float] = {}
        self.goals: list[dict[str, Any]] = []
        self.proposal = payments.wire(amount=20000)
        self.session = payments.session()
        self.bundle = read_bundle(payments.BUNDLE)
        self.effective = payments.effective()
        self.embedded = stack.enter_context(EmbeddedEngine(self.bundle))
        asked = Pep(self.effective, self.embedded).decide(self.proposal, self.session).request
        if asked is None:
            raise RuntimeError("the example's wire is not decided")
        self.asked = asked
        self.request = Request(
            Entity(**asked["subject"]),
            RequestedAction(**asked["action"]),
            Entity(**asked["resource"]),
            asked["context"],
        )
        self.body = self.request.canonical()
        self.opa = stack.enter_context(local_opa(_opa(), bundle=self.bundle))
        self.sidecar = stack.enter_context(SidecarEngine(self.opa.url))

    def pep(self, engine: Engine, effective: EffectiveManifest | None = None) -> Callable[[], object]:
        """Return one `Pep.decide` of the wire on an engine, its audit in memory."""
        pep = Pep(effective or self.effective, engine, audit=_Forgetful())
        if not pep.decide(self.proposal, self.session).allowed:
            raise RuntimeError("the example's wire is not allowed")
        return lambda: pep.decide(self.proposal, self.session)

    def note(self, figures: dict[str, float]) -> dict[str, float]:
        """Add figures to the table."""
        self.figures |= figures
        return figures

    def goal(self, what: str, value: float, *, at_most: float | None = None, at_least: float | None = None) -> None:
        """Add a figure with a goal."""
        bound = at_most if at_most is not None else at_least
        if bound is None:
            raise TypeError("a goal has a bound")
        reached = value <= bound if at_most is not None else value >= bound
        kind = "at least" if at_most is None else "at most"
        self.goals.append({"what": what, "value": value, "bound": f"{kind} {bound:g}", "reached": reached})


class _Forgetful(MemoryAudit):
    """A stream in memory that keeps the last thousand lines; with a hundred thousand the allocator would dominate."""

    def _write(self, line: bytes, line_hash: str) -> None:
        super()._write(line, line_hash)
        if len(self._lines) > _KEPT:
            self._lines.clear()


def _opa() -> Path:
    found = find_opa()
    if found is None:
        sys.exit("OPA is not there: run `pdp opa install`")
    return found


def embedded(bench: Bench) -> None:
    """Compare `Pep.decide` and `Engine.decide` with the WebAssembly alone."""
    found = bench.note(
        medians(
            {
                "embedded: evaluate (WebAssembly alone)": lambda: bench.embedded.evaluate(bench.body),
                "embedded: Engine.decide (bare engine)": lambda: bench.embedded.decide(bench.request),
                "embedded: Pep.decide": bench.pep(bench.embedded),
            },
            bench.calls,
        )
    )
    alone, engine, pep = found.values()
    bench.goal("Engine.decide adds to its WebAssembly, µs", engine - alone, at_most=45)
    bench.goal("Pep.decide adds to the bare engine, µs", pep - engine, at_most=60)


def tools(bench: Bench) -> None:
    """Compare a manifest of 10 tools with larger ones."""
    with ExitStack() as stack:
        cases = {}
        for count in _TOOLS:
            effective = _widened(bench.effective, count)
            engine = EmbeddedEngine(bench.bundle, manifests={effective.digest: effective.document})
            cases[f"embedded: Pep.decide, {count:,} tools"] = bench.pep(stack.enter_context(engine), effective)
        found = bench.note(medians(cases, bench.calls))
    few, *_, many = found.values()
    bench.goal("10,000 tools / 10 tools", many / few, at_most=1.1)


def _widened(effective: EffectiveManifest, count: int) -> EffectiveManifest:
    wire = effective.tools["initiate_wire"]
    more = {f"initiate_wire_{number}": wire for number in range(count - len(effective.tools))}
    entry = effective.document["tools"]["initiate_wire"]
    entries = {name: {**entry, "name": name, "pdp_action": name} for name in more}
    document = {**effective.document, "tools": {**effective.document["tools"], **entries}}
    return replace(effective, document=document, digest=digest(canonical(document)))


def threads(bench: Bench) -> None:
    """Compare two threads with one."""
    decide = bench.pep(bench.embedded)
    evaluate = lambda: bench.embedded.decide_body(bench.body)  # noqa: E731 - a case like the others
    for name, case in (("Pep.decide", decide), ("Engine.decide, canonical bytes", evaluate)):
        rates: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(3):
            for count, taken in rates.items():
                taken.append(throughput(case, count, bench.seconds))
        one, two = (sorted(taken)[1] for taken in rates.values())
        bench.note({f"{name}, 1 thread, per s": one, f"{name}, 2 threads, per s": two})
        bench.goal(f"{name}: 2 threads / 1 thread", two / one, at_least=1.6)


class _UnixConnection(http.client.HTTPConnection):
    """A connection that stays open on a Unix socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.host)

    def ask(self, body: bytes) -> bytes:
        """Send one question and return the body of the answer."""
        self.request("POST", _PATH, b'{"input":' + body + b"}", {"Host": "opa", "Content-Type": "application/json"})
        return self.getresponse().read()


def sidecar(bench: Bench) -> None:
    """Compare `Pep.decide` through OPA with a bare request to the same OPA, one at a time."""
    bare = _UnixConnection(bench.opa.url.removeprefix("unix://"))
    cases = {
        "sidecar: bare request": lambda: bare.ask(bench.body),
        "sidecar: Engine.decide (bare engine)": lambda: bench.sidecar.decide(bench.request),
        "sidecar: Pep.decide": bench.pep(bench.sidecar),
    }
    found = bench.note(medians(cases, bench.calls // 4))
    bare.close()
    bench.goal(
        "sidecar Pep.decide / bare request", found["sidecar: Pep.decide"] / found["sidecar: bare request"], at_most=1.6
    )


def callers(bench: Bench) -> None:
    """Compare 16 concurrent callers with the same number of plain aiohttp requests."""

    async def rate(ask: Callable[[], Coroutine[Any, Any, object]], count: int) -> float:
        done = 0
        end = time.perf_counter() + bench.seconds

        async def work() -> None:
            nonlocal done
            while time.perf_counter() < end:
                await ask()
                done += 1

        start = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(count)))
        return done / (time.perf_counter() - start)

    async def both() -> dict[str, float]:
        found: dict[str, list[float]] = {}
        socket_path = bench.opa.url.removeprefix("unix://")
        async with (
            ClientSession(connector=UnixConnector(path=socket_path, limit=16)) as session,
            SidecarEngine(bench.opa.url) as engine,
        ):

            async def bare() -> bytes:
                headers = {"Content-Type": "application/json"}
                content = b'{"input":' + bench.body + b"}"
                async with session.post(f"http://localhost{_PATH}", data=content, headers=headers) as response:
                    return await response.read()

            pep = Pep(bench.effective, engine, audit=_Forgetful())
            for _ in range(3):
                for count in (1, 16):
                    for name, ask in (
                        ("bare aiohttp", bare),
                        ("Pep.adecide", lambda: pep.adecide(bench.proposal, bench.session)),
                    ):
                        taken = await rate(ask, count)
                        found.setdefault(f"sidecar: {name}, {count} callers, per s", []).append(taken)
        return {name: sorted(taken)[1] for name, taken in found.items()}

    found = bench.note(asyncio.run(both()))
    ratio = found["sidecar: Pep.adecide, 16 callers, per s"] / found["sidecar: bare aiohttp, 16 callers, per s"]
    bench.goal("16 callers: Pep.adecide / bare aiohttp", ratio, at_least=0.8)


def processes(bench: Bench) -> None:
    """Time cold starts: the import, and `pdp decide` as a process."""
    example = payments.EXAMPLE
    proposal = json.dumps(bench.proposal)
    decide = [
        sys.executable, "-m", "pdp", "decide", "-", "-m", example / "manifest.json", "-g", example / "governance.yaml",
        "-s", example / "session.json", "--json",
    ]  # fmt: skip

    def started(command: list[Any], text: str = "") -> Callable[[], object]:
        def run() -> object:
            return subprocess.run(command, input=text, capture_output=True, text=True, check=True)

        return run

    found = medians(
        {
            "python": started([sys.executable, "-c", ""]),
            "import pdp": started([sys.executable, "-c", "import pdp"]),
            "from pdp import Pep, EmbeddedEngine": started(
                [sys.executable, "-c", "from pdp import Pep, EmbeddedEngine"]
            ),
            "pdp decide": started(decide, proposal),
        },
        calls=20,
    )
    milliseconds = {f"{name}, ms": taken / 1000 for name, taken in found.items()}
    bench.note(milliseconds)
    bench.goal(
        "import pdp, ms above an empty Python", milliseconds["import pdp, ms"] - milliseconds["python, ms"], at_most=150
    )
    bench.goal("pdp decide as a whole process, ms", milliseconds["pdp decide, ms"], at_most=600)


def main() -> int:
    """Run every part, print and write the figures; return 1 if a goal was missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the calls: a first look, not a figure to quote"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.json", help="where the JSON goes")
    options = parser.parse_args()
    with ExitStack() as stack:
        bench = Bench(400 if options.quick else 4000, 0.3 if options.quick else 2.0, stack)
        for part in (embedded, tools, threads, sidecar, callers, processes):
            print(f"{part.__name__} ...", file=sys.stderr, flush=True)
            part(bench)
    _print(bench)
    machine = {"python": platform.python_version(), "machine": platform.machine()}
    written = machine | {"figures": bench.figures, "goals": bench.goals}
    options.out.write_text(json.dumps(written, indent=2) + "\n")
    print(f"written to {options.out}")
    return 0 if all(goal["reached"] for goal in bench.goals) else 1


def _print(bench: Bench) -> None:
    print("Medians (µs, unless the name says otherwise)")
    for name, figure in bench.figures.items():
        print(f"{name:60} {figure:12,.1f}")
    for goal in bench.goals:
        print(f"{goal['what']:60} {goal['value']:12.2f}  {goal['bound']}: {'reached' if goal['reached'] else 'missed'}")


if __name__ == "__main__":
    sys.exit(main())
