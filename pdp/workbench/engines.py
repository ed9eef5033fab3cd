"""Names and time limits of the engines that scenarios run on. `pdp.project.resources` opens engines."""

from typing import Final

from pdp.engine.protocol import ENGINES, EngineName
from pdp.errors import UsageError

ENGINE_TIMEOUT: Final = 10.0
"""Default time that an engine has for one answer where scenarios are run and bundles compared, in seconds.

More than an enforcement point waits, so that a machine which is busy makes no policy red.
"""

LATE: Final = "give the engine more time with --engine-timeout, or look for a rule that does not end"
"""What to do about an engine that has not answered in that time."""


def engines_named(name: str) -> tuple[EngineName, ...]:
    """Return the engines to run on: one by its name, or `both`, which have to agree."""
    named = tuple(engine for engine in ENGINES if name in (engine, "both"))
    if not named:
        raise UsageError(f"no engine is called {name!r}", hint=f"name one of {', '.join(ENGINES)}, both")
    return named
