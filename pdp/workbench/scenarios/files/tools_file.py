"""The tools of a scenario file: Python functions that replace the agent's tools. Each scenario loads the file again."""

import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from pdp.documents import read_bytes, shown_name
from pdp.documents.arguments import named_parameters
from pdp.errors import Fault, FileFaultsError, Place, UsageError
from pdp.patterns.run import Deployment

_MODULE: Final = "pdp_scenario_tools"
_PYTHON: Final = "check this line and the one before it: indentation, quotes, brackets"


class ToolsFile:
    """A Python file with a function for each tool, or with a function `tools()` that returns the functions by name.

    `tools(world)` gets the systems of the scenario's world. A function `deployment()` returns the `Deployment` that the
    application would use for each run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._code = _compiled(path)

    def read(
        self, names: Iterable[str], systems: Mapping[str, Any] | None = None
    ) -> tuple[Mapping[str, Callable[..., Any]], Deployment | None]:
        """Run the file. Return its functions for the tools in `names`, and its deployment if there is one."""
        module = ModuleType(_MODULE)
        module.__file__ = str(self.path)
        # The module is registered, because dataclasses look up their module in `sys.modules`.
        sys.modules[_MODULE] = module
        try:
            exec(self._code, module.__dict__)  # noqa: S102 - the scenario file names this file
            functions, deployment = _called(module, "tools", systems), _called(module, "deployment")
        except (Exception, SystemExit) as error:
            raise UsageError(self.message_of(error)) from error
        if deployment is not None and not isinstance(deployment, Deployment):
            raise UsageError(f"{self.path}: deployment() must return a Deployment", hint="from pdp import Deployment")
        if functions is None:
            functions = {name: getattr(module, name) for name in names if hasattr(module, name)}
        if not isinstance(functions, dict):
            raise UsageError(f"{self.path}: tools() must return functions by name, as a dict")
        for name, function in functions.items():
            if not callable(function):
                kind = type(function).__name__
                raise UsageError(f"{self.path}: the tool {shown_name(name)} must be a function, not {kind}")
        return functions, deployment

    def message_of(self, error: BaseException) -> str:
        """Return an error that the file or one of its tools raised, as `FILE:LINE: CLASS: MESSAGE`."""
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(self.path)]
        where, text = f":{lines[-1]}" if lines else "", str(error)
        return f"{self.path}{where}: {type(error).__name__}{f': {text}' if text else ''}"


def _called(module: ModuleType, name: str, systems: Mapping[str, Any] | None = None) -> Any:
    function = getattr(module, name, None)
    if not systems:
        return function() if callable(function) else None
    if not callable(function) or "world" not in {parameter.name for parameter in named_parameters(function)}:
        hint = "write `def tools(world=None):`, and use `world[NAME]` in the tools instead of their clients"
        raise UsageError(f"{module.__file__}: no function `tools(world)` takes the scenario's world", hint=hint)
    return function(world=systems)


def _compiled(path: Path) -> CodeType:
    try:
        return compile(read_bytes(path), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        place = Place(str(path), error.lineno or 1, error.offset or 1)
        source = (error.text or "").rstrip("\n")
        raise FileFaultsError([Fault(place, f"not Python: {error.msg}", hint=_PYTHON, source=source)]) from None
    except ValueError as error:
        raise FileFaultsError([Fault(Place(str(path), 1, 1), f"not Python: {error}", hint=_PYTHON)]) from None
