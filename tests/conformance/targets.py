"""The targets that need no framework, in the order of the table. The targets for adapters are in tests/adapters."""

from typing import Final

from pdp.testing.conformance.target import Target
from tests.conformance.claude import ClaudeCodeTarget
from tests.conformance.gateway import GatewayTarget
from tests.conformance.hooks import ClaudeCodeHook, CodexHook, CopilotHook, CursorHook, GeminiHook
from tests.conformance.local import LocalTarget
from tests.conformance.remote import RemoteTarget

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
