"""The Claude Agent SDK: the conformance suite, and runs of its client with a scripted model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.claude_agent_sdk.target import TARGET
from tests.conformance.targets import outcome


@pytest.mark.process
def test_the_suite_passes(tmp_path: Path) -> None:
    cells = outcome(TARGET, tmp_path)

    assert {case: cell for case, cell in cells.items() if cell != "pass"} == {
        case: f"impossible: {why}" for case, why in TARGET.impossible.items()
    }
