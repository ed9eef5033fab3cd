"""The cases run on a target, and what came of each."""

from collections.abc import Iterable
from contextlib import closing
from itertools import groupby
from pathlib import Path

from pdp.testing.conformance.cases import CASES, Trial, UnsafeError
from pdp.testing.conformance.target import Target
from pdp.testing.conformance.world import World


def run(target: Target, folder: Path, cases: Iterable[str] = CASES) -> dict[str, str]:
    """Run cases and return what came of each: `pass`, `fail: WHY` or `impossible: WHY`.

    Cases of one setting share a client; one that cannot be opened or closed fails them. `folder` is for their worlds.
    """
    cells: dict[str, str] = {}
    for setting, group in groupby(cases, lambda case: CASES[case]["setting"]):
        own = list(group)
        try:
            with closing(World(folder / setting, setting, target.spelling)) as world, target.open(world) as client:
                cells |= {case: _cell(target.impossible.get(case), case, Trial(case, world, client)) for case in own}
        except Exception as error:  # noqa: BLE001 - whatever a target does is a finding
            cells |= dict.fromkeys(own, f"fail: not opened or closed: {error!r}")
    return cells


def _cell(impossible: str | None, case: str, trial: Trial) -> str:
    try:
        for step in CASES[case]["steps"]:
            getattr(trial, step["step"])(**{name: value for name, value in step.items() if name != "step"})
    except Exception as error:  # noqa: BLE001 - likewise
        harmless = isinstance(error, AssertionError | NotImplementedError) and not isinstance(error, UnsafeError)
        return f"impossible: {impossible}" if impossible and harmless else f"fail: {error!r}"
    finally:
        trial.engine_becomes("plain")
    return "fail: it is said to be impossible, and passes" if impossible else "pass"
