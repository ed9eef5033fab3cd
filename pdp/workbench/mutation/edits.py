"""What is broken in one place: Rego by an edit of its text, an effective manifest, the data that a suite states.

An entry of a manifest is weakened, named as a reviewer would, or the pins are gone. Of data, numbers are ten times
larger, flags turned, lists shorter, keys gone.
"""

from __future__ import annotations

import tempfile
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from pydantic import BaseModel

from pdp.documents import read_document
from pdp.json import thawed
from pdp.manifest.effective import made_of
from pdp.manifest.fields import EffectClass, Pattern, RiskTier, duration_seconds
from pdp.manifest.schema.references import SHARED_PREFIX
from pdp.workbench.mutation.mutant import DataMutant, Identities, ManifestMutant, RegoMutant, difference, file_name
from pdp.workbench.neighbours.values import GONE, JsonPath, edited
from pdp.workbench.opa.edits import edits
from pdp.workbench.opa.syntax import Node, Source, package_of, parse_modules
from pdp.workbench.opa.tool import OpaTool
from pdp.workbench.reports.shown_file import shown_file
from pdp.workbench.scenarios.files.suite import place_of_datum, place_of_field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.manifest.model import EffectiveApproval, Tool
    from pdp.workbench.opa.modules import Module
    from pdp.workbench.scenarios.files.suite import Suite

_DECISION: Final = "data.authz.decision"
_LOWER: Final = {RiskTier.HIGH: RiskTier.MEDIUM, RiskTier.MEDIUM: RiskTier.LOW}
_LIGHTER: Final = {
    EffectClass.COMMIT_HIGH: EffectClass.COMMIT_LOW,
    EffectClass.COMMIT_LOW: EffectClass.STAGE,
    EffectClass.STAGE: EffectClass.READ_INTERNAL,
    EffectClass.READ_EXTERNAL: EffectClass.READ_INTERNAL,
    EffectClass.READ_INTERNAL: EffectClass.PURE,
}
_WEAKER: Final[tuple[tuple[str, str, Mapping[Any, Any]], ...]] = (
    ("tier lowered", "risk_tier", _LOWER),
    ("effect class lightened", "effect_class", _LIGHTER),
    # Patterns with rules of their own, beyond the class that they fix (tool pattern library, patterns 1, 5, 8 and 10).
    (
        "pattern dropped",
        "pattern",
        dict.fromkeys((Pattern.EXTRACTION, Pattern.COMPOSITION, Pattern.AGGREGATION, Pattern.SEARCH)),
    ),
)
"""Kind, field, and what becomes of its values."""

_LOOSENED: Final = "schema loosened"
_CLOSED: Final = "additionalProperties"
_LONGER: Final = 10
_BOUNDS: Final = (
    "type", "enum", "const", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems",
)  # fmt: skip
_LISTS: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    ("scope dropped", ("scopes",), "scopes"),
    ("limit dropped", ("limits",), "limits"),
    ("marking dropped", ("markings",), "markings"),
    ("invariant dropped", ("invariants",), "invariants"),
    ("approver dropped", ("approval", "approvers"), "approvers"),
    ("provenance dropped", ("provenance", "required"), "provenance"),
)
"""Kind, way to the list, and what a list is called, of which each element is dropped."""


_Weakening = tuple[str, JsonPath, str, str, Any]
"""What is done, where in the entry, that part in words before and after, and its value then; `GONE`: nothing."""

MOST: Final = 400
"""How many mutants of one suite's data are made at most: directories may be large, and their entries are alike."""

_TIMES: Final = 10


def rego_mutants(opa: Path, modules: Mapping[str, Module]) -> list[RegoMutant]:
    """Return the mutants of modules by their places, without those of rules that no decision asks for.

    A mutant whose text is that of another one is left out. Whether one compiles is not known yet.

    Raises:
        FileFaultsError: a module is not Rego.
        UsageError: OPA cannot be run.
    """
    trees = parse_modules(opa, modules)
    with tempfile.TemporaryDirectory(prefix="pdp-mutants-") as folder:
        asked = OpaTool(opa, Path(folder), modules).dependencies(_DECISION)
    return [
        mutant
        for path, module in modules.items()
        for mutant in _of_module(path, module, trees[path])
        if f"data.{mutant.package}.{mutant.owner.split('.')[0]}" in asked
    ]


def _of_module(path: str, module: Module, tree: Node) -> list[RegoMutant]:
    source = Source(Path(shown_file(module.file)), module.text)
    identities = Identities(path)
    mutants: dict[str, RegoMutant] = {}
    for edit in edits(tree, source):
        original = source.text[edit.span[0] : edit.span[1]]
        text = source.changed(edit.span, edit.text)
        # An insertion has no text of its own: the line tells which one it is.
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
    """Return the mutants of a suite's effective manifest, none twice."""
    manifest, file = suite.manifest, suite.files["manifest"][0]
    stated = read_document(file)
    governance = [read_document(other) for other in suite.files.get("governance", ())]
    identities = Identities(file_name(file))
    agents = manifest.document.get("agents")
    mutants: dict[str, ManifestMutant] = {}
    for tool in manifest.tools.values():
        for kind, path, original, changed, value in _weakenings(tool):
            weaker: Tool = _replaced(tool, path, value)
            mutated = made_of(manifest.version, {**manifest.tools, tool.name: weaker}, agents=agents)
            if mutated.digest == manifest.digest:
                continue
            # Without positions, which change with edits elsewhere.
            way = ".".join(step for step in path if isinstance(step, str))
            mutant = ManifestMutant(
                **identities.of(tool.name, kind, original, changed, about=f"{way} {original}"),
                place=place_of_field(tool, path, stated, governance),
                diff=difference(f"{file}, {tool.name} in effect", _written(tool), _written(weaker)),
                manifest=mutated,
                tool=tool.name,
            )
            mutants.setdefault(mutated.digest, mutant)
    if agents is None:
        return list(mutants.values())
    before = yaml.safe_dump({"agents": thawed(agents)}, sort_keys=False)
    unpinned = ManifestMutant(
        **identities.of("agents", "pins removed", before, ""),
        place=stated.place(("agents",)),
        diff=difference(str(file), before, ""),
        manifest=made_of(manifest.version, manifest.tools, agents=None),
        tool=None,
    )
    return [*mutants.values(), unpinned]


def _written(tool: Tool) -> str:
    entry = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    return yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=100)


def _replaced(holder: Any, path: JsonPath, value: Any) -> Any:
    """Return a part of an entry with something else at `path`; of a model, a field that is gone is None."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(holder, BaseModel):
        field = "schema_" if step == "schema" else str(step)
        inner = _replaced(getattr(holder, field), rest, value)
        return holder.model_copy(update={field: None if inner is GONE else inner})
    if isinstance(holder, tuple):
        return tuple(edited(list(holder), (path, value)))
    return edited(holder, (path, value))


def _weakenings(tool: Tool) -> Iterator[_Weakening]:
    """Yield every weakening of an effective entry. A new kind has its lines in one of these."""
    for kind, field, weaker in _WEAKER:
        stated = getattr(tool, field)
        if stated in weaker:
            value = weaker[stated]
            yield kind, (field,), f"{field}: {stated}", "" if value is None else f"{field}: {value}", value
    for kind, path, name in _LISTS:
        for index, item in enumerate(reduce(getattr, path, tool) or ()):
            yield kind, (*path, index), f"{name}: {_shown(item)}", "", GONE
    yield from _of_terms(tool)
    yield from _of_approval(tool.approval, limited=bool(tool.limits))
    for field in ("resource", "context"):
        for key, value in (getattr(tool, field) or {}).items():
            # A resource without type and id is refused for what it is.
            if field == "context" or key not in {"type", "id"}:
                yield f"{field} field dropped", (field, key), f"{key}: {value}", "", GONE
    yield from _loosened(tool.schema_, ("schema",))


def _of_terms(tool: Tool) -> Iterator[_Weakening]:
    # Of one marking, dropping it has emptied the list.
    if tool.markings and len(tool.markings) > 1:
        yield "markings emptied", ("markings",), f"markings: [{', '.join(tool.markings)}]", "markings: []", ()
    if tool.purposes is not None:
        before = f"purposes: [{', '.join(tool.purposes)}]"
        yield "purposes removed", ("purposes",), before, "", GONE
        if tool.purposes:
            yield "purposes emptied", ("purposes",), before, "purposes: []", ()
    if tool.idempotency.required:
        yield "idempotency off", ("idempotency", "required"), "required: true", "required: false", False
        if tool.idempotency.key is not None:
            yield "derived key dropped", ("idempotency", "key"), f"key: {tool.idempotency.key}", "", GONE


def _of_approval(approval: EffectiveApproval, *, limited: bool) -> Iterator[_Weakening]:
    weaker: list[tuple[str, str, Any]] = []
    if approval.quorum > 1:
        weaker.append(("quorum lowered", "quorum", approval.quorum - 1))
    if limited:
        kind = f"unless_within_limits {'off' if approval.unless_within_limits else 'on'}"
        weaker.append((kind, "unless_within_limits", not approval.unless_within_limits))
    if approval.approvers:
        weaker.append(("expiry longer", "expires", f"PT{duration_seconds(approval.expires) * _LONGER:g}S"))
    for kind, field, value in weaker:
        before, after = (
            str(setting).lower() if isinstance(setting, bool) else setting
            for setting in (getattr(approval, field), value)
        )
        yield kind, ("approval", field), f"{field}: {before}", f"{field}: {after}", value


def _loosened(schema: dict[str, Any], path: JsonPath) -> Iterator[_Weakening]:
    """Yield each rule of a schema that can be taken away; the outermost is opened also where it says nothing."""
    required = schema.get("required")
    for index, name in enumerate(required if isinstance(required, list) else ()):
        yield _LOOSENED, (*path, "required", index), f"required: {name}", "", GONE
    if schema.get("additionalProperties") is False:
        yield _LOOSENED, (*path, _CLOSED), f"{_CLOSED}: false", f"{_CLOSED}: true", True
    for name in _BOUNDS:
        if name in schema and not (name == "type" and schema["type"] == "object"):
            yield _LOOSENED, (*path, name), f"{name}: {schema[name]}", "", GONE
    # A shared type is no statement of the manifest's: it only refers to it.
    own = {key: inner for key, inner in (schema.get("$defs") or {}).items() if not key.startswith(SHARED_PREFIX)}
    for step, inner in (
        *((("properties", key), inner) for key, inner in (schema.get("properties") or {}).items()),
        *((("$defs", key), inner) for key, inner in own.items()),
        (("items",), schema.get("items")),
    ):
        if isinstance(inner, dict):
            yield from _loosened(inner, (*path, *step))
    if len(path) == 1 and _CLOSED not in schema:
        yield _LOOSENED, (*path, _CLOSED), "", f"{_CLOSED}: true", True


def _shown(item: Any) -> str:
    if isinstance(item, str):
        return item
    named = item.model_dump(mode="json", exclude_none=True)
    return str(named.get("limit", named.get("id", named)))


def data_mutants(suite: Suite) -> list[DataMutant]:
    """Return the mutants of a suite's data, at most `MOST`, evenly chosen."""
    data, files = suite.data, suite.files.get("data", ())
    if not data or not files:
        return []
    documents = [read_document(file) for file in files]
    changes = [change for root in data for change in _changes(data[root], (root,))]
    if len(changes) > MOST:
        changes = [changes[number * len(changes) // MOST] for number in range(MOST)]
    identities = Identities(file_name(files[-1]))
    mutants = []
    for kind, path, before, after in changes:
        owner = ".".join(str(step) for step in path if isinstance(step, str))
        changed = edited(dict(data), (path, after))
        mutants.append(
            DataMutant(
                **identities.of(owner, kind, _flow(before), "" if after is GONE else _flow(after)),
                place=place_of_datum(documents, path),
                diff=difference(str(files[-1]), _around(data, path), _around(changed, path)),
                data=changed,
            )
        )
    return mutants


def _changes(value: Any, path: JsonPath) -> Iterator[tuple[str, JsonPath, Any, Any]]:
    if isinstance(value, bool):
        yield "flag turned", path, value, not value
    elif isinstance(value, int | float):
        yield "number ten times larger", path, value, value * _TIMES if value else 1
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield "key dropped", (*path, key), inner, GONE
            yield from _changes(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield "element dropped", (*path, index), inner, GONE
            yield from _changes(inner, (*path, index))


def _around(data: Mapping[str, Any], path: JsonPath) -> str:
    """The part of the data in which the change stands, small enough to read."""
    value: Any = data
    for step in path[:2]:
        value = value[step] if isinstance(value, dict) and step in value else value
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def _flow(value: Any) -> str:
    return str(
        yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True).removesuffix("...\n")
    ).strip()
