"""The examples that come with the package."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from pdp.errors import UsageError
from pdp.installed import packaged

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def installed(name: str) -> Path:
    """Return the path of a packaged folder or file, such as `examples/payments`.

    Raises:
        UsageError: it is not there.
    """
    path = packaged(name)
    if path is None:
        raise UsageError(f"{name} is not installed", hint="install tool-pdp again")
    return path


def tools_of(example: Path) -> ModuleType:
    """Import an example's `tools.py`."""
    spec = importlib.util.spec_from_file_location(f"pdp_example_{example.name}", example / "tools.py")
    if spec is None or spec.loader is None:
        raise UsageError(f"{example / 'tools.py'} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
