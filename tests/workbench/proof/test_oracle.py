"""The terms of all rules say what the engine says, on recorded requests with faults, and on small policies."""

from pathlib import Path

import pytest

from tests.workbench.proof.cases import mutated_cases, recorded_cases
from tests.workbench.proof.oracle import agreement, translated
from tests.workbench.proof.reading import Reading
from tests.workbench.proof.traps import TRAPS, engine_answers, module_of, probes

pytestmark = pytest.mark.opa

CASES = 250
SEED = 20261129


def test_terms_of_all_heads_agree_with_the_engine_on_requests_with_faults(opa: Path) -> None:
    recorded = recorded_cases()

    found = agreement(opa, recorded.modules, list(mutated_cases(recorded.suites, CASES, SEED)))

    assert found.different == []
    assert not found.unread
    assert all("path in its head" in reason for reason in found.outside.values())
    assert len(found.compared) >= 40
    assert sum(count > 0 for count in found.fired.values()) >= 30


def test_terms_of_small_policies_agree_with_the_engine_on_every_probe(opa: Path) -> None:
    pairs = [trap for trap in TRAPS if not trap.get("conflict")]
    answers = engine_answers(opa, pairs)
    reading = Reading()
    different = []
    for index, trap in enumerate(pairs):
        for side in ("old", "new"):
            _, found, outside = translated(opa, {"custom/concerns/trap/trap.rego": module_of(trap, side)})
            assert not outside, trap["about"]
            for formula in found.values():
                different += [
                    (trap["about"], side, case.given)
                    for case, answer in zip(probes(), answers, strict=True)
                    if answer is not None
                    and reading.on(case.given, case.data).read(formula) != answer[f"t{index}_{side}"]
                ]

    assert different == []
    assert None not in answers
