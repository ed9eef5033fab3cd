"""Imports of packages that only an extra brings: an absent one is an error that says what to install."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pdp.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Name the extra to install when an import in this block fails.

    Raises:
        MissingExtraError: a package that is imported in the block is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "pdp":
            raise
        raise MissingExtraError(name) from error
