"""A call that has all it needs: what the grid departs from, in one or two ways at once.

Departing from a call that is denied for five reasons would show nothing: whatever a sixth rule said, it stays a DENY.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.diff.grid.probes import CORPUS
from pdp.workbench.neighbours.proposals import example_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdp.manifest.model import Tool

LIMIT: Final = 100
"""The limit that the grid's subject has for whatever is limited; the base call stays below it."""

SUBJECT: Final = "grid.subject"
CALL: Final = "sha256:grid"


@dataclass(frozen=True, slots=True)
class Entry:
    """A tool as the grid calls it.

    Attributes:
        tool: its name; digest: of the manifest that its requests name; version: that manifest's.
        stated: its entries in both bundles, one or two, plain JSON.
        declared: the whole entry, with schema and mapping, where a manifest file was named.
        agents: those that the manifest pins, the agents of this tool first; empty when it pins none.
    """

    tool: str
    digest: str
    version: str
    stated: tuple[Mapping[str, Any], ...]
    declared: Tool | None
    agents: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The effect class, of the newer entry."""
        return str(self.stated[-1].get("effect_class", "unclassified"))

    def names(self, field: str) -> list[str]:
        """The strings of a list in the entries, of both."""
        return list(
            dict.fromkeys(item for entry in self.stated for item in _list(entry.get(field)) if isinstance(item, str))
        )

    def limits(self) -> list[tuple[str, str]]:
        """Limit and argument, of both entries."""
        return list(
            dict.fromkeys(
                (each["limit"], each["argument"])
                for entry in self.stated
                for each in _list(entry.get("limits"))
                if isinstance(each, dict) and all(isinstance(each.get(key), str) for key in ("limit", "argument"))
            )
        )

    def sources(self) -> list[str]:
        """The arguments that have to name sources, of both entries."""
        stated = (entry.get("provenance") for entry in self.stated)
        names = [name for each in stated if isinstance(each, dict) for name in _list(each.get("required"))]
        return list(dict.fromkeys(name for name in names if isinstance(name, str)))

    def approvals(self) -> list[Mapping[str, Any]]:
        """What the entries say of approval."""
        return [each for entry in self.stated if isinstance(each := entry.get("approval"), dict)]


def base_request(entry: Entry, clearances: Sequence[str], directory: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call of the tool by somebody who holds every scope, clearance, limit and entitlement, with a key.

    Args:
        entry: the tool.
        clearances: every marking that there is.
        directory: corpora and documents, of both bundles and the grid's own.
    """
    corpora, documents = (list(_dict(directory.get(name))) for name in ("corpora", "documents"))
    arguments = example_arguments(entry.declared.schema_) if entry.declared else {}
    arguments |= {argument: LIMIT // 2 for _, argument in entry.limits()}
    arguments |= {name: ["source-1"] for name in entry.sources() if not arguments.get(name)}
    purposes = _purposes(entry)
    return {
        "subject": {
            "type": "user", "id": SUBJECT,
            "properties": {
                "scopes": entry.names("scopes"), "clearances": list(clearances), "roles": [],
                "limits": {limit: LIMIT for limit, _ in entry.limits()},
                "entitlements": {"corpora": corpora, "documents": documents},
            },
        },
        "action": {
            "name": str(entry.stated[-1].get("pdp_action", entry.tool)),
            "properties": {
                "tool": entry.tool, "manifest_version": entry.version, "manifest_digest": entry.digest,
            },
        },
        "resource": _resource(entry),
        "context": {
            "arguments": arguments, "purpose": purposes[0] if purposes else "grid.purpose",
            "agent": entry.agents[0] if entry.agents else None, "idempotency_key": "grid-key",
            "call_digest": CALL, "approval": None, "time": "2026-01-01T12:00:00Z",
        },
    }  # fmt: skip


def valid_approval(entry: Entry) -> dict[str, Any]:
    """Return an approval of the call that both entries take: enough people, each with every role, just now."""
    stated = entry.approvals()
    quorum = max([each["quorum"] for each in stated if type(each.get("quorum")) is int], default=1)
    roles = sorted({role for each in stated for role in _list(each.get("approvers")) if isinstance(role, str)})
    grants = [{"sub": f"grid.approver-{at}", "roles": roles} for at in range(min(max(quorum, 1), 9))]
    return {"id": "grid-approval", "call_digest": CALL, "age_seconds": 0, "grants": grants}


def _purposes(entry: Entry) -> list[str]:
    """Those that both entries admit first."""
    every = entry.names("purposes")
    lists = [each for stated in entry.stated if isinstance(each := stated.get("purposes"), list)]
    return sorted(every, key=lambda name: -sum(name in each for each in lists))


def _resource(entry: Entry) -> dict[str, Any]:
    kind, name = "tool", entry.tool
    mapped = entry.declared.resource if entry.declared else None
    if mapped and isinstance(mapped.get("type"), str) and not mapped["type"].startswith("$"):
        kind, name = mapped["type"], "grid.resource"
    if entry.stated[-1].get("pattern") == "search" or kind == "corpus":
        kind, name = "corpus", CORPUS
    return {"type": kind, "id": name, "properties": {} if kind == "corpus" else {"markings": []}}


def texts(value: Any) -> list[str]:
    """Return the strings of a list; of anything else none."""
    return [item for item in _list(value) if isinstance(item, str)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
