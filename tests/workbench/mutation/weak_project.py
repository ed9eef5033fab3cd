"""A small project whose scenarios are known to be weak in some places, for tests of mutation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pdp.opa.program import find_opa
from pdp.workbench.mutation.equivalents import read_equivalents
from pdp.workbench.mutation.run import MutationRun, mutate
from pdp.workbench.scenarios.files.suite import load_suite
from tests.support.scenario_files import one, project

MODULE = "custom/concerns/ceiling/ceiling.rego"
REGO = Path(__file__).with_name("ceiling.rego").read_text()
CONDITION = 15
"""The line of the only condition."""


def wire(amount: float, **expect: Any) -> dict[str, Any]:
    """A scenario of a wire."""
    return one(
        name=f"a wire of {amount}", propose={"tool": "send_wire", "arguments": {"amount": amount}}, expect=expect
    )


# A little and much: nothing shows where the one ends and the other begins.
WEAK = (wire(20, verdict="ALLOW"), wire(90, verdict="DENY", codes=["ceiling.reached"]))


def weak_project(folder: Path, *more: Any, **settings: Any) -> Path:
    """Write the project, with more scenarios, and return its scenario file."""
    module = folder / "policies" / MODULE
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text(REGO)
    return project(folder, *WEAK, *more, policies=["policies"], **settings)


def mutated(
    file: Path,
    *,
    only: str | None = None,
    baseline: bool = False,
    marks: Sequence[Path] = (),
    sample: int | None = None,
    seed: str = "",
) -> MutationRun:
    """What came of breaking a project."""
    run = MutationRun()
    marked = read_equivalents(marks)
    suites = [load_suite(file)]
    mutate(
        suites, opa=find_opa(), baseline=baseline, only=only, marked=marked, run=run, sample=sample, seed=seed
    )  # fmt: skip
    return run
