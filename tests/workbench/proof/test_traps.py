"""No pair of small policies is proved to be equal or narrower if the engine tells it apart."""

from pathlib import Path

import pytest

from pdp.workbench.proof.answers import HeadAnswer
from pdp.workbench.proof.compare import compare
from tests.workbench.proof.oracle import modules_of
from tests.workbench.proof.traps import TRAPS, engine_answers, module_of

pytestmark = pytest.mark.opa

COMPARED = [(f"t{index}", trap) for index, trap in enumerate(trap for trap in TRAPS if not trap.get("conflict"))]
SECONDS = 5.0


def answers(opa: Path, before: str, after: str) -> dict[str, HeadAnswer]:
    """Return the answers about all pairs by the name of their concern."""
    versions = (
        modules_of({f"custom/{name}.rego": module_of(trap, side, name) for name, trap in COMPARED})
        for side in (before, after)
    )
    found = compare(*versions, opa=opa, seconds=SECONDS, work=2_000_000, known=None)
    return {answer.concern.rpartition(".")[2]: answer for answer in found}


def test_pairs_that_the_engine_tells_apart_are_never_proved_to_be_alike(opa: Path) -> None:
    decided = engine_answers(opa, [trap for _, trap in COMPARED])
    wrong, missed = [], []
    for before, after in (("old", "new"), ("new", "old")):
        found = answers(opa, before, after)
        for name, trap in COMPARED:
            pairs = [(answer[f"{name}_{before}"], answer[f"{name}_{after}"]) for answer in decided if answer]
            word = found[name].word if name in found else "equal"
            if ((True, False) in pairs and word in ("equal", "narrower")) or (
                (False, True) in pairs and word == "equal"
            ):
                wrong.append((trap["about"], before, word))
            if trap.get("equal") and not trap.get("unproved") and word != "equal":
                missed.append((trap["about"], before, word))

    assert wrong == []
    assert missed == []


def test_definitions_that_may_conflict_are_not_proved(opa: Path) -> None:
    (trap,) = (trap for trap in TRAPS if trap.get("conflict"))
    versions = (modules_of({"custom/trap.rego": module_of(trap, side)}) for side in ("old", "new"))

    (answer,) = compare(*versions, opa=opa, seconds=SECONDS)

    assert (answer.word, answer.term.partition(":")[0]) == ("not proved", "definitions that may conflict")
