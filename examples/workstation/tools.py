"""The Python tools of the workstation. `grep_files` is a program, so only the manifest declares it."""

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
        folder: the only folder that is read, or None if no folder is configured.
        seed: the seed of the dice, for repeatable results. None gives random results.
    """

    def __init__(self, folder: Path | None, seed: int | None = None) -> None:
        self._folder = folder
        self._dice = random.Random(seed)  # noqa: S311 - dice need no secure random numbers

    def roll_dice(self, count: int, sides: int) -> dict[str, Any]:
        """Roll `count` dice with `sides` sides each."""
        if sides not in SIDES:
            raise ToolArgumentError("sides", f"no die has {sides}; there are {', '.join(map(str, SIDES))}")
        results = [self._dice.randint(1, sides) for _ in range(count)]
        return {"results": results, "sum": sum(results)}

    def read_file(self, path: str) -> str:
        """Return the text of a file in the folder. Links are resolved first, so that none leads outside."""
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
            raise ToolArgumentError("path", "is not UTF-8 text") from None

    def folder_is_there(self) -> tuple[bool, str]:
        """Return whether files can be read now, with the reason if not."""
        if self._folder is None:
            return False, "no working folder is configured"
        return self._folder.is_dir(), f"the working folder {self._folder.name} is not there"


def tools() -> dict[str, Callable[..., Any]]:
    """Return the tools of a scenario, with repeatable dice."""
    workstation = Workstation(FILES, seed=7)
    return {"roll_dice": workstation.roll_dice, "read_file": workstation.read_file}
