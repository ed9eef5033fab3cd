"""Every text of the console that people read, by name. A translation replaces the modules of this folder.

* frame: the frame around every page, signing in, errors, help
* approvals: the inbox and one approval
* tools: tools and matrix; grants: grants and budgets
* decisions: the decisions, one event, one run
* play: the playground
* releases: the bundle that decides
"""

from typing import Any, Final

from pdp.service.console.texts import approvals, decisions, frame, grants, play, releases, tools

_PARTS: Final = (frame, approvals, decisions, tools, grants, play, releases)
TEXTS: Final[dict[str, str]] = {name: each for part in _PARTS for name, each in part.TEXTS.items()}


def text(name: str, /, **values: Any) -> str:
    """Return the text with this name, with its `{values}` filled in. Raise KeyError for an unknown name."""
    return TEXTS[name].format_map(values)
