"""What is installed: the files that come with the package, and the packages that an extra brings."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pdp.errors import MissingExtraError


def packaged(name: str) -> Path:
    """Return the path of a folder or file that comes with the package, such as `policies`.

    In the wheel it stands beside the code, in a checkout at its root. Where it is missing, who reads it says so.
    """
    package = Path(__file__).resolve().parent
    beside = package / "data" / name
    return beside if beside.exists() else package.parent / name


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Name the extra to install when an import in this block fails.

    MissingExtraError: a package that is imported in the block is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "pdp":
            raise
        raise MissingExtraError(name) from error
