"""Create mutants: edits of Rego, weakened entries of an effective manifest, and changed data of a suite.

A mutant of a manifest weakens one field of an entry, or removes the agents' pins. A mutant of data multiplies a number
by ten, inverts a flag, or removes a key or a list element.
"""

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from pdp.documents import read_document
from pdp.json import thawed
from pdp.manifest.effective import made_of
from pdp.manifest.fields import READ_CLASSES, SINKS, Pattern, duration_seconds
from pdp.manifest.model import Tool
from pdp.manifest.schema.references import SHARED_PREFIX
from pdp.opa.modules import Module
from pdp.opa.syntax import Node, Source, package_of, parse_modules
from pdp.opa.tool import OpaTool
from pdp.workbench.mutation.mutant import DataMutant, Identities, ManifestMutant, RegoMutant, difference, file_name
from pdp.workbench.neighbours.values import GONE, JsonPath, as_dict, as_list, at, edited, is_number
from pdp.workbench.rego_edits import edits
from pdp.workbench.scenarios.files.suite import Suite, place_of_datum, place_of_field
from pdp.workbench.shown_file import shown_file

_DECISION: Final = "data.authz.decision"
_LOWER: Final = {"high": "medium", "medium": "low"}
_LIGHTER: Final = {
    "commit-high": "commit-low", "commit-low": "stage", "stage": "read-internal", "read-external": "read-internal",
    "read-internal": "pure",
}  # fmt: skip
# Patterns with rules beyond their fixed effect class (tool pattern library, patterns 1, 5, 8 and 10).
_WITH_RULES: Final = (Pattern.EXTRACTION, Pattern.COMPOSITION, Pattern.AGGREGATION, Pattern.SEARCH)
_WEAKER: Final[tuple[tuple[str, JsonPath, Mapping[Any, Any]], ...]] = (
    ("tier lowered", ("risk_tier",), _LOWER),
    ("effect class lightened", ("effect_class",), _LIGHTER),
    ("pattern dropped", ("pattern",), dict.fromkeys(_WITH_RULES, GONE)),
    ("idempotency off", ("idempotency", "required"), {True: False}),
    ("canonical writes allowed", ("writes",), {"canonical": "proposal"}),
    ("derived key dropped", ("idempotency", "key"), {"derive(args)": GONE}),
)
"""A kind of mutant, the path of a field, and for each value of the field a weaker value."""

_WEAKER_RULES: Final[tuple[tuple[str, JsonPath, Mapping[Any, Any]], ...]] = (
    ("profile lightened", ("flow", "profile"), {"strict": "balanced", "balanced": "watch"}),
    ("DENY softened", ("flow", "otherwise"), {"deny": "step_up"}),
    ("destructive off", ("destructive",), {True: False}),
)

_LOOSENED: Final = "schema loosened"
_CLOSED: Final = "additionalProperties"
_BOUNDS: Final = (
    "type", "enum", "const", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems",
)  # fmt: skip
_LISTS: Final[tuple[tuple[str, JsonPath], ...]] = (
    ("scope dropped", ("scopes",)), ("limit dropped", ("limits",)), ("marking dropped", ("markings",)),
    ("invariant dropped", ("invariants",)), ("approver dropped", ("approval", "approvers")),
    ("provenance dropped", ("provenance", "required")), ("result marking dropped", ("result", "markings")),
)  # fmt: skip
"""A kind of mutant, and the path of a list; each mutant drops one element of the list."""

_Change = tuple[str, JsonPath, Any]
"""The kind of a mutant, the path of the changed value, and the new value; `GONE` removes the value."""

MOST: Final = 400
"""The maximum number of mutants of a suite's data, because large directories have many similar entries."""

_TIMES: Final = 10


def rego_mutants(opa: Path, modules: Mapping[str, Module], *, paths: Collection[str] | None = None) -> list[RegoMutant]:
    """Return the mutants of all rules that a decision evaluates, by location. Some mutants may not compile.

    With `paths`, return only the mutants of these modules.
    """
    changed = {path: module for path, module in modules.items() if paths is None or path in paths}
    if not changed:
        return []
    trees = parse_modules(opa, changed)
    with tempfile.TemporaryDirectory(prefix="pdp-mutants-") as folder:
        evaluated = OpaTool(opa, Path(folder), modules).dependencies(_DECISION)
    return [
        mutant
        for path, module in changed.items()
        for mutant in _of_module(path, module, trees[path])
        if f"data.{mutant.package}.{mutant.owner.split('.')[0]}" in evaluated
    ]


def _of_module(path: str, module: Module, tree: Node) -> list[RegoMutant]:
    source = Source(Path(shown_file(module.file)), module.text)
    identities = Identities(path)
    mutants: dict[str, RegoMutant] = {}
    for edit in edits(tree, source):
        original = source.text[edit.span[0] : edit.span[1]]
        text = source.changed(edit.span, edit.text)
        # An insertion replaces no text, so the source line is part of its id.
        fields = identities.of(edit.rule, edit.kind, original, edit.text, about=original or source.line(edit.span[0]))
        if text in mutants:
            continue
        mutants[text] = RegoMutant(
            **fields,
            place=source.place(edit.span[0]),
            diff=difference(str(source.file), source.text, text),
            module=path,
            package=package_of(tree),
            text=text,
        )
    return list(mutants.values())


def manifest_mutants(suite: Suite) -> list[ManifestMutant]:
    """Return the mutants of a suite's effective manifest, without duplicates."""
    manifest, file = suite.manifest, suite.files["manifest"][0]
    stated = read_document(file)
    governance = [read_document(other) for other in suite.files.get("governance", ())]
    identities = Identities(file_name(file))
    agents = manifest.document.get("agents")
    results = [tool.result for tool in manifest.tools.values() if tool.result]
    marked = list(dict.fromkeys(marking for result in results for marking in result.markings or ()))
    mutants: dict[str, ManifestMutant] = {}
    for tool in manifest.tools.values():
        entry, written = tool.model_dump(mode="json", by_alias=True), _written(tool)
        for kind, path, value in (*_weakenings(entry), *_of_labels(entry, marked)):
            weaker = Tool.model_validate(edited(entry, (path, value)))
            mutated = made_of(manifest.version, {**manifest.tools, tool.name: weaker}, agents=agents)
            if mutated.digest == manifest.digest:
                continue
            # The id contains no positions, because edits elsewhere in the file change them.
            way = [step for step in path if isinstance(step, str)]
            original, changed = (_words(way[-1], each) for each in (at(entry, path), value))
            mutant = ManifestMutant(
                **identities.of(tool.name, kind, original, changed, about=f"{'.'.join(way)} {original}"),
                place=place_of_field(tool, path, stated, governance),
                diff=difference(f"{file}, {tool.name} in effect", written, _written(weaker)),
                manifest=mutated,
                tool=tool.name,
            )
            mutants.setdefault(mutated.digest, mutant)
    if agents is None:
        return list(mutants.values())
    before = _block({"agents": thawed(agents)})
    unpinned = ManifestMutant(
        **identities.of("agents", "pins removed", before, ""),
        place=stated.place(("agents",)),
        diff=difference(str(file), before, ""),
        manifest=made_of(manifest.version, manifest.tools, agents=None),
        tool=None,
    )
    return [*mutants.values(), unpinned]


def _written(tool: Tool) -> str:
    return _block(tool.model_dump(mode="json", by_alias=True, exclude_none=True))


def _words(name: str, value: Any) -> str:
    if value is GONE or value is None:
        return ""
    named = as_dict(value)
    return f"{name}: {_flow(named.get('limit', named.get('id', value)))}"


def _weakenings(entry: Mapping[str, Any]) -> Iterator[_Change]:
    for kind, path, weaker in _WEAKER:
        if (stated := at(entry, path)) in weaker:
            yield kind, path, weaker[stated]
    for kind, path in _LISTS:
        yield from ((kind, (*path, index), GONE) for index in range(len(as_list(at(entry, path)))))
    # If there is only one marking, the mutants that drop a marking already empty the list.
    if len(as_list(entry["markings"])) > 1:
        yield "markings emptied", ("markings",), []
    if entry["purposes"] is not None:
        yield "purposes removed", ("purposes",), GONE
        yield "purposes emptied", ("purposes",), []
    yield from _of_approval(entry["approval"], limited=bool(entry["limits"]))
    for field in ("resource", "context"):
        for key in as_dict(entry[field]):
            # A mutant without type and id of the resource is not made, because the loader rejects it.
            if field == "context" or key not in {"type", "id"}:
                yield f"{field} field dropped", (field, key), GONE
    # An argument that names sources stays required: the contract requires it even if the schema does not.
    named = [("required", name) for name in entry["provenance"]["required"]]
    yield from (
        each for each in _loosened(entry["schema"], ("schema",)) if (each[1][1], at(entry, each[1])) not in named
    )


def _of_labels(entry: Mapping[str, Any], marked: Sequence[str]) -> Iterator[_Change]:
    """Yield the weakenings of an entry's flow labels, if it has any. `marked` are the markings of all results."""
    flow, roles, result = (as_dict(entry[name]) for name in ("flow", "roles", "result"))
    if not flow:
        return
    writes, sinks = entry["effect_class"] not in READ_CLASSES, not SINKS.isdisjoint(roles.values())
    trusted, parties, names = (as_list(result.get(name)) for name in ("trusted", "parties", "names"))
    if writes:
        yield "answer believed", ("result", "created"), [""]
    elif result.get("integrity") != "trusted":
        yield "result believed", ("result", "integrity"), "trusted"
    for path in parties:
        others = [other for other in parties if other != path]
        stated = {name: value for name, value in result.items() if value is not None}
        yield "party believed", ("result",), {**stated, "parties": others, "trusted": [*trusted, path]}
    for path in (*trusted, *parties):
        # `names` may also list other fields of the record that the system writes.
        if path not in names and {*trusted} - {path}:
            yield "record named by more", ("result", "names"), [*names, path]
    yield from (("role dropped", ("roles", name), GONE) for name in roles)
    admits = as_list(entry["admits"])
    yield from (("marking admitted", ("admits",), [*admits, name]) for name in marked if sinks and name not in admits)
    # For a tool that only reads, these rules apply only if its arguments send data out.
    for kind, path, weaker in _WEAKER_RULES if writes or sinks else ():
        if (old := at(entry, path)) in weaker:
            yield kind, path, weaker[old]
    yield from (("rule dropped", ("flow", "rules", index), GONE) for index in range(len(as_list(flow.get("rules")))))


def _of_approval(approval: Mapping[str, Any], *, limited: bool) -> Iterator[_Change]:
    if approval["quorum"] > 1:
        yield "quorum lowered", ("approval", "quorum"), approval["quorum"] - 1
    if limited:
        within = approval["unless_within_limits"]
        yield f"unless_within_limits {'off' if within else 'on'}", ("approval", "unless_within_limits"), not within
    if approval["approvers"]:
        if (lasting := approval.get("lasting")) is not None:
            reaches = [reach for reach in ("run", "until") if reach not in lasting["reaches"]]
            if reaches:
                yield "grant reaches further", ("approval", "lasting", "reaches"), [*lasting["reaches"], *reaches]
        yield "expiry longer", ("approval", "expires"), f"PT{duration_seconds(approval['expires']) * _TIMES:g}S"


def _loosened(schema: Mapping[str, Any], path: JsonPath) -> Iterator[_Change]:
    """Yield the removal of each restriction in a schema. By default, the top level forbids additional properties."""
    dropped: list[JsonPath] = [("required", index) for index in range(len(as_list(schema.get("required"))))]
    dropped += [(name,) for name in _BOUNDS if name in schema and (name, schema[name]) != ("type", "object")]
    yield from ((_LOOSENED, (*path, *steps), GONE) for steps in dropped)
    if schema.get(_CLOSED, len(path) > 1) is False:
        yield _LOOSENED, (*path, _CLOSED), True
    # A shared type is not mutated, because the manifest only refers to it.
    inner = [((word, key), part) for word in ("properties", "$defs") for key, part in as_dict(schema.get(word)).items()]
    for steps, part in (*inner, (("items",), schema.get("items"))):
        if isinstance(part, dict) and not steps[-1].startswith(SHARED_PREFIX):
            yield from _loosened(part, (*path, *steps))


def data_mutants(suite: Suite) -> list[DataMutant]:
    """Return the mutants of a suite's data. If there are more than `MOST`, an even selection is returned."""
    data, files = suite.data, suite.files.get("data", ())
    if not data or not files:
        return []
    documents = [read_document(file) for file in files]
    changes = [change for root in data for change in _changes(data[root], (root,))]
    if len(changes) > MOST:
        changes = [changes[number * len(changes) // MOST] for number in range(MOST)]
    identities = Identities(file_name(files[-1]))
    mutants = []
    for kind, path, after in changes:
        owner = ".".join(str(step) for step in path if isinstance(step, str))
        changed = edited(dict(data), (path, after))
        mutants.append(
            DataMutant(
                **identities.of(owner, kind, _flow(at(data, path)), "" if after is GONE else _flow(after)),
                place=place_of_datum(documents, path),
                # Only the part of the data with the change is compared, so that the diff is short enough to read.
                diff=difference(str(files[-1]), *(_block(at(whole, path[:2])) for whole in (data, changed))),
                data=changed,
            )
        )
    return mutants


def _changes(value: Any, path: JsonPath) -> Iterator[_Change]:
    if isinstance(value, bool):
        yield "flag turned", path, not value
    elif is_number(value):
        yield "number ten times larger", path, value * _TIMES if value else 1
    elif isinstance(value, dict | list):
        kind = "key dropped" if isinstance(value, dict) else "element dropped"
        for step, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield kind, (*path, step), GONE
            yield from _changes(inner, (*path, step))


def _block(value: Any) -> str:
    return "" if value is GONE else yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def _flow(value: Any) -> str:
    return str(
        yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True).removesuffix("...\n")
    ).strip()
