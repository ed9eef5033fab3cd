"""The files that come with the package, its documentation, and the check for optional dependencies."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from pdp.errors import MissingExtraError


def packaged(name: str) -> Path:
    """Return the path of a folder or file that comes with the package, such as `policies`.

    An installed wheel has these files in `pdp/data`, and a checkout has them at its root. The path may not exist.
    """
    package = Path(__file__).resolve().parent
    beside = package / "data" / name
    return beside if beside.exists() else package.parent / name


@cache
def documentation_url() -> str:
    """Return the URL of the documentation, with a slash at its end, or nothing if the package is not installed."""
    from importlib.metadata import PackageNotFoundError, metadata  # noqa: PLC0415 - it takes 25 ms

    with suppress(PackageNotFoundError):
        for url in metadata("tool-pdp").get_all("Project-URL") or ():
            if url.startswith("Documentation, "):
                return str(url).removeprefix("Documentation, ")
    return ""


def code_url(code: str) -> str:
    """Return the URL of the page about a code of the product, such as `purposes.missing`."""
    return f"{documentation_url()}reference/codes/{code}/"


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Raise `MissingExtraError`, which names the extra `name` to install, if an import in the `with` block fails."""
    try:
        yield
    except ImportError as error:  # An installed package that is broken needs to be installed again.
        if error.name is None or error.name.partition(".")[0] == "pdp":
            raise
        raise MissingExtraError(name) from error
