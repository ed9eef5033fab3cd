"""The session of each step: the layers of a scenario file laid over one another.

Layers are laid over as RFC 7396 says (JSON Merge Patch): mappings key by key, anything else replaces what was there,
and null takes it away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from pdp.documents import faults_of
from pdp.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.documents.document import Document, Path
    from pdp.errors import Fault
    from pdp.workbench.scenarios.files.scenario import Scenario, Step

DEFAULT_TIME: Final = "2026-01-01T00:00:00Z"
"""When a scenario happens that states no time: always the same, so that a run can be repeated to the byte."""

_SHOWN_NAME: Final = 200


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` with `above` laid over it; neither is changed."""
    merged = dict(below)
    for key, value in above.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            under = merged.get(key)
            merged[key] = laid_over(under if isinstance(under, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def session_faults(layer: Mapping[str, Any], document: Document, path: Path) -> list[Fault]:
    """Return what is wrong with one layer, which stands at `path` in `document`: it would be so in any session."""
    stated = {name: value for name, value in layer.items() if value is not None}
    try:
        Session.model_validate({"claims": {}, **stated})
    except ValidationError as error:
        return faults_of(error, document, Session, base=path)
    return []


def sessions_of(scenario: Scenario, base: Mapping[str, Any]) -> tuple[Session | None, ...]:
    """Return who does each step of a scenario, and when.

    Of `propose` and `plan`, the session with which the tool is called; of `approve` and `deny`, that of the approver;
    of `request`, None. Time stands still until a step says otherwise. Request and run are named after the scenario, so
    that the same scenario always makes the same request.

    Args:
        scenario: with layers that have no fault.
        base: the file's session.

    Raises:
        ValidationError: the layers make no session together: nothing states the claims.
    """
    below = laid_over(base, scenario.session)
    now = below.get("time") or DEFAULT_TIME
    name = scenario.name[:_SHOWN_NAME]
    sessions: list[Session | None] = []
    for number, step in enumerate(scenario.steps, start=1):
        own = laid_over(below, step.session) if step.session else below
        now = step.at or step.session.get("time") or now
        sessions.append(_session(step, own, now, name, number))
    return tuple(sessions)


def _session(step: Step, layers: Mapping[str, Any], now: str, name: str, number: int) -> Session | None:
    if step.action == "request":
        return None
    approver = step.approve or step.deny
    if approver is not None:
        return Session.model_validate({"claims": approver.claims, "time": now})
    named = {"run_id": name, "request_id": f"{name}/{number}", **layers, "time": now}
    if step.plan is not None:
        named.setdefault("plan", list(step.plan))
    return Session.model_validate(named)
