"""The files that come with the package, and the check for optional dependencies."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pdp.errors import MissingExtraError


def packaged(name: str) -> Path:
    """Return the path of a folder or file that comes with the package, such as `policies`.

    An installed wheel has these files in `pdp/data`, and a checkout has them at its root. The path may not exist.
    """
    package = Path(__file__).resolve().parent
    beside = package / "data" / name
    return beside if beside.exists() else package.parent / name


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Raise `MissingExtraError`, which names the extra `name` to install, if an import in the `with` block fails."""
    try:
        yield
    except ImportError as error:  # An installed package that is broken needs to be installed again.
        if error.name is None or error.name.partition(".")[0] == "pdp":
            raise
        raise MissingExtraError(name) from error
