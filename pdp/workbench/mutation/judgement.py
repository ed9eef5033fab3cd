"""What came of a mutant, and which scenario saw to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdp.workbench.mutation.mutant import Fate, Mutant
    from pdp.workbench.mutation.proposal import Proposal


@dataclass(frozen=True, slots=True)
class Judgement:
    """One mutant's fate.

    Attributes:
        mutant: which one.
        fate: killed, survived, equivalent or invalid.
        by: of a killed one, the scenario that fails, as `FILE:LINE name`; of an invalid one, why; of an equivalent one,
            the reason that was stated; else None.
        unnoticed: of a survivor, how many recorded requests are decided differently, in what no expectation names.
        proposal: of a survivor, the scenario that would kill it, or what was searched; None when nobody searched.
    """

    mutant: Mutant
    fate: Fate
    by: str | None = None
    unnoticed: int = 0
    proposal: Proposal | None = None
