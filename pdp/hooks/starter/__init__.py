"""What a HOME begins with: files that are copied, with the user's name in them.

- pdp.yaml: the project, with its store
- manifest.yaml, governance.yaml: the tools of all clients, and what they need
- session.yaml, approver.yaml: the user for whom an agent works, and the same at a terminal, who approves
- commands.yaml: programs with the words that a shell may be given
"""

from __future__ import annotations

import json
from pathlib import Path


def starter_files(user: str) -> dict[str, bytes]:
    """Return the files by name. `user`: the name that calls and approvals are recorded under."""
    files = {file.name: file.read_text("utf-8") for file in sorted(Path(__file__).parent.glob("*.yaml"))}
    return {name: text.replace("$USER", json.dumps(user)).encode() for name, text in files.items()}
