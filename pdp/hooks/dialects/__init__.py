"""How each client spells its calls and reads its answers, one module for each; docs/hooks.md says what was tried.

- claude_code.py: Claude Code
- codex.py: Codex
- cursor.py: Cursor
- gemini_cli.py: Gemini CLI
- copilot_cli.py: Copilot CLI
"""
