"""The workstation's tools that are Python; `grep_files` is a program, and stands in the manifest alone."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pdp.tools import ToolArgumentError

FILES: Final = Path(__file__).parent / "files"
SIDES: Final = (4, 6, 8, 10, 12, 20)


class Workstation:
    """A folder of files, and dice.

    Args:
        folder: nothing outside of it is read; None: no folder is configured.
        seed: of the dice, which fall the same for the same seed; None: as they like.
    """

    def __init__(self, folder: Path | None, seed: int | None = None) -> None:
        self._folder = folder
        self._dice = random.Random(seed)  # noqa: S311 - dice, and no secret

    def roll_dice(self, count: int, sides: int) -> dict[str, Any]:
        """Roll `count` dice with `sides` sides each."""
        if sides not in SIDES:
            raise ToolArgumentError("sides", f"no die has {sides}; there are {', '.join(map(str, SIDES))}")
        results = [self._dice.randint(1, sides) for _ in range(count)]
        return {"results": results, "sum": sum(results)}

    def read_file(self, path: str) -> str:
        """Return the text of a file below the folder. Links are followed first, so that none leads out of it."""
        if self._folder is None:
            raise ToolArgumentError("path", "no working folder is configured")
        root = self._folder.resolve()
        file = (root / path).resolve()
        if not file.is_relative_to(root):
            raise ToolArgumentError("path", "leads out of the working folder")
        if not file.is_file():
            raise ToolArgumentError("path", "is no file of the working folder")
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ToolArgumentError("path", "is no text in UTF-8") from None

    def folder_is_there(self) -> tuple[bool, str]:
        """Return whether files can be read now, and why not."""
        if self._folder is None:
            return False, "no working folder is configured"
        return self._folder.is_dir(), f"the working folder {self._folder.name} is not there"


def tools() -> dict[str, Callable[..., Any]]:
    """Return the tools of a scenario: the dice always fall the same."""
    workstation = Workstation(FILES, seed=7)
    return {"roll_dice": workstation.roll_dice, "read_file": workstation.read_file}
