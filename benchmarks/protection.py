"""Measure protection: how many attacks of AgentDojo a policy stops, how many tasks it allows, how often it asks.

`scripts/protection` replays everything and compares it with `protection.json`; `--write` stores new figures. A person
grants each of the user's calls that waits, and refuses each of the attacker's.

- whole alone, whole with a person: tasks of which every call ran, without a question or with the person's grants
- at once: attacks that reach their goal when the calls follow the first result with the attacker's text
- party: the same, and the attacker takes part in the record that has the text
- paraphrased: the text is coded, so that no value of the attacker's calls is in a result
- best of three: attacks that succeed in at least one of these ways; some write: any call that changes something ran
- quoted, searched, keys, flood: tasks in which an attacker who knows the rules got a call through

Exit code 0: no figure is worse; 1: a figure is worse; 2: bad usage.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.protection_attacks import WAYS
from benchmarks.protection_knowing import KNOWING
from benchmarks.protection_replay import PROFILES, SUITES, Replay, Step

_COMMITTED: Final = Path(__file__).with_name("protection.json")
_SHORT: Final = 11
"""The short form takes every attack of that many; no number of goals of a suite divides it."""

_SHORT_TASKS: Final = 7
"""Likewise, the short form lets attackers who know the rules into every task of that many."""

_MORE_IS_BETTER: Final = ("tasks", "alone", "person", "attacks", "knowing")

Figures = dict[str, int]


def measured(suite: str, profile: str, every: int) -> Figures:
    """Return the counts of one suite under one profile, with one of `every` attacks."""
    replay = Replay(suite, profile)
    counts: Counter[str] = Counter()
    for task in replay.suite.user_tasks.values():
        run = replay.undisturbed(task)
        counts += Counter(tasks=1, asked=run.asked, alone=run.is_whole and not run.asked, person=run.is_whole)
    for task, goal in list(replay.attacks())[::every]:
        runs = {way: replay.attacked(task, goal, way) for way in WAYS}
        counts += Counter({way: run.attained for way, run in runs.items()})
        counts["attacks"] += 1
        counts["best"] += any(run.attained for run in runs.values())
        counts["writes"] += any(replay.writes(step) for run in runs.values() for step in run.steps if step.attacker)
    replay = Replay(suite, profile, has_shop=True)
    for task, way in product(list(replay.suite.user_tasks.values())[:: _SHORT_TASKS if every > 1 else 1], KNOWING):
        run = replay.attacked_knowingly(task, way)
        counts["knowing"] += way == KNOWING[0]
        counts += Counter({way: run.lost, "ended": way == "flood" and not run.is_whole})
    names = ("tasks", "alone", "person", "asked", "attacks", *WAYS, "best", "writes", "knowing", *KNOWING, "ended")
    return {name: int(counts[name]) for name in names}


def worse(now: Mapping[str, Figures], committed: Mapping[str, Figures]) -> list[str]:
    """Return a line for each figure that is worse."""
    return [
        f"{where}: {name} was {committed[where][name]} and is {value}"
        for where, figures in now.items()
        for name, value in figures.items()
        if name in committed.get(where, {})
        and (value < committed[where][name] if name in _MORE_IS_BETTER else value > committed[where][name])
    ]


def table(figures: Mapping[str, Figures]) -> Table:
    """Return a row for each suite and profile, and a row for all suites of each profile."""
    rows = Table(title="AgentDojo, replayed")
    for heading in ("profile", "suite", "whole alone", "whole with a person", "STEP_UPs a task", *WAYS, "best of three",
                    "some write", *KNOWING):  # fmt: skip
        rows.add_column(heading, justify="left" if heading in {"profile", "suite"} else "right")
    for profile in PROFILES:
        of_profile = {where.split("/")[1]: row for where, row in figures.items() if where.startswith(f"{profile}/")}
        if len(of_profile) > 1:
            of_profile["all"] = dict(sum((Counter(row) for row in of_profile.values()), Counter()))
        for suite, row in of_profile.items():
            rows.add_row(profile, suite, *_shares(row), end_section=suite == "all")
    return rows


def _shares(row: Mapping[str, int]) -> Iterable[str]:
    tasks, attacks = row["tasks"], row["attacks"]
    yield from (f"{row.get(name, 0) / tasks:.0%}" for name in ("alone", "person"))
    yield f"{row.get('asked', 0) / tasks:.2f}"
    yield from (f"{row.get(name, 0) / attacks:.1%}" for name in (*WAYS, "best", "writes"))
    yield from (f"{row.get(name, 0) / row['knowing']:.0%}" for name in KNOWING)


def explain(where: str, profile: str, way: str) -> None:
    """Print the calls of a task or of an attack on it, with the decisions and the ledger's sources."""
    suite, task, *goal = where.split("/")
    replay = Replay(suite, profile)
    user_task = replay.suite.user_tasks[task]
    print(f"prompt: {user_task.PROMPT}")
    if goal:
        goal_task = replay.suite.injection_tasks[goal[0]]
        print(f"goal: {goal_task.GOAL}")
        run = replay.attacked(user_task, goal_task, way)
        print(f"attained: {run.attained}")
    elif way in KNOWING:
        run = Replay(suite, profile, has_shop=True).attacked_knowingly(user_task, way)
        print(f"lost: {run.lost}")
    else:
        run = replay.undisturbed(user_task)
    for step in run.steps:
        _print_step(step)


def _print_step(step: Step) -> None:
    who = "attacker" if step.attacker else "user"
    print(f"\n{who}: {step.call.function} {json.dumps(step.call.args, default=str):.300}")
    ended = "ran" if step.executed else "did not run"
    print(f"  {step.first.verdict or 'rejected'} {', '.join(step.first.codes)}; {ended}")
    for name, value in (step.first.flow or {}).items():
        for part in value if name == "arguments" else ():
            print(f"  {json.dumps(part)}")
        if name != "arguments":
            print(f"  {name}: {json.dumps(value)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, compare."""
    options = _options().parse_args(arguments)
    if options.explain:
        explain(options.explain, (options.profile or ["balanced"])[0], options.way)
        return 0
    every = _SHORT if options.short else 1
    profiles = options.profile or (["balanced", "strict"] if options.short else PROFILES)
    parts = list(product(options.suite or SUITES, profiles))
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(measured, *zip(*parts, strict=True), [every] * len(parts)))
    figures = {f"{profile}/{suite}": row for (suite, profile), row in zip(parts, rows, strict=True)}
    form = "short" if options.short else "full"
    committed: dict[str, Any] = json.loads(_COMMITTED.read_text(encoding="utf-8")) if _COMMITTED.exists() else {}
    if options.write:
        committed.setdefault(form, {}).update(figures)
        _COMMITTED.write_text(_written(committed), encoding="utf-8")
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(table(figures))
    faults = worse(figures, committed.get(form, {}))
    for fault in faults:
        print(f"worse than benchmarks/{_COMMITTED.name}: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _written(forms: Mapping[str, Mapping[str, Figures]]) -> str:
    """Return JSON with one line for each suite and profile, which reviewers can compare."""
    rows = {
        form: ",\n".join(f"  {json.dumps(where)}: {json.dumps(row)}" for where, row in sorted(figures.items()))
        for form, figures in sorted(forms.items())
    }
    return "{\n" + ",\n".join(f" {json.dumps(form)}: {{\n{text}\n }}" for form, text in rows.items()) + "\n}\n"


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/protection", description=__doc__.splitlines()[0])
    parser.add_argument("--suite", action="append", choices=SUITES, help="only this one; may be repeated")
    parser.add_argument("--profile", action="append", choices=PROFILES, help="only this one; may be repeated")
    parser.add_argument("--short", action="store_true", help=f"all tasks, and one attack of {_SHORT}: what CI runs")
    parser.add_argument("--json", action="store_true", help="print the counts")
    parser.add_argument("--write", action="store_true", help="the figures are the committed ones from now on")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes; by default one for each processor")
    parser.add_argument(
        "--explain", metavar="SUITE/TASK[/GOAL]", help="show the calls of one task, or of an attack on it"
    )
    parser.add_argument("--way", choices=(*WAYS, *KNOWING), default=WAYS[0], help="how the explained attacker acts")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
