"""How each client spells its calls and reads its answers, one module for each; docs/hooks.md says what was tried.

- claude_code.py: Claude Code
- codex.py: Codex
- hook_input.py: what a client sends, read strictly
- hook_output.py: what a client reads: texts that are safe, denials
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pdp.hooks.dialects.claude_code import ClaudeCode
from pdp.hooks.dialects.codex import Codex

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.hooks.call import Dialect

_ALL: Final[tuple[Dialect, ...]] = (ClaudeCode(), Codex())
DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType({dialect.name: dialect for dialect in _ALL})
"""The clients by name, such as `claude-code`."""
