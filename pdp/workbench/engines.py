"""Names and time limits of the engines that scenarios run on. The module `pdp.project.resources` opens engines."""

from typing import Final

from pdp.engine.protocol import ENGINES, EngineName
from pdp.errors import UsageError

ENGINE_TIMEOUT: Final = 10.0
"""The default timeout of an answer in seconds. It is long, so that no scenario fails because the machine is busy."""

OPA_SHARE: Final = 3
"""How much longer than an answer of an engine a run of the program OPA may take, because it evaluates many calls."""

LATE: Final = "give the engine more time with --engine-timeout, or look for a rule that does not terminate"
"""The hint of the error that an engine did not answer in time."""


def engines_named(name: str) -> tuple[EngineName, ...]:
    """Return the engine called `name`, or all engines if it is `both`. Raises `UsageError` for any other name."""
    selected = tuple(engine for engine in ENGINES if name in (engine, "both"))
    if not selected:
        raise UsageError(f"unknown engine {name!r}", hint=f"use one of {', '.join(ENGINES)}, both")
    return selected
