"""All targets, in the order of the table's columns, and what came of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdp.testing.conformance.run import run
from tests.conformance.claude import ClaudeCodeTarget
from tests.conformance.gateway import GatewayTarget
from tests.conformance.hooks import ClaudeCodeHook, CodexHook, CopilotHook, CursorHook, GeminiHook
from tests.conformance.local import LocalTarget
from tests.conformance.remote import RemoteTarget

if TYPE_CHECKING:
    from pathlib import Path

    from pdp.testing.conformance.target import Target

TARGETS: Final[tuple[Target, ...]] = (
    LocalTarget(),
    RemoteTarget(),
    ClaudeCodeTarget(),
    ClaudeCodeHook(),
    CodexHook(),
    GeminiHook(),
    CopilotHook(),
    CursorHook(),
    GatewayTarget("2026-07-28", "auto"),
    GatewayTarget("2025-11-25", "legacy"),
)


def outcome(target: Target, folder: Path) -> dict[str, str]:
    """Run the suite. On a busy machine an answer is late, and so a denial: such a case is run once more.

    One in which something ran that must not stays as it is.
    """
    cells = run(target, folder / "first")
    denied = [case for case, cell in cells.items() if cell.startswith("fail") and "UnsafeError" not in cell]
    return cells | run(target, folder / "second", denied)
