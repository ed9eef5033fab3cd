"""A whole scenario file on one engine, or on both: run, compared, and diagnosed where it failed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pdp.workbench.explain.diagnosis import Diagnoses
from pdp.workbench.scenarios.results import SuiteRun
from pdp.workbench.scenarios.running.agreement import agreed
from pdp.workbench.scenarios.running.engines import open_engine
from pdp.workbench.scenarios.running.run import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pdp.workbench.scenarios.files.suite import Suite
    from pdp.workbench.scenarios.results import ScenarioResult


def run_suite(
    suite: Suite,
    engines: Sequence[str],
    *,
    selected: Callable[[str], bool] | None = None,
    opa_url: str | None = None,
    progress: Callable[[ScenarioResult], None] | None = None,
) -> Iterator[SuiteRun]:
    """Run the scenarios on each of the engines in turn. From the second on, decisions must be those of the first.

    Args:
        suite: the scenarios.
        engines: names of engines.
        selected: which names are run; all when absent. Nothing is given when none is.
        opa_url: a running OPA for `sidecar`.
        progress: is told of each scenario that was run.

    Raises:
        UsageError, BundleError, EngineError: as of `open_engine`.
    """
    chosen = [at for at, one in enumerate(suite.scenarios) if selected is None or selected(one.name)]
    if not chosen:
        return
    first: list[ScenarioResult] | None = None
    for name in engines:
        started = time.perf_counter()
        with open_engine(suite, name, opa_url=opa_url if name == "sidecar" else None) as engine:
            runner = Runner(suite, engine)
            diagnoses = Diagnoses(suite, runner)
            results, why = [], {}
            for position, at in enumerate(chosen):
                result = runner.run(at)
                if first is not None:
                    result = agreed(first[position], result)
                if not result.passed:
                    why[result.name] = diagnoses.of(result)
                results.append(result)
                if progress is not None:
                    progress(result)
        first = first or results
        yield SuiteRun(suite, name, tuple(results), why, time.perf_counter() - started)
