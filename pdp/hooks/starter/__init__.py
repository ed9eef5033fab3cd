"""What a HOME begins with: files that are copied, with the user's name in them. Each says what it is for."""

import json
from pathlib import Path


def starter_files(user: str) -> dict[str, bytes]:
    """Return the files by name. `user`: the name that calls and approvals are recorded under."""
    files = {file.name: file.read_text("utf-8") for file in sorted(Path(__file__).parent.glob("*.yaml"))}
    return {name: text.replace("$USER", json.dumps(user)).encode() for name, text in files.items()}
