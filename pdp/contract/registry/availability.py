"""Whether a tool can run right now, and why not: checked anew whenever tools are listed.

Source: tool layer document, "Available". A call that the model has made already is refused for what the tool needs and
does not have (TOOL_UNAVAILABLE); its own check and its circuit are not asked again, and it is tried.
"""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.contract.registry.tool_contract import end_coroutine
from pdp.errors import UsageError
from pdp.manifest.programs import program_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pdp.manifest.model import Tool

_log = logging.getLogger("pdp.contract")

_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class ToolStatus:
    """Whether one tool can run. `type` is `python` or `cli`; `reason` says why it cannot, and is empty when it can."""

    name: str
    type: str
    description: str
    available: bool
    reason: str


def why_unavailable(entry: Tool, capabilities: Collection[str], probe: Callable[[], Any] | None) -> str:
    """Return why a tool cannot run right now; empty when it can.

    Checks, in this order: the program of a tool of type `cli`; what `safety.requires` names, `binary:NAME` and
    `env:NAME` on this machine, everything else among what the deployment grants; the tool's own `probe`.

    Args:
        entry: the tool's entry.
        capabilities: what the deployment grants, such as `network`.
        probe: returns true or false, or `(available, reason)`; one that raises or returns anything else means no.
    """
    return why_lacking(entry, capabilities) or (_why_not(entry.name, probe) if probe is not None else "")


def why_lacking(entry: Tool, capabilities: Collection[str]) -> str:
    """Return what a tool needs and does not have, without its own probe; empty when nothing is lacking."""
    if entry.cli is not None and entry.program is not None:
        try:
            path = program_path(entry.cli.argv[0], entry.program)
        except UsageError as error:
            return error.message
        if path is None:
            return f"program {entry.cli.argv[0]} is not found"
    needs = entry.safety.requires if entry.safety else ()
    return next((why for need in needs if (why := _why_lacking(need, capabilities))), "")


def _why_lacking(need: str, capabilities: Collection[str]) -> str:
    kind, _, name = need.partition(":")
    if kind == "binary":
        return "" if name and shutil.which(name) else f"program {name} is not found"
    if kind == "env":
        return "" if os.environ.get(name) else f"environment variable {name} is not set"
    return "" if need in capabilities else f"capability {need} is not granted"


def _why_not(name: str, probe: Callable[[], Any]) -> str:
    try:
        answer = probe()
    except Exception as error:  # noqa: BLE001 - an application's own check may raise anything: not available
        _log.exception("the availability check of %s raised", name)
        return f"its availability check raised {type(error).__name__}"
    match answer:
        case True | (True, _):
            return ""
        case False:
            return "not available"
        case (False, str(reason)):
            return reason[:_LONGEST] or "not available"
    end_coroutine(answer)
    return f"its availability check gives {type(answer).__name__}, not true or false"
