"""A memory to which a model can only file proposals. Every tool files a proposal with its sources.

People and programs that read the proposals change the canonical memory. No tool here can.
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
    """The proposals in order: `{id, kind, payload, provenance}`, where `provenance` names the sources."""

    def __init__(self, filed: MutableMapping[str, Any] | None = None) -> None:
        self._filed: MutableMapping[str, Any] = {} if filed is None else filed
        self.canonical: tuple[dict[str, Any], ...] = ()

    def file(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """File a proposal and return it."""
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
        """The proposals in order."""
        return list(self._filed.values())

    def tools(self) -> dict[str, Callable[..., dict[str, Any]]]:
        """Return the tools of this memory by name."""
        return {name: self._tool(name) for name in KINDS}

    def _tool(self, name: str) -> Callable[..., dict[str, Any]]:
        def propose(**arguments: Any) -> dict[str, Any]:
            return self.file(name, arguments)

        return propose


def tools(world: Mapping[str, MutableMapping[str, Any]] | None = None) -> dict[str, Callable[..., dict[str, Any]]]:
    """Return the tools of a new memory, or of the memory in a scenario's world."""
    return Memory(world and world["proposals"]).tools()
