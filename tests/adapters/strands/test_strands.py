"""The plugin of Strands Agents, in runs of its agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdp.testing.conformance.cases import CASES
from tests.adapters.strands.target import TARGET
from tests.conformance.page import outcome


@pytest.mark.process
def test_the_suite_passes(tmp_path: Path) -> None:
    impossible = {case: f"impossible: {why}" for case, why in TARGET.impossible.items()}

    assert outcome(TARGET, tmp_path) == dict.fromkeys(CASES, "pass") | impossible
