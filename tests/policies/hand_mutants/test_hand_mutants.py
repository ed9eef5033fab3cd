"""Each change by hand has the effect that its file states, and the unit tests of the changed module notice it."""

from pathlib import Path

import pytest

from tests.policies.hand_mutants.mutants import BACK_DOORS, WEAKENED, HandMutant, hand_mutants, sample
from tests.policies.hand_mutants.noticed import not_decided_as_stated, opens, run_unit_tests

pytestmark = [pytest.mark.opa, pytest.mark.process]

WEAKER = hand_mutants(*WEAKENED)
DOORS = hand_mutants(*BACK_DOORS)


def test_there_are_enough_of_each_class() -> None:
    names = [mutant.name for mutant in (*WEAKER, *DOORS)]

    assert len(WEAKER) >= 60
    assert len(DOORS) >= 20
    assert sorted(set(names)) == sorted(names)


def test_witnesses_are_decided_as_stated_without_any_change(opa: Path) -> None:
    assert not_decided_as_stated(opa, [*WEAKER, *DOORS]) == []


@pytest.mark.parametrize("mutant", sample(WEAKER, 24), ids=lambda mutant: mutant.name)
def test_unit_tests_of_the_module_notice_what_is_weakened(opa: Path, mutant: HandMutant) -> None:
    run = run_unit_tests(opa, mutant)

    assert run.effect, "the witness is not decided as the file states"
    assert run.failing, "no unit test notices"


@pytest.mark.parametrize("mutant", DOORS, ids=lambda mutant: mutant.name)
def test_a_back_door_opens(opa: Path, mutant: HandMutant) -> None:
    # No unit test can know of it: the differences of bundles are what notices rules that are added.
    assert opens(opa, mutant), "the witness is not decided as the file states"
