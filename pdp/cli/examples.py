"""The examples that come with the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from pdp.errors import UsageError

if TYPE_CHECKING:
    from types import ModuleType


def packaged(name: str) -> Path:
    """Return the path of a packaged folder or file, such as `examples/payments`: in the wheel, or in the checkout.

    Raises:
        UsageError: it is in neither.
    """
    package = Path(__file__).resolve().parents[1]
    for path in (package / "data" / name, package.parent / name):
        if path.exists():
            return path
    raise UsageError(f"{name} is not installed", hint="install tool-pdp again")


def tools_of(example: Path) -> ModuleType:
    """Import an example's `tools.py`."""
    spec = importlib.util.spec_from_file_location(f"pdp_example_{example.name}", example / "tools.py")
    if spec is None or spec.loader is None:
        raise UsageError(f"{example / 'tools.py'} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
