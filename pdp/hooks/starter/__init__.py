"""What a folder of `pdp hook` begins with, as files of the package: copied, with the user's name in them.

- pdp.yaml: the project, with its store
- manifest.yaml, governance.yaml: the tools of all clients, and what they need
- session.yaml: the user and what an agent may do for them; approver.yaml: the user at a terminal, who approves
- commands.yaml: programs with the words that a shell may be given
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

_USER: Final = "$USER"  # no name of a user: it would not be plain
_FILES: Final = ("pdp.yaml", "manifest.yaml", "governance.yaml", "session.yaml", "approver.yaml", "commands.yaml")


def starter_files(user: str) -> dict[str, bytes]:
    """Return the files of a new folder, by name. `user`: the name that calls and approvals are recorded under."""
    folder = Path(__file__).parent
    texts = {name: (folder / name).read_text("utf-8") for name in _FILES}
    return {name: text.replace(_USER, json.dumps(user)).encode() for name, text in texts.items()}
