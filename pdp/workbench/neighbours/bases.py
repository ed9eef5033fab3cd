"""Build a complete call for each tool of a manifest, to which changes are applied later.

Changes are applied to an allowed call, because a change that adds a reason to a denied call does not show its effect.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from pdp.manifest.fields import SUBJECT
from pdp.manifest.model import Tool
from pdp.workbench.neighbours.entries import CORPUS
from pdp.workbench.neighbours.proposals import sourced_arguments
from pdp.workbench.neighbours.runs import made_run
from pdp.workbench.neighbours.values import GONE, Edit, as_dict, as_list, at, edited, texts
from pdp.workbench.neighbours.variants import Change, changes
from pdp.workbench.neighbours.vocabulary import Vocabulary

LIMIT: Final = 100
"""The caller's limit for every kind of limit. The amounts in the call stay below it."""

_CALL: Final = "sha256:made-up"
_ARGUMENTS: Final = ("context", "arguments")
_MOST_GRANTS: Final = 9
_TRIED: Final = 1000
_STEPS: Final = 5


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A tool to call, with the digest and version of the manifest that requests name.

    `stated` has the tool's entry, or its entries in two compared manifests, the newer entry last. `declared` is the
    complete entry, if known. `agents` are the agents that the manifest pins; agents that may call this tool come first.
    """

    name: str
    digest: str
    version: str
    stated: tuple[Mapping[str, Any], ...]
    declared: Tool | None = None
    agents: tuple[str, ...] = ()

    def names(self, field: str) -> list[str]:
        """Return the strings in a list field of the tool's entries."""
        return list(dict.fromkeys(name for entry in self.stated for name in texts(entry.get(field))))

    def limits(self, field: str) -> list[tuple[str, str]]:
        """Return pairs of a limit's name and the value of its `field`, from all entries of the tool."""
        limits = (as_dict(limit) for entry in self.stated for limit in as_list(entry.get("limits")))
        named = dict.fromkeys((limit.get("limit"), limit.get(field)) for limit in limits)
        return [(limit, name) for limit, name in named if isinstance(limit, str) and isinstance(name, str)]


def called_tools(manifest: Mapping[str, Any], digest: str) -> list[CalledTool]:
    """Return the tools in the document of an effective manifest."""
    version, pins = str(manifest.get("manifest_version", "")), as_dict(manifest.get("agents"))
    return [
        CalledTool(name, digest, version, (entry,), None, pinned_agents(pins, name))
        for name, entry in as_dict(manifest.get("tools")).items()
        if isinstance(entry, dict)
    ]


def pinned_agents(pins: Mapping[str, Any], tool: str) -> tuple[str, ...]:
    """Return the agents that a manifest pins; agents that may call this tool come first."""
    return tuple(sorted(pins, key=lambda agent: (tool not in as_dict(pins[agent]), agent)))


def complete_call(
    tool: CalledTool, vocabulary: Vocabulary, clearances: Sequence[str], directory: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a call with an idempotency key, and with each argument that the policies read.

    The subject of the call has every scope, clearance, limit and entitlement.
    """
    limits, sums = tool.limits("argument"), dict.fromkeys(limit for limit, _ in tool.limits("per"))
    corpora, documents = (list(as_dict(directory.get(name))) for name in ("corpora", "documents"))
    arguments: dict[str, Any] = {str(path[-1]): "made.up" for path in vocabulary.paths if path[:-1] == _ARGUMENTS}
    sources = [name for entry in tool.stated for name in texts(as_dict(entry.get("provenance")).get("required"))]
    arguments |= sourced_arguments(tool.declared.schema_ if tool.declared else {}, sources)
    arguments |= {argument: LIMIT // 2 for _, argument in limits}
    # The purpose that most manifest entries allow is used.
    admitting = Counter(name for entry in tool.stated for name in texts(entry.get("purposes")))
    purpose = max(admitting, key=admitting.__getitem__, default="made.purpose")
    taken = {"used": 0, "amount": LIMIT // 2, "total": LIMIT // 2, "window_ends": "2026-01-02T00:00:00Z"}
    spent = {"spent": [{"limit": limit, **taken} for limit in sums]} if sums else {}
    run = made_run(tool.stated)
    return {
        "subject": {
            "type": "user", "id": "made.subject",
            "properties": {
                "scopes": tool.names("scopes"), "clearances": list(clearances), "roles": [],
                "limits": dict.fromkeys((*(limit for limit, _ in limits), *sums), LIMIT),
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
            "arguments": arguments, "purpose": purpose,
            "agent": tool.agents[0] if tool.agents else None, "idempotency_key": "made-key",
            "call_digest": _CALL, "approval": None, "time": "2026-01-01T12:00:00Z", **spent,
            **({} if run is None else {"flow": run}),
        },
    }  # fmt: skip


def approved_call(request: dict[str, Any], tool: CalledTool) -> dict[str, Any]:
    """Return the call with a new approval that satisfies each entry of the tool: enough people with every role.

    If the subject may approve calls of an agent, an agent makes the call, and the subject approves as well.
    """
    stated = [as_dict(entry.get("approval")) for entry in tool.stated]
    quorum = max((approval["quorum"] for approval in stated if type(approval.get("quorum")) is int), default=1)
    roles = {role for approval in stated for role in texts(approval.get("approvers"))}
    people = range(min(max(quorum, 1), _MOST_GRANTS))
    grants = [{"sub": f"made.approver-{number}", "roles": sorted(roles - {SUBJECT})} for number in people]
    context = request["context"]
    if SUBJECT in roles:
        grants.append({"sub": request["subject"]["id"], "roles": [SUBJECT]})
        context = {**context, "agent": context["agent"] or "made.agent"}
    approval = {"id": "made-approval", "call_digest": _CALL, "age_seconds": 0, "grants": grants}
    return {**request, "context": {**context, "approval": approval}}


def allowed_call(
    request: dict[str, Any],
    vocabulary: Vocabulary,
    denials: Callable[[Any], AbstractSet[str]],
    directory: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Change attributes of a call one at a time until no rule denies it, if possible, and return the call.

    `denials` returns the codes for which a request is denied.
    """
    codes = denials(request)
    before: list[Edit] = []
    for _ in range(_STEPS):
        tried = _likeliest(request, changes(request, vocabulary, directory), before) if codes else []
        others = ((change, edited(request, *change.edits)) for change in tried)
        decided = ((change, other, denials(other)) for change, other in others)
        step = next(((change, other, fewer) for change, other, fewer in decided if fewer < codes), None)
        if step is None:
            break
        change, other, codes = step
        before += [(path, at(request, path)) for path, _ in change.edits]
        request = other
    # A change is reverted if the request without the change gets no further denial.
    for edit in before:
        other = edited(request, edit)
        if denials(other) <= codes:
            request = other
    return request


def _likeliest(request: Any, tried: Iterable[Change], before: Iterable[Edit]) -> list[Change]:
    """Return the changes to try, likely changes first. Only arguments may be removed, as all other parts are needed."""
    given = {path for path, _ in before}

    def order(change: Change) -> tuple[bool, int]:
        path = change.edits[0][0]
        return path not in given and at(request, path) is not GONE, change.place

    kept = (
        change
        for change in tried
        if not any(path[0] == "action" or (value is GONE and path[:2] != _ARGUMENTS) for path, value in change.edits)
    )
    return sorted(kept, key=order)[:_TRIED]


def _resource(tool: CalledTool) -> dict[str, Any]:
    kind, name = "tool", tool.name
    mapped = tool.declared.resource if tool.declared else None
    if mapped and isinstance(mapped.get("type"), str) and not mapped["type"].startswith("$"):
        kind, name = mapped["type"], "made.resource"
    if tool.stated[-1].get("pattern") == "search" or kind == "corpus":
        kind, name = "corpus", CORPUS
    return {"type": kind, "id": name, "properties": {} if kind == "corpus" else {"markings": []}}


def tool_of(request: Any) -> str | None:
    """Return the name of the tool in a request, or None. The request may have any structure."""
    tool = at(request, ("action", "properties", "tool"))
    return tool if isinstance(tool, str) else None
