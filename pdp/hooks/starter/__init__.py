"""The first files of HOME, which are copied with the user's name filled in. Comments say what each file is for."""

import json
from pathlib import Path


def starter_files(user: str) -> dict[str, bytes]:
    """Return the files by name. `user` is the name under which calls and approvals are recorded."""
    files = {file.name: file.read_text("utf-8") for file in sorted(Path(__file__).parent.glob("*.yaml"))}
    return {name: text.replace("$USER", json.dumps(user)).encode() for name, text in files.items()}
