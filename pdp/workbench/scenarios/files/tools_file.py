"""The tools of a scenario file: Python functions that stand in for what the agent would call, new for each scenario."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from pdp.documents import nearest, shown_name
from pdp.errors import Fault, FileFaultsError, Place, UsageError
from pdp.patterns.run import Deployment

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping
    from pathlib import Path

_MODULE: Final = "pdp_scenario_tools"
_MAKER: Final = "tools"
_TELLER: Final = "deployment"
_NEARLY: Final = 0.85
"""How alike a misspelt name is: helpers often begin as a tool's name does, and are meant."""


@dataclass(frozen=True, slots=True)
class ScenarioTools:
    """What one scenario has of its tools file: the functions by tool name, and what its runs are told, if anything."""

    functions: Mapping[str, Callable[..., Any]]
    deployment: Deployment | None


class ToolsFile:
    """A Python file with functions named as the tools, or a function `tools()` that returns them by name.

    A function `deployment()` in it returns what the application would tell each run: sources to pin, versions of
    sources, markings (`pdp.patterns.run.Deployment`).

    Args:
        path: the file.

    Raises:
        UsageError: it cannot be read.
        FileFaultsError: it is not Python.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._code = _compiled(path)

    def read(self, names: Iterable[str]) -> ScenarioTools:
        """Run the file anew and return what it has for the tools of these names.

        Args:
            names: the tools that it is written for; a function whose name is nearly one of them is a fault.

        Raises:
            UsageError: it raises; something else has a tool's name; a function's name is misspelt; `tools()` or
                `deployment()` return something else.
        """
        stated = tuple(names)
        module = ModuleType(_MODULE)
        module.__file__ = str(self.path)
        # Dataclasses and the like look their module up there.
        sys.modules[_MODULE] = module
        try:
            exec(self._code, module.__dict__)  # noqa: S102 - the user's own file, as its scenario file says
            found, told = _called(module, _MAKER), _called(module, _TELLER)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise UsageError(self.told(error)) from error
        if told is not None and not isinstance(told, Deployment):
            raise UsageError(f"{self.path}: deployment() must return a Deployment", hint="from pdp import Deployment")
        if found is None:
            found = {name: each for name in stated if (each := getattr(module, name, None)) is not None}
            for name in found:
                self._check_callable(name, found[name])
            self._check_spelling(_own_functions(module), stated, found)
        if not isinstance(found, dict) or not all(
            isinstance(name, str) and callable(each) for name, each in found.items()
        ):
            raise UsageError(f"{self.path}: tools() must return functions by name, as a dict")
        self._check_spelling(found, stated, found)
        return ScenarioTools(found, told)

    def told(self, error: BaseException) -> str:
        """Return what the file or a tool of it raised, with the line of the file: `FILE:LINE: CLASS: MESSAGE`."""
        said = str(error)
        return f"{self._where(error)}: {type(error).__name__}{f': {said}' if said else ''}"

    def _check_callable(self, name: str, found: Any) -> None:
        if not callable(found):
            raise UsageError(
                f"{self.path}: {shown_name(name)} is the name of a tool, and no function: {type(found).__name__}",
                hint="write it as a function, or give it another name",
            )

    def _check_spelling(self, functions: Iterable[str], stated: Iterable[str], found: Container[str]) -> None:
        """Refuse a function that no tool has, where its name is nearly that of a tool without a function."""
        lacking = [name for name in stated if name not in found]
        for name in functions:
            near = nearest(name, lacking, cutoff=_NEARLY) if name not in stated else None
            if near is not None:
                raise UsageError(
                    f"{self.path}: no tool is called {shown_name(name)}",
                    hint=f"{near} A function for the file itself begins with `_`",
                )

    def _where(self, error: BaseException) -> str:
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(self.path)
        ]
        return f"{self.path}:{lines[-1]}" if lines else str(self.path)


def _own_functions(module: ModuleType) -> list[str]:
    """The names of the functions that the file defines for others, those that it imports left out."""
    return [
        name
        for name, each in vars(module).items()
        if isinstance(each, FunctionType) and each.__module__ == _MODULE and not name.startswith("_")
    ]


def _called(module: ModuleType, name: str) -> Any:
    made = getattr(module, name, None)
    return made() if callable(made) else None


def _compiled(path: Path) -> CodeType:
    try:
        return compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", hint="name a Python file") from None
    except SyntaxError as error:
        place = Place(str(path), error.lineno or 1, error.offset or 1)
        source = (error.text or "").rstrip("\n")
        raise FileFaultsError([Fault(place, f"not Python: {error.msg}", source=source)]) from None
    except ValueError as error:
        raise FileFaultsError([Fault(Place(str(path), 1, 1), f"not Python: {error}")]) from None
