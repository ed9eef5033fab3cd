"""How each client spells its calls and reads its answers, one module for each; docs/hooks.md says what was tried.

- claude_code.py: Claude Code
- codex.py: Codex
- cursor.py: Cursor
- gemini_cli.py: Gemini CLI
- copilot_cli.py: Copilot CLI
- client.py: what clients have in common: input read strictly, safe texts, yes and no
"""

from types import MappingProxyType
from typing import Final

from pdp.hooks.dialects.claude_code import CLAUDE_CODE
from pdp.hooks.dialects.codex import CODEX
from pdp.hooks.dialects.copilot_cli import COPILOT_CLI
from pdp.hooks.dialects.cursor import CURSOR
from pdp.hooks.dialects.gemini_cli import GEMINI_CLI

DIALECTS: Final = MappingProxyType(
    {dialect.name: dialect for dialect in (CLAUDE_CODE, CODEX, CURSOR, GEMINI_CLI, COPILOT_CLI)}
)
"""The clients by name, such as `claude-code`."""
