"""Requests for the differential oracle: recorded calls of all scenarios, and these calls with faults of every kind."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from pdp.errors import UsageError
from pdp.opa.evaluation import Evaluator
from pdp.workbench.mutation.trial import record
from pdp.workbench.neighbours.values import as_dict, at
from pdp.workbench.scenarios.files.suite import find_suites, load_suite, policy_modules
from pdp.workbench.scenarios.running.engines import whole_data
from tests.support import ROOT

_ROOTS: Final = ("config", "directory", "manifests", "settings")
_TOOL: Final = ("action", "properties", "tool")
_DIGEST: Final = ("action", "properties", "manifest_digest")


class Case(NamedTuple):
    """A request, and the data on which it is decided."""

    given: Any
    data: dict[str, Any]


class Recorded(NamedTuple):
    """The modules of all suites together, and the recorded calls of each suite's scenarios."""

    modules: dict[str, str]
    suites: tuple[tuple[Case, ...], ...]


@cache
def recorded_cases() -> Recorded:
    """Return the calls of all scenarios of this project and its examples, each with the data that it needs."""
    modules: dict[str, str] = {}
    suites: list[tuple[Case, ...]] = []
    for file in (*find_suites([ROOT / "tests/scenarios"]), *sorted(ROOT.glob("examples/*/scenarios.yaml"))):
        suite = load_suite(file)
        modules |= {path: module.text for path, module in policy_modules(suite).items()}
        (ran,) = record([suite])
        data = whole_data(suite)
        bodies = {answer.body: None for result in ran.results for step in result.steps for answer in step.answers}
        if bodies:
            suites.append(tuple(Case(given, _small_data(given, data)) for given in map(orjson.loads, bodies)))
    return Recorded(modules, tuple(suites))


def _small_data(given: Any, data: dict[str, Any]) -> dict[str, Any]:
    """Return the data without entries of tools that a request does not call."""
    found = {root: data.get(root, {}) for root in _ROOTS}
    digest, tool = at(given, _DIGEST), at(given, _TOOL)
    manifest = found["manifests"].get(digest) if isinstance(digest, str) else None
    if not isinstance(manifest, dict):
        return found | {"manifests": {}}
    tools = {name: entry for name, entry in as_dict(manifest.get("tools")).items() if name == tool}
    return found | {"manifests": {digest: {**manifest, "tools": tools}}}


HOSTILE: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 1.5, -0.25, 0.1, 2**53 - 1, 2**53 + 1, -(2**53) - 1, 10**19, 1e-7, "", "x", "pii",
    "\u0000", "\U0001f600", "é", "<undefined>", " ", [], [[]], [None], [False], ["a", 1], ["pii", "pii"], {}, {"": {}},
    {"a": None}, "a.b", "true", "0", [0, "0", None, {}], {"0": "a"},
)  # fmt: skip


def mutated_cases(suites: Sequence[Sequence[Case]], count: int, seed: int) -> Iterator[Case]:
    """Yield cases with up to four faults each. Some have none. The faults are in the request or in the data."""
    rng = random.Random(seed)  # noqa: S311 - the same requests for a seed
    for number in range(count):
        cases = suites[rng.randrange(len(suites))]
        base = cases[rng.randrange(len(cases))]
        given, data = copy.deepcopy(base.given), copy.deepcopy(base.data)
        for _ in range((0, 1, 1, 2, 4)[number % 5]):
            other = cases[rng.randrange(len(cases))]
            if rng.random() < 0.25:
                _spoil(rng, data["manifests" if rng.random() < 0.8 else "directory"], other.data["manifests"])
            else:
                _spoil(rng, given, other.given)
        yield Case(given, data)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from _places(item, (*path, key))


def _spoil(rng: random.Random, document: Any, other: Any) -> None:
    """Change one value of a document: drop it, change its type or its value, or take the other document's value."""
    places = list(_places(document))
    if not places:
        return
    *way, last = place = rng.choice(places)
    holder = at(document, tuple(way)) if way else document
    old, kind = holder[last], rng.randrange(8)
    if kind < 2:
        del holder[last]
    elif kind == 2 and isinstance(old, list):
        holder[last] = rng.choice(([*old, rng.choice(HOSTILE)], [*old, *old], old[::-1], [], old[:1], [[*old]]))
    elif kind == 3 and isinstance(old, int | float) and not isinstance(old, bool):
        holder[last] = rng.choice((old + 1, old - 1, -old, old * 10**15, old + 0.5, str(old)))
    elif kind == 4 and isinstance(old, str):
        texts = [value for path in places if isinstance(value := at(document, path), str)]
        holder[last] = rng.choice((rng.choice(texts), f" {old}", old.upper(), f"{old}é", [old], {old: old}))
    elif kind == 5:
        found = at(other, place)
        holder[last] = copy.deepcopy(found) if isinstance(found, str | int | float | list | dict | None) else None
    elif isinstance(holder, dict) and kind == 6:
        holder[str(rng.choice(places)[-1]) if rng.random() < 0.5 else last] = rng.choice(HOSTILE)
    else:
        holder[last] = rng.choice(HOSTILE)


def answers_of(
    opa: Path, modules: dict[str, str], documents: Sequence[str], cases: Sequence[Case]
) -> list[dict[str, bool] | None]:
    """Return for each case which documents the engine finds to hold; None if the evaluation fails.

    A set holds if it has items. Another value holds if it is neither undefined nor false.
    """
    fields = ", ".join(f'"{name}": [found | found := {name}; found != false; found != set()]' for name in documents)
    # Each value of `with` is a variable: OPA evaluates a path of two or more names there wrongly.
    roots = "; ".join(f"{root} := e.data.{root}" for root in _ROOTS)
    given = " ".join(f"with data.{root} as {root}" for root in _ROOTS)
    query = f"[[i, x] | some i, e in input; given := e.given; {roots}; x := {{{fields}}} with input as given {given}]"
    answers: list[dict[str, bool] | None] = [None] * len(cases)
    with Evaluator(opa, modules, {}) as evaluator:
        pending = [range(len(cases))] if cases else []
        while pending:
            part = pending.pop()
            body = json.dumps([{"given": cases[index].given, "data": cases[index].data} for index in part]).encode()
            try:
                found = evaluator.query(query, body)["result"][0]["expressions"][0]["value"]
            except UsageError as error:
                if "eval_" not in error.message:
                    raise
                if len(part) > 1:
                    pending += [part[: len(part) // 2], part[len(part) // 2 :]]
                continue
            for position, values in found:
                answers[part[position]] = {name: bool(value) for name, value in values.items()}
    return answers
