"""A small project for tests of mutation, whose scenarios miss certain mutants on purpose."""

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
"""The line number of the only condition in the Rego file."""


def wire(amount: float, **expect: Any) -> dict[str, Any]:
    """Return a scenario that proposes a wire of this amount."""
    return one(
        name=f"a wire of {amount}", propose={"tool": "send_wire", "arguments": {"amount": amount}}, expect=expect
    )


# The amounts are far from the limit, so that no scenario tests the limit itself.
WEAK = (wire(20, verdict="ALLOW"), wire(90, verdict="DENY", codes=["ceiling.reached"]))


def weak_project(folder: Path, *more: Any, **settings: Any) -> Path:
    """Write the project with these additional scenarios, and return the path of its scenario file."""
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
    run = MutationRun()
    marked = read_equivalents(marks)
    suites = [load_suite(file)]
    mutate(
        suites, opa=find_opa(), baseline=baseline, only=only, marked=marked, run=run, sample=sample, seed=seed
    )  # fmt: skip
    return run
