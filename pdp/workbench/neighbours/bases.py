"""Calls to vary: for each entry of a manifest one that has all it needs, made from the entry and the policies.

In a call that is denied for five reasons, a sixth shows nothing: variants begin at a call that is ALLOW.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.neighbours.entries import CORPUS
from pdp.workbench.neighbours.proposals import example_arguments
from pdp.workbench.neighbours.values import GONE, as_dict, as_list, at, edited, texts
from pdp.workbench.neighbours.variants import changes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pdp.manifest.model import Tool
    from pdp.workbench.neighbours.values import Edit, JsonPath
    from pdp.workbench.neighbours.variants import Change
    from pdp.workbench.neighbours.vocabulary import Vocabulary

LIMIT: Final = 100
"""What the caller may do of whatever is limited; the call stays below it."""

_CALL: Final = "sha256:made-up"
_ARGUMENTS: Final = ("context", "arguments")
_MOST_GRANTS: Final = 9
_TRIED: Final = 500
_STEPS: Final = 5


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A tool to call.

    Attributes:
        name: its name; digest: of the manifest that requests name; version: that manifest's.
        stated: its entry in effect, or those of two manifests to compare, the newer last; plain JSON.
        declared: the whole entry, with schema and mapping, where it is known.
        agents: those that the manifest pins, the agents of this tool first; empty when it pins none.
    """

    name: str
    digest: str
    version: str
    stated: tuple[Mapping[str, Any], ...]
    declared: Tool | None = None
    agents: tuple[str, ...] = ()

    def names(self, field: str) -> list[str]:
        """Return the strings of a list in the entries."""
        return list(dict.fromkeys(name for entry in self.stated for name in texts(entry.get(field))))

    def limits(self) -> list[tuple[str, str]]:
        """Return limit and argument, of all entries."""
        limits = (as_dict(limit) for entry in self.stated for limit in as_list(entry.get("limits")))
        named = [(limit.get("limit"), limit.get("argument")) for limit in limits]
        return [
            (limit, name) for limit, name in dict.fromkeys(named) if isinstance(limit, str) and isinstance(name, str)
        ]


def called_tools(manifest: Mapping[str, Any], digest: str) -> list[CalledTool]:
    """Return the tools of an effective manifest, given as its document."""
    version, pins = str(manifest.get("manifest_version", "")), as_dict(manifest.get("agents"))
    return [
        CalledTool(name, digest, version, (entry,), None, pinned_agents(pins, name))
        for name, entry in as_dict(manifest.get("tools")).items()
        if isinstance(entry, dict)
    ]


def pinned_agents(pins: Mapping[str, Any], tool: str) -> tuple[str, ...]:
    """Return the agents that a manifest pins, those of this tool first."""
    return tuple(sorted(pins, key=lambda agent: (tool not in as_dict(pins[agent]), agent)))


def complete_call(
    tool: CalledTool, vocabulary: Vocabulary, clearances: Sequence[str], directory: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a call by somebody who holds every scope, clearance, limit and entitlement, with a key.

    Args:
        tool: what is called.
        vocabulary: of the policies: arguments that they read are there.
        clearances: every marking that there is.
        directory: corpora and documents.
    """
    corpora, documents = (list(as_dict(directory.get(name))) for name in ("corpora", "documents"))
    read = (path for path in vocabulary.paths if path[:2] == _ARGUMENTS)
    arguments: dict[str, Any] = {str(path[2]): "made.up" for path in read if len(path) == len(_ARGUMENTS) + 1}
    arguments |= example_arguments(tool.declared.schema_) if tool.declared else {}
    arguments |= {argument: LIMIT // 2 for _, argument in tool.limits()}
    sources = (name for entry in tool.stated for name in texts(as_dict(entry.get("provenance")).get("required")))
    arguments |= {name: ["source-1"] for name in sources if not as_list(arguments.get(name))}
    # A purpose that all entries admit, if there is one.
    purposes = sorted(
        tool.names("purposes"), key=lambda name: -sum(name in texts(entry.get("purposes")) for entry in tool.stated)
    )
    return {
        "subject": {
            "type": "user", "id": "made.subject",
            "properties": {
                "scopes": tool.names("scopes"), "clearances": list(clearances), "roles": [],
                "limits": {limit: LIMIT for limit, _ in tool.limits()},
                "entitlements": {"corpora": corpora, "documents": documents},
            },
        },
        "action": {
            "name": str(tool.stated[-1].get("pdp_action", tool.name)),
            "properties": {
                "tool": tool.name, "manifest_version": tool.version, "manifest_digest": tool.digest,
            },
        },
        "resource": _resource(tool),
        "context": {
            "arguments": arguments, "purpose": purposes[0] if purposes else "made.purpose",
            "agent": tool.agents[0] if tool.agents else None, "idempotency_key": "made-key",
            "call_digest": _CALL, "approval": None, "time": "2026-01-01T12:00:00Z",
        },
    }  # fmt: skip


def valid_approval(tool: CalledTool) -> dict[str, Any]:
    """Return an approval that every entry of the tool takes: enough people, each with every role, just now."""
    stated = [as_dict(entry.get("approval")) for entry in tool.stated]
    quorum = max((approval["quorum"] for approval in stated if type(approval.get("quorum")) is int), default=1)
    roles = sorted({role for approval in stated for role in texts(approval.get("approvers"))})
    people = range(min(max(quorum, 1), _MOST_GRANTS))
    grants = [{"sub": f"made.approver-{number}", "roles": roles} for number in people]
    return {"id": "made-approval", "call_digest": _CALL, "age_seconds": 0, "grants": grants}


def allowed_call(
    request: dict[str, Any],
    vocabulary: Vocabulary,
    denials: Callable[[Any], AbstractSet[str]],
    directory: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the call with what rules beside the entry ask for, given one attribute after the other.

    Args:
        request: as of `complete_call`.
        vocabulary: of the policies.
        denials: the codes for which a request is denied; empty: it is not.
        directory: as of `changes`.
    """
    codes = denials(request)
    needed: list[Edit] = []
    for _ in range(_STEPS):
        if not codes:
            break
        for change in _likeliest(request, changes(request, vocabulary, directory), {path for path, _ in needed}):
            # Another action is another call. Only an argument may have to be absent: all else of the call is needed.
            if any(path[0] == "action" or (value is GONE and path[:2] != _ARGUMENTS) for path, value in change.edits):
                continue
            other = edited(request, *change.edits)
            fewer = denials(other)
            if fewer < codes:
                needed += [(path, at(request, path)) for path, _ in change.edits]
                request, codes = other, fewer
                break
        else:
            break
    # What turns out not to be needed is taken back.
    for before in needed:
        other = edited(request, before)
        if denials(other) <= codes:
            request = other
    return request


def _likeliest(request: Any, tried: Sequence[Change], given: AbstractSet[JsonPath]) -> list[Change]:
    """The changes to try: what the call did not have at first before all else, and first values before second ones."""
    places: Counter[str] = Counter()
    ordered = []
    for change in tried:
        places[change.dimension] += 1
        path = change.edits[0][0]
        ordered.append((path not in given and at(request, path) is not GONE, places[change.dimension], change))
    return [change for *_, change in sorted(ordered, key=lambda candidate: candidate[:2])[:_TRIED]]


def _resource(tool: CalledTool) -> dict[str, Any]:
    kind, name = "tool", tool.name
    mapped = tool.declared.resource if tool.declared else None
    if mapped and isinstance(mapped.get("type"), str) and not mapped["type"].startswith("$"):
        kind, name = mapped["type"], "made.resource"
    if tool.stated[-1].get("pattern") == "search" or kind == "corpus":
        kind, name = "corpus", CORPUS
    return {"type": kind, "id": name, "properties": {} if kind == "corpus" else {"markings": []}}


def tool_of(request: Any) -> str | None:
    """Return the tool that a request names, of whatever shape the request is."""
    tool = at(request, ("action", "properties", "tool"))
    return tool if isinstance(tool, str) else None
