"""All targets, in the order of the table's columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.conformance.gateway import GatewayTarget
from tests.conformance.hooks import ClaudeCodeHook, CodexHook, CopilotHook, CursorHook, GeminiHook
from tests.conformance.local import LocalTarget

if TYPE_CHECKING:
    from pdp.testing.conformance.target import Target

TARGETS: Final[tuple[Target, ...]] = (
    LocalTarget(),
    ClaudeCodeHook(),
    CodexHook(),
    GeminiHook(),
    CopilotHook(),
    CursorHook(),
    GatewayTarget("2026-07-28", "auto"),
    GatewayTarget("2025-11-25", "legacy"),
)
