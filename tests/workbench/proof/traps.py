"""Pairs of small policies that a prover easily takes for equal, and inputs that tell them apart."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

import yaml

from tests.workbench.proof.cases import Case, answers_of

TRAPS: Final[list[dict[str, Any]]] = yaml.safe_load(Path(__file__).with_name("traps.yaml").read_text())

_ABSENT: Final = object()
_FIRST: Final[tuple[Any, ...]] = (
    _ABSENT, None, False, True, 0, 1, 2, 4.5, 5, 6, -1, 0.1, 1.5, 2**53, 2**53 + 1, 2**53 + 2, "", "x", "y", "xy", "X",
    " ", "1", "b", "ab", [], ["x"], ["x", "x"], ["y", "x"], ["x", "y"], [1], [1, 1], [0], [2, 3], [2, 3, 3],
    [1, 7], [7, 0],
    [1, 1, 2], [False], [None], [True], [[1]], [{"b": 1}], [{"b": False}], [{}], {}, {"x": 1}, {"x": False}, {"x": "x"},
    {"y": "x"}, {"b": 1}, {"b": 2}, {"b": None}, {"0": 1}, {"0": 0, "x": "x"}, [0, 1], ["y"], [None, 1],
)  # fmt: skip
_SECOND: Final[tuple[Any, ...]] = (_ABSENT, None, False, 1, 2, "x", [], [1], [1, 2], [1, 1])


@cache
def probes() -> tuple[Case, ...]:
    """Return inputs with every pair of two fields."""
    data: dict[str, Any] = {root: {} for root in ("config", "directory", "manifests", "settings")}
    pairs = product(_FIRST, _SECOND)
    return tuple(
        Case({name: value for name, value in (("a", a), ("b", b)) if value is not _ABSENT}, dict(data))
        for a, b in pairs
    )


def module_of(trap: dict[str, Any], side: str, concern: str = "trap") -> str:
    """Return the text of one side of a pair, in the package of a concern."""
    imported = "import rego.v2\n" if trap.get("rego.v2") else ""
    return f"package custom.concerns.{concern}\n{imported}\n{trap[side]}\n"


def engine_answers(opa: Path, traps: list[dict[str, Any]]) -> list[dict[str, bool] | None]:
    """Return for each probe which sides of which pairs fire, as `INDEX_SIDE`."""
    sides = [(f"t{index}_{side}", side, trap) for index, trap in enumerate(traps) for side in ("old", "new")]
    modules = {f"custom/concerns/{name}/{name}.rego": module_of(trap, side, name) for name, side, trap in sides}
    names = {f"data.custom.concerns.{name}.deny": name for name, _, _ in sides}
    answers = answers_of(opa, modules, list(names), probes())
    return [answer and {names[document]: value for document, value in answer.items()} for answer in answers]
