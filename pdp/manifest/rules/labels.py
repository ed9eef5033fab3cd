"""Check the labels of results: paths that do not exist, and trusted texts that the result schema does not limit.

A trusted result may contain texts of users. For example, the system lists its channels, but users name the channels.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pdp.documents import nearest, shown_name
from pdp.documents.document import Path
from pdp.documents.validation import Finding, looks_like
from pdp.json import pointer_steps
from pdp.manifest.expressions.path import ANY
from pdp.manifest.fields import SINKS, EffectClass, Integrity
from pdp.manifest.model import Governable, ResultLabels, Tool
from pdp.manifest.rules.paths import part_of
from pdp.manifest.rules.texts import admits_address, bounds_text
from pdp.manifest.schema.walk import Alternative, SchemaNode, argument_schemas, walk

Steps = tuple[str, ...]

_LISTS: Final = ("trusted", "parties", "names", "created")
_TRUSTING: Final = ("trusted", "created")
_IRREVERSIBLE: Final = frozenset(("clear", "delete", "discard", "drop", "erase", "purge", "remove", "wipe"))
_MEMBER: Final = "*"
_OPEN: Final = "additionalProperties", "unevaluatedProperties"
_HINT: Final = (
    "limit texts by `enum`, `const`, `pattern` or `format`, lists by `items`, and objects by `additionalProperties: "
    "false` or `propertyNames`; or remove the label"
)


def label_findings(stated: Governable, entry: Tool) -> Iterator[Finding]:
    """Yield faults in the result labels of an entry, unless the merge with the other file has dropped the labels."""
    if stated.result is None or entry.result is None:
        return
    root = None if entry.result_schema is None else walk(entry.result_schema)
    lists = {name: tuple(map(pointer_steps, getattr(entry.result, name) or ())) for name in _LISTS}
    for name, at, path in _paths(stated.result):
        place, steps = ("result", name, at), pointer_steps(path)
        nodes = [] if root is None else [root]
        for step in steps:
            forms = _objects(nodes)
            known = dict.fromkeys(name for form in forms for name in (*form.properties, *form.conditional))
            names: Iterable[str | int] = (*known, ANY) if step == _MEMBER else (step,)
            nodes = [part for form in forms for name in names if (part := part_of(form, name)) is not None]
            if root is not None and (not nodes or (step not in known and looks_like(step, known))):
                message = f"{shown_name(path)} is not declared in the result schema"
                yield Finding(place, message, nearest(step, known) or "write a path of the result schema")
                break
        else:
            if name in _TRUSTING and steps in lists[name]:
                yield from _trust_findings(nodes, steps, (), place)
        for other in ("parties", "names") if name == "trusted" and steps in lists[name] else ():
            if any(_covers(steps, rest) or _covers(rest, steps) for rest in lists[other]):
                message = f"{shown_name(path)} is in `trusted`, but the path or a part of it is also in `{other}`"
                yield Finding(
                    place,
                    message,
                    "other people can write the values in `parties` and `names`: keep the path in one list",
                )
    if stated.result.integrity is entry.result.integrity is Integrity.TRUSTED:
        # The parties of a conversation choose their own names, so their paths are not trusted and not checked here,
        # except for tools with effects.
        labelled = (*_TRUSTING, *(() if entry.has_effects else ("parties",)))
        exempt = [steps for name in labelled for steps in lists[name]]
        yield from _trust_findings([] if root is None else [root], (), exempt, ("result", "integrity"))


def label_doubts(tool: Tool) -> Iterator[Finding]:
    """Yield warnings about likely mistakes in the data flow labels of a tool, for manifests that use labels."""
    arguments = argument_schemas(tool.schema_)
    if tool.roles is None and arguments and tool.effect_class is EffectClass.READ_EXTERNAL:
        message = (
            f"the arguments of {shown_name(tool.name)} leave the system, but no argument has a role by which "
            f"marked data is kept out"
        )
        hint = "state `roles`: destination for sent data, url for fetched addresses, `{}` if neither applies"
        yield Finding(("name",), message, hint, warning=True)
    if not tool.has_effects:
        return
    labels = tool.result or ResultLabels()
    if labels.trusted or labels.parties or labels.integrity is Integrity.TRUSTED:
        message = f"{shown_name(tool.name)} has effects, so only `created` fields of its result are trusted"
        hint = "label new ids as `created`, or declare an effect class that only reads"
        yield Finding(("result",), message, hint, warning=True)
    if tool.roles is None and arguments:
        message = f"{shown_name(tool.name)} has effects, but declares no `roles` for its arguments"
        hint = "state `roles` (destination, object, value, url, address, body), or `roles: {}` if no argument has one"
        yield Finding(("name",), message, hint, warning=True)
    if tool.admits and SINKS.isdisjoint((tool.roles or {}).values()):
        message = f"data may leave through {shown_name(tool.name)}, but no argument has the role of its destination"
        hint = "give the recipient's argument the role destination, url or address, or remove `admits`"
        yield Finding(("admits",), message, hint, warning=True)
    if tool.destructive is None and tool.name.partition("_")[0] in _IRREVERSIBLE:
        message = f"{shown_name(tool.name)} suggests an effect that cannot be undone"
        yield Finding(("name",), message, "state `destructive: true`, or false", warning=True)


def _paths(labels: ResultLabels) -> Iterator[tuple[str, int, str]]:
    for name in _LISTS:
        yield from ((name, at, path) for at, path in enumerate(getattr(labels, name) or ()))


def _covers(path: Steps, other: Steps) -> bool:
    return len(path) <= len(other) and all(
        step == part or _MEMBER in (step, part) for step, part in zip(path, other, strict=False)
    )


def _objects(nodes: Iterable[SchemaNode]) -> list[Alternative]:
    pending = deque(nodes)
    seen: set[SchemaNode] = set()
    forms: list[Alternative] = []
    while pending:
        node = pending.popleft()
        if node in seen:
            continue
        seen.add(node)
        for form in node.alternatives:
            if form.kinds is None or "object" in form.kinds:
                forms.append(form)
            if form.kinds and "array" in form.kinds and (items := part_of(form, ANY)) is not None:
                pending.append(items)
    return forms


def _takes_any_name(form: Alternative) -> bool:
    """Return whether an object may have arbitrary member names, which can then carry data just like values."""
    if not form.rest.keys().isdisjoint(_OPEN) and not (form.members and form.members.alternatives):
        return False
    return not any(
        all(name.values is not None or bounds_text(name) for name in walk(schema).alternatives)
        for schema in form.rest.get("propertyNames", ())
    )


def _trust_findings(
    nodes: Sequence[SchemaNode], start: Steps, exempt: Sequence[Steps], place: Path
) -> Iterator[Finding]:
    """Yield trusted values that the result schema does not limit. `nodes` is empty if the tool has no result schema."""
    field = place[1]
    if not nodes:
        yield Finding(place, f"`{field}` needs a `result_schema` that limits the trusted values", _HINT)
        return
    longest = max(map(len, exempt), default=0)
    pending = deque((start, node) for node in nodes)
    seen: set[tuple[SchemaNode, Steps]] = set()
    while pending:
        steps, node = pending.popleft()
        # Below the longest exempt path, a value's path does not affect the check, so it is left out of the key.
        key = node, steps if len(steps) <= longest else ()
        if key in seen or any(_covers(path, steps) for path in exempt):
            continue
        seen.add(key)
        for form in node.alternatives:
            if form.values is not None:
                continue
            if why := _distrust(form, field):
                where = shown_name("".join(f"/{step}" for step in steps)) if steps else "the result"
                yield Finding(place, f"`{field}` includes {where}, {why[0]}", why[1])
                return
            if form.items is not None:
                pending.append((steps, form.items))
            members = {_MEMBER: form.members, **form.conditional, **form.properties}
            pending += (((*steps, name), part) for name, part in members.items() if part is not None)


def _distrust(form: Alternative, field: str | int) -> tuple[str, str] | None:
    kinds, stated = form.types, form.rest.keys()
    unbounded = kinds is None or ("string" in kinds and not bounds_text(form))
    if kinds is not None and "array" in kinds:
        unbounded |= stated.isdisjoint(("items", "unevaluatedItems"))
    if kinds is not None and "object" in kinds:
        unbounded |= _takes_any_name(form)
    if unbounded:
        return "which the result schema does not limit", _HINT
    if field == "created" and kinds and "string" in kinds and admits_address(form):
        return (
            "which may be any address",
            "state a `pattern` that excludes mail addresses and links of other domains",
        )
    return None
