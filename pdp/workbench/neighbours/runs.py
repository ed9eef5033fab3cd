"""Change the data flow in a request (`context.flow`), and relabel the flow for another manifest.

The labels of a tool's result affect later calls. So a synthetic value may refer to a field of a tool's result, and gets
the label that a manifest gives this field.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pdp.manifest.roles import RoleNames
from pdp.workbench.neighbours.values import GONE, Edit, as_dict, as_list, at, edited, texts

FLOW: Final = ("context", "flow")
_OF: Final = "made.read:"
_MARKING: Final = "made.unadmitted"
_SOURCES: Final = ("untrusted", "model", "trusted", "party", "created", "named", "endorsed", "fact", "prompt")
_LISTS: Final = (("created", "created"), ("parties", "party"), ("trusted", "trusted"))
_READS: Final = ("pure", "read-internal", "read-external")

Read = tuple[str, str]
"""The name of a tool, and the path of a field in the tool's result."""


def made_run(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the flow of a run that has read untrusted text, and in which the user has named all arguments of the call.

    Return None if `entries`, the tool's entries in the compared manifests, have no labels.
    """
    if not any("flow" in entry for entry in entries):
        return None
    roles = {name: role for entry in entries for name, role in as_dict(entry.get("roles")).items()}
    return {
        "tainted": True, "untrusted": ["made.reader"], "plan": None, "anchored": True, "intended": True,
        "markings": sorted({marking for entry in entries for marking in texts(entry.get("admits"))}),
        "arguments": [
            {"path": path, "role": role, "sources": ["prompt"], "from": [], "home": False, "links": []}
            for name, role in sorted(roles.items())
            for path in (name.replace("/*", "/0") if name.startswith("/") else f"/{name}",)
        ],
    }  # fmt: skip


def reads_between(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Read]:
    """Yield the result fields that may have different labels in the documents of two manifests."""
    before, after = as_dict(old.get("tools")), as_dict(new.get("tools"))
    for tool in sorted(before.keys() & after.keys()):
        labels = [as_dict(as_dict(tools[tool]).get("result")) for tools in (before, after)]
        if labels[0] != labels[1]:
            fields = {field for label in labels for name, _ in _LISTS for field in texts(label.get(name))}
            yield from ((tool, field) for field in sorted(fields | {"/made-up"}))


def run_changes(request: Any, reads: Sequence[Read]) -> Iterator[tuple[Edit, ...]]:
    """Yield changes of the flow in a request, if it has one. Synthetic values refer to the result fields in `reads`."""
    flow = as_dict(at(request, FLOW))
    arguments = [argument for argument in as_list(flow.get("arguments")) if isinstance(argument, dict)]

    def run(*changed: Mapping[str, Any], **fields: Any) -> tuple[Edit, ...]:
        return ((FLOW, {**flow, **fields, **({"arguments": [*changed]} if changed else {})}),)

    def of(**fields: Any) -> list[dict[str, Any]]:
        return [{**argument, **fields} for argument in arguments]

    if not flow:
        return
    for tool, field in reads:
        origin = [{"tool": tool, "call": f"{_OF}{field}"}]
        for anchored in (True, False):
            yield run(*of(**{"from": origin}), anchored=anchored, intended=anchored)
        yield run(*of(sources=["model"]), markings=[*texts(flow.get("markings")), f"{_OF}{tool}"])
    linked = [{"sources": ["untrusted"], "from": []}]
    yield run(*({**argument, "links": linked if argument.get("role") == "body" else []} for argument in arguments))
    # Addresses on a site that people approved.
    yield run(*of(sources=["endorsed", "model"]), markings=[_MARKING])
    yield run(plan=[])
    for source in _SOURCES:
        for anchored, intended in ((False, False), (True, True), (False, True)):
            yield run(*of(sources=[source]), anchored=anchored, intended=intended)
        for home in (True, False):
            yield run(*of(sources=[source], home=home), markings=[_MARKING])
        for place, argument in enumerate(arguments):
            yield run(*arguments[:place], {**argument, "sources": [source]}, *arguments[place + 1 :])
    yield run(*of(sources=["untrusted"]), tainted=False, untrusted=[])


def run_under(request: Any, manifest: Mapping[str, Any]) -> Any:
    """Return a request with the flow that an enforcement point with this manifest document would send."""
    entry = as_dict(at(manifest, ("tools", at(request, ("action", "properties", "tool")))))
    flow = at(request, FLOW)
    if not entry or not isinstance(flow, dict):
        return request
    if "flow" not in entry:
        return edited(request, (FLOW, GONE))
    arguments, roles = as_list(flow.get("arguments")), as_dict(entry.get("roles"))
    if not all(isinstance(argument, dict) and isinstance(argument.get("path"), str) for argument in arguments):
        return request
    names = RoleNames(roles)
    named = ((argument, names.of(argument["path"])) for argument in arguments)
    labelled = [
        _labelled({**argument, **({} if name is None else {"role": roles[name]})}, manifest)
        for argument, name in named
        if name is not None or not argument["path"]
    ]
    markings = texts(flow.get("markings"))
    made = {text for text in markings if text.startswith(_OF)}
    read = {marking for text in made for marking in texts(_result(manifest, text.removeprefix(_OF)).get("markings"))}
    if made:
        flow = {**flow, "markings": sorted(read.union(markings) - made)}
    return edited(request, (FLOW, {**flow, "arguments": labelled}))


def _labelled(argument: dict[str, Any], manifest: Mapping[str, Any]) -> dict[str, Any]:
    tool, call = (at(argument, ("from", 0, name)) for name in ("tool", "call"))
    if not isinstance(call, str) or not call.startswith(_OF):
        return argument
    field, result = call.removeprefix(_OF), _result(manifest, tool)
    is_read = at(manifest, ("tools", tool, "effect_class")) in _READS
    lists = _LISTS if is_read else _LISTS[:1]
    labels = (
        label for name, label in lists if any(f"{field}/".startswith(f"{path}/") for path in texts(result.get(name)))
    )
    label = next(labels, "trusted" if is_read and result.get("integrity") == "trusted" else "untrusted")
    # If the record has a name, the generated run assumes that the user named the record.
    return {**argument, "sources": ["named" if result.get("names") and label in ("trusted", "created") else label]}


def _result(manifest: Mapping[str, Any], tool: Any) -> dict[str, Any]:
    return as_dict(at(manifest, ("tools", tool, "result")))
