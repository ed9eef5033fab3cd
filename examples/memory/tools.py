"""A memory that a model can only propose to: every tool files a proposal with its sources, and nothing else.

What is canonical is changed by people and programs that read the proposals; no tool here can.
"""

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

KINDS: Final = {
    "record_observation": "observation",
    "create_or_link_entity_candidate": "entity",
    "propose_proposition": "proposition",
    "attach_support": "support",
    "attach_contradiction": "contradiction",
    "propose_test": "test",
    "execute_test_result_ingest": "test result",
    "request_consolidation": "consolidation",
    "archive_episode": "archival",
}
"""What each tool proposes."""


class Memory:
    """What was proposed, in order: `{id, kind, payload, provenance}`, where provenance links to the sources."""

    def __init__(self, filed: MutableMapping[str, Any] | None = None) -> None:
        self._filed: MutableMapping[str, Any] = {} if filed is None else filed
        self.canonical: tuple[dict[str, Any], ...] = ()

    def file(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """File a proposal and return what was filed."""
        payload = {name: value for name, value in arguments.items() if name != "source_ids"}
        filed = {
            "id": f"proposal-{len(self._filed) + 1}",
            "kind": KINDS[tool],
            "payload": payload,
            "provenance": [{"source": source} for source in arguments["source_ids"]],
        }
        self._filed[filed["id"]] = filed
        return filed

    @property
    def proposals(self) -> list[dict[str, Any]]:
        """What was proposed, in order."""
        return list(self._filed.values())

    def tools(self) -> dict[str, Callable[..., dict[str, Any]]]:
        """Return the tools by name, all of them on this memory."""
        return {name: self._tool(name) for name in KINDS}

    def _tool(self, name: str) -> Callable[..., dict[str, Any]]:
        def propose(**arguments: Any) -> dict[str, Any]:
            return self.file(name, arguments)

        return propose


def tools(world: Mapping[str, MutableMapping[str, Any]] | None = None) -> dict[str, Callable[..., dict[str, Any]]]:
    """Return the tools on an empty memory, or on the one of a scenario's world."""
    return Memory(world and world["proposals"]).tools()
