"""Run the cases of the suite on a target."""

from collections.abc import Iterable
from contextlib import closing
from itertools import groupby
from pathlib import Path

from pdp.testing.conformance.cases import CASES, Trial, UnsafeError
from pdp.testing.conformance.target import Target
from pdp.testing.conformance.world import World


def run(target: Target, folder: Path, cases: Iterable[str] = CASES) -> dict[str, str]:
    """Run cases on a target and return their results by name: `pass`, `fail: WHY` or `impossible: WHY`.

    Consecutive cases with the same setting share a client. If a client cannot be opened or closed, its cases fail.

    Args:
        target: the enforcement point with its client.
        folder: an empty folder for the files of the cases.
        cases: names in `CASES`; all cases by default.

    Examples:
        >>> run(target, Path("worlds"), ["allow"])  # doctest: +SKIP
        {'allow': 'pass'}
    """
    cells: dict[str, str] = {}
    for setting, group in groupby(cases, lambda case: CASES[case]["setting"]):
        own = list(group)
        try:
            with closing(World(folder / setting, setting, target.spelling)) as world, target.open(world) as client:
                cells |= {case: _cell(target.impossible.get(case), case, Trial(case, world, client)) for case in own}
        except Exception as error:  # noqa: BLE001 - any error of a target is a result
            cells |= dict.fromkeys(own, f"fail: not opened or closed: {error!r}")
    return cells


def _cell(impossible: str | None, case: str, trial: Trial) -> str:
    try:
        for step in CASES[case]["steps"]:
            getattr(trial, step["step"])(**{name: value for name, value in step.items() if name != "step"})
    except Exception as error:  # noqa: BLE001 - any error of a target is a result
        harmless = isinstance(error, AssertionError | NotImplementedError) and not isinstance(error, UnsafeError)
        return f"impossible: {impossible}" if impossible and harmless else f"fail: {error!r}"
    finally:
        trial.engine_becomes("plain")
    return "fail: the case passes, although the target calls it impossible" if impossible else "pass"
