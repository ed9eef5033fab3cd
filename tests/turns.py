"""Tests that take turns in CI: what is slow, starts programs, and repeats on many inputs what few of them would show.

`pytest` runs all of them; with `--by-turns N`, one in N, and those of which one of the last commits touches a subject.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from scripts.rotation import commits, touched

_RECENT: Final = "--max-count=5"

_GATE: Final = ("pdp/workbench/gate/", "pdp/workbench/diff/")

SUBJECTS: Final = {
    "tests/conformance/test_targets.py": ("pdp/hooks/", "pdp/gateway/", "pdp/testing/", "tests/conformance/"),
    "tests/end_to_end/pages/test_policy_change_page.py": ("docs/policy-change.md", *_GATE),
    "tests/end_to_end/pages/test_snippets.py": ("{}",),
    "tests/end_to_end/test_ci_files.py": ("docs/testing.md", "deploy/github/", "pdp/cli/project/", *_GATE),
    "tests/end_to_end/test_released_bundles.py": ("bundles/", "scripts/release_bundles.py", *_GATE),
    "tests/end_to_end/test_wheel.py": ("pyproject.toml",),
    "tests/gateway/": ("pdp/gateway/", "tests/gateway/", "tests/support/mcp/"),
    "tests/hooks/dialects/test_claude_code_process.py": ("pdp/hooks/",),
    "tests/hooks/install/test_story.py": ("pdp/hooks/",),
    "tests/policies/hand_mutants/": ("policies/authz/", "tests/policies/hand_mutants/"),
    "tests/workbench/diff/": ("pdp/workbench/diff/", "pdp/workbench/neighbours/", "tests/workbench/diff/"),
    "tests/workbench/gate/": ("pdp/workbench/gate/", "pdp/workbench/scenarios/running/", "tests/workbench/gate/"),
    "tests/workbench/mutation/test_run.py": ("pdp/workbench/mutation/", "tests/workbench/mutation/"),
}
"""Where they are, and their subjects: files and folders; `{}` is what stands in the brackets of a test's name."""


def not_due(items: Sequence[pytest.Item], every: int, root: Path) -> list[pytest.Item]:
    """Return the tests that take turns, and whose turn is not at HEAD."""
    subjects = {item.nodeid: _subjects(item) for item in items if _takes_turns(item)}
    due, turn = touched(root, subjects, _RECENT), commits(root)
    due |= {name for number, name in enumerate(subjects) if number % every == turn % every}
    return [item for item in items if item.nodeid in subjects.keys() - due]


def _takes_turns(item: pytest.Item) -> bool:
    slow = item.get_closest_marker("process") or item.get_closest_marker("opa")
    return slow is not None and item.nodeid.startswith(tuple(SUBJECTS))


def _subjects(item: pytest.Item) -> list[str]:
    parameter = item.nodeid.partition("[")[2].removesuffix("]")
    return [
        subject.format(parameter) for place, own in SUBJECTS.items() if item.nodeid.startswith(place) for subject in own
    ]
