"""One budget and many callers at once: `python -m benchmarks.budgets [URL] [--callers 1000] [--processes 8]`.

Every caller proposes one wire to an enforcement point of its process; all of them share a daily limit. What is granted
without an approval has to stay within it, to the cent, and leave no room for what was refused. Without a URL it is a
new SQLite file; PostgreSQL's database has to be empty, or of an earlier run.
"""

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

from pdp import Database, EmbeddedEngine, Pep
from pdp.manifest.load import load_effective
from pdp.stores.sql.budgets import SqlBudgets

_CAP = 20_000
_MANIFEST = b"""
manifest_version: 2026.1.0
tools:
  - name: send_wire
    effect_class: commit-low
    risk_tier: low
    scopes: [wires]
    limits: [{limit: wire.daily, argument: amount, per: subject, window: {days: 1, from: midnight}}]
    schema: {type: object, required: [amount], properties: {amount: {type: number}}}
"""


def _calls(url: str, subject: str, amounts: list[float]) -> list[tuple[str, float]]:
    """Call once for each amount, all at once, and return verdict and amount of each."""
    manifest = load_effective("manifest.yaml", manifest_text=_MANIFEST)
    session = {"claims": {"sub": subject, "emts": {"wires": True}, "limits": {"wire.daily": _CAP}}}
    with (
        Database.open(url) as database,
        EmbeddedEngine.baseline(manifests={manifest.digest: manifest.document}) as engine,
        ThreadPoolExecutor(len(amounts)) as callers,
    ):
        pep = Pep(manifest, engine, tools={"send_wire": lambda amount: amount}, budgets=SqlBudgets(database))

        def call(amount: float) -> tuple[str, float]:
            evaluation = pep.call({"tool": "send_wire", "arguments": {"amount": amount}}, session)
            return (str(evaluation.verdict) if evaluation.allowed else ",".join(evaluation.codes)), amount

        return list(callers.map(call, amounts))


def main() -> int:
    """Print callers, granted, sum and cap; 1 where one unit too much was granted, or one too few."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budgets", description="One budget, many callers.")
    parser.add_argument("url", nargs="?")
    parser.add_argument("--callers", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=8)
    options = parser.parse_args()
    chance, subject = random.Random(options.callers), f"bench-{time.time_ns()}"  # noqa: S311 - for a run to be repeated
    amounts = [chance.randrange(1, 100_00) / 100 for _ in range(options.callers)]
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{Path(folder) / 'budgets.db'}"
        Database.open(url, upgrade=True).close()
        parts = [(url, subject, amounts[number :: options.processes]) for number in range(options.processes)]
        start = time.perf_counter()
        with multiprocessing.get_context("spawn").Pool(options.processes) as processes:
            answers = [answer for part in processes.starmap(_calls, parts) for answer in part]
        seconds = time.perf_counter() - start
    granted = sum((Decimal(str(amount)) for verdict, amount in answers if verdict == "ALLOW"), Decimal())
    asked = [amount for verdict, amount in answers if verdict == "limits.cumulative_exceeded"]
    others = sorted({verdict for verdict, _ in answers} - {"ALLOW", "limits.cumulative_exceeded"})
    print(f"callers {len(answers)} in {options.processes} processes, {seconds:.1f} s with their start")
    print(f"granted {len(answers) - len(asked)}, asked {len(asked)}, other answers {others or 'none'}")
    print(f"sum {granted}, cap {_CAP}, left {_CAP - granted}, smallest that was asked about {min(asked, default=None)}")
    wasted = bool(asked) and granted + Decimal(str(min(asked))) <= _CAP
    return 1 if granted > _CAP or wasted or others else 0


if __name__ == "__main__":
    sys.exit(main())
