"""The error tree in the docstring of `pdp.errors` lists every error class of the package, with its code and module."""

import pkgutil
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Final, NamedTuple

import pdp
from pdp import errors
from pdp.errors import MissingExtraError, PdpError

LINE: Final = re.compile(r" *[*-] (?P<name>\w+)  (?P<code>[a-z_.]+)(?:  \[(?P<module>[\w.]+)\])?: \S.*")


class Line(NamedTuple):
    depth: int
    name: str
    code: str
    module: str


def drawn() -> Iterator[Line]:
    """Yield the error classes that the tree in the docstring lists, from top to bottom."""
    for text in (errors.__doc__ or "").splitlines():
        if text.lstrip().startswith(("* ", "- ")):
            match = LINE.fullmatch(text)
            assert match, f"not `- NAME  CODE  [MODULE]: MEANING`: {text}"
            depth = (len(text) - len(text.lstrip())) // 2
            yield Line(depth, match["name"], match["code"], match["module"] or "pdp.errors")


def defined(error: type[PdpError], depth: int = 0) -> Iterator[Line]:
    """Yield the expected tree line of an error class and of its subclasses. Private classes are not listed."""
    yield Line(depth, error.__name__, error.code, error.__module__)
    for subclass in sorted(public_subclasses(error), key=lambda each: each.__name__):
        yield from defined(subclass, depth + 1)


def public_subclasses(error: type[PdpError]) -> Iterator[type[PdpError]]:
    for subclass in error.__subclasses__():
        if subclass.__name__.startswith("_"):
            yield from public_subclasses(subclass)
        elif subclass.__module__.startswith("pdp."):
            yield subclass


def import_all_modules() -> None:
    """Import every module of the package, except modules whose extra is not installed."""
    for module in pkgutil.walk_packages(pdp.__path__, "pdp."):
        if not module.name.endswith(".__main__") and ".migrations." not in module.name:
            with suppress(MissingExtraError):
                import_module(module.name)


def test_docstring_lists_every_error_class() -> None:
    import_all_modules()

    assert list(drawn()) == list(defined(PdpError))
