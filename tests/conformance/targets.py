"""All targets, in the order of the table's columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.conformance.hooks import ClaudeCodeHook, CodexHook
from tests.conformance.local import LocalTarget

if TYPE_CHECKING:
    from pdp.testing.conformance.target import Target

TARGETS: Final[tuple[Target, ...]] = (LocalTarget(), ClaudeCodeHook(), CodexHook())
