"""How a file is named to a person: as short as it can be typed here, and the baseline's wherever it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pdp.packaged import packaged

if TYPE_CHECKING:
    from os import PathLike

_POLICIES: Final = "policies"


def shown_file(file: str | PathLike[str]) -> str:
    """Return a path relative to the working directory when it is below that, one of the baseline's as `policies/...`.

    Any other path is returned as it is.
    """
    path = Path(file)
    for root, before in ((Path.cwd(), Path()), (packaged(_POLICIES), Path(_POLICIES))):
        if root is not None and path.is_relative_to(root):
            return str(before / path.relative_to(root))
    return str(file)
