"""What an application states for all runs: sources to pin, their versions, markings, and the store of actions.

Source: tool pattern library, patterns 2, 6, 8 and 9.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from pdp.errors import UsageError
from pdp.json import canonical, check_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pdp.stores.actions import ActionStore

_log = logging.getLogger("pdp.patterns")


@dataclass(frozen=True, slots=True)
class Pin:
    """One version of a source, such as a table of exchange rates, that holds for a whole run.

    Args:
        version: names it; two versions of a source have two names.
        value: what is in it, JSON. Do not change it.
    """

    version: str
    value: Any


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the application states for all runs. Its functions are quick, or cache by themselves.

    Args:
        sources: by name, what reads a source that is pinned when a run starts (pattern 9): `() -> Pin`.
        source_versions: by id, what returns a system of record's present version (pattern 2): `() -> str`.
        markings_of: `(type, id) -> markings`, or None when they are not known (pattern 8).
        actions: the store of actions (pattern 6); without one nothing can be staged.
    """

    sources: Mapping[str, Callable[[], Pin]] = field(default_factory=dict)
    source_versions: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    markings_of: Callable[[str, str], Iterable[str] | None] | None = None
    actions: ActionStore | None = None


def read_pins(deployment: Deployment) -> dict[str, Pin]:
    """Return the sources as they are now; one that cannot be read is missing, and logged."""
    pins = {}
    for source, read in deployment.sources.items():
        try:
            pin = read()
            check_json(pin.value)
            if not isinstance(pin.version, str) or not pin.version:
                raise TypeError("a pin without version")  # noqa: TRY301 - as if reading raised it
            # A copy: what the application changes later does not change a run.
            pins[source] = Pin(pin.version, orjson.loads(canonical(pin.value)))
        except Exception:  # noqa: BLE001 - a source that is not there fails what needs it, and nothing else
            _log.warning("source %s could not be pinned: what needs it fails in this run", source, exc_info=True)
    return pins


def replayed_pins(pins: Mapping[str, Any]) -> dict[str, Pin]:
    """Return the pins of an earlier run, given as `{source: {version, value}}`.

    Raises:
        UsageError: malformed pins.
    """
    try:
        return {source: Pin(str(pin["version"]), orjson.loads(canonical(pin["value"]))) for source, pin in pins.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"pins have to be {{source: {{version, value}}}}: {error}") from None
