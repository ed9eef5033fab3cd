"""What the rules find wrong: the same as a fault, before it is known in which file and line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdp.documents.document import Path


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong at one path of a manifest or governance file.

    `key`: the key at the end of the path is meant, not its value. `warning`: legal, yet likely a mistake.
    """

    path: Path
    message: str
    hint: str | None = None
    warning: bool = False
    key: bool = False
