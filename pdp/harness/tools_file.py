"""The tools of a scenario file: Python functions that stand in for what the agent would call, new for each scenario."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from pdp.errors import Fault, FileFaultsError, Place, UsageError
from pdp.patterns.deployment import Deployment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

_MODULE: Final = "pdp_scenario_tools"
_MAKER: Final = "tools"
_TELLER: Final = "deployment"


@dataclass(frozen=True, slots=True)
class ScenarioTools:
    """What one scenario has of its tools file: the functions by tool name, and what its runs are told, if anything."""

    functions: Mapping[str, Callable[..., Any]]
    deployment: Deployment | None


class ToolsFile:
    """A Python file with functions named as the tools, or a function `tools()` that returns them by name.

    A function `deployment()` in it returns what the application would tell each run: sources to pin, versions of
    sources, markings (`pdp.patterns.deployment.Deployment`).

    Args:
        path: the file.

    Raises:
        UsageError: it cannot be read.
        FileFaultsError: it is not Python.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._code = _compiled(path)

    def read(self, names: Iterable[str]) -> ScenarioTools:
        """Run the file anew and return what it has for the tools of these names.

        Raises:
            UsageError: it raises, or `tools()` or `deployment()` return something else.
        """
        module = ModuleType(_MODULE)
        module.__file__ = str(self._path)
        # Dataclasses and the like look their module up there.
        sys.modules[_MODULE] = module
        try:
            exec(self._code, module.__dict__)  # noqa: S102 - the user's own file, as its scenario file says
            found, told = _called(module, _MAKER), _called(module, _TELLER)
        except (Exception, SystemExit) as error:
            raise UsageError(f"{self._where(error)}: {type(error).__name__}: {error}") from error
        if told is not None and not isinstance(told, Deployment):
            raise UsageError(f"{self._path}: deployment() must return a Deployment", hint="from pdp import Deployment")
        if found is None:
            found = {name: each for name in names if callable(each := getattr(module, name, None))}
        if not isinstance(found, dict) or not all(
            isinstance(name, str) and callable(each) for name, each in found.items()
        ):
            raise UsageError(f"{self._path}: tools() must return functions by name, as a dict")
        return ScenarioTools(found, told)

    def _where(self, error: BaseException) -> str:
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(self._path)
        ]
        return f"{self._path}:{lines[-1]}" if lines else str(self._path)


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
