"""Each change made by hand alters the verdict of its witness, and unit tests notice every weakened rule."""

from pathlib import Path

import pytest

from tests.policies.hand_mutants.mutants import BACK_DOORS, WEAKENED, HandMutant, hand_mutants, sample
from tests.policies.hand_mutants.noticed import not_decided_as_stated, opens, run_unit_tests

pytestmark = [pytest.mark.opa, pytest.mark.process]

WEAKER = hand_mutants(*WEAKENED)
DOORS = hand_mutants(*BACK_DOORS)


def test_hand_mutant_files_have_enough_policy_changes_with_unique_names() -> None:
    names = [mutant.name for mutant in (*WEAKER, *DOORS)]

    assert len(WEAKER) >= 60
    assert len(DOORS) >= 20
    assert sorted(set(names)) == sorted(names)


def test_unchanged_policies_give_each_witness_request_the_verdict_stated_in_the_file(opa: Path) -> None:
    assert not_decided_as_stated(opa, [*WEAKER, *DOORS]) == []


@pytest.mark.parametrize("mutant", sample(WEAKER, 12), ids=lambda mutant: mutant.name)
def test_unit_tests_notice_a_weakened_rule(opa: Path, mutant: HandMutant) -> None:
    run = run_unit_tests(opa, mutant)

    assert run.effect, "the witness does not get the verdict in the file"
    assert run.failing, "no unit test fails"


@pytest.mark.parametrize("mutant", DOORS, ids=lambda mutant: mutant.name)
def test_back_door_gives_its_witness_request_the_changed_verdict_stated_in_the_file(
    opa: Path, mutant: HandMutant
) -> None:
    # Unit tests cannot find a back door, because it is an added rule or condition. The bundle diff finds it.
    assert opens(opa, mutant), "the witness does not get the verdict in the file"
