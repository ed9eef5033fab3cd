"""Which tools a loop shows its model, and what the results of a turn make of the state.

Source: tool layer document, "Definitions" (available ones only), and tool contract document, `ToolStateEffect`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from pdp.errors import PdpError
from pdp.flow.visibility import Visibility
from pdp.manifest.exports import ExportFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pdp.evaluation import Evaluation
    from pdp.pep import Pep
    from pdp.session import Session

_log = logging.getLogger("pdp.loop")


class Listing(NamedTuple):
    """The tools that a loop wants to have listed for a session."""

    session: Session


class Tools:
    """What a model may propose.

    Args:
        pep: whose registry's tools are listed.
        stated: lists them instead; None: the registry's, if there is one.
    """

    def __init__(self, pep: Pep, stated: Callable[[], Iterable[dict[str, Any]]] | None) -> None:
        self._pep = pep
        self._stated = stated

    def listed(self, session: Session) -> tuple[dict[str, Any], ...]:
        """Return `{name, description, parameters}` of each tool that may be proposed now."""
        if self._stated is not None:
            return tuple(self._stated())
        return () if self._pep.registry is None else self._seen(self._pep.visible_tools(session))

    async def alisted(self, session: Session) -> tuple[dict[str, Any], ...]:
        """Do as `listed`, asynchronously."""
        if self._stated is not None or self._pep.registry is None:
            return self.listed(session)
        return self._seen(await self._pep.avisible_tools(session))

    def _seen(self, seen: Mapping[str, Visibility]) -> tuple[dict[str, Any], ...]:
        if self._pep.registry is None:
            return ()
        shown = (one["function"] for one in self._pep.registry.definitions(ExportFormat.OPENAI))
        return tuple(one for one in shown if seen.get(one["name"], Visibility.NEVER) is not Visibility.NEVER)


def state_after(pep: Pep, session: Session, evaluations: Iterable[Evaluation]) -> Session:
    """Return the session with what the results of one turn, in their order, make of its state.

    A result that cannot be merged with those before it is logged, and changes nothing.
    """
    for evaluation in evaluations:
        tool = evaluation.trace.tool_name
        if evaluation.state is None or tool is None:
            continue
        try:
            state = pep.state_after(tool, session.state, evaluation.result)
            session = session.with_changes(state=state.as_json())
        except PdpError:
            _log.exception("the state effects of %s do not go with those of the calls before it", tool)
    return session
