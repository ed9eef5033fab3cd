"""The cases run on a target, and what came of each."""

from __future__ import annotations

from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from pdp.testing.conformance.cases import CASES, Case, NotConformantError
from pdp.testing.conformance.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pdp.testing.conformance.target import Target, ToolClient


class Cell(NamedTuple):
    """What came of a case: `pass`, `fail` or `impossible`; and why, where it is not `pass`."""

    status: str
    why: str = ""


def run(target: Target, folder: Path, cases: Iterable[Case] = CASES) -> dict[str, Cell]:
    """Run the cases and return what came of each, by name; `folder`: where their worlds are made.

    Cases of one setting share a client. One that cannot be opened or closed fails all of them.
    """
    cells: dict[str, Cell] = {}
    for setting, group in groupby(cases, lambda case: case.setting):
        own = list(group)
        try:
            with closing(World(folder / setting, setting, target.spelling)) as world, target.open(world) as client:
                cells |= {case.name: _cell(case, target.impossible.get(case.name, ""), world, client) for case in own}
        except Exception as error:  # noqa: BLE001 - whatever a target does is a finding
            cells |= {case.name: Cell("fail", f"not opened or closed: {error!r}") for case in own}
    return cells


def _cell(case: Case, impossible: str, world: World, client: ToolClient) -> Cell:
    try:
        case.run(world, client)
    except NotConformantError as error:
        return Cell("impossible", impossible) if impossible and not error.unsafe else Cell("fail", str(error))
    except Exception as error:  # noqa: BLE001 - likewise
        known = impossible and isinstance(error, NotImplementedError)
        return Cell("impossible", impossible) if known else Cell("fail", f"the client raises {error!r}")
    finally:
        world.engine.become("plain")
    return Cell("fail", "it is said to be impossible, and passes") if impossible else Cell("pass")
