"""Checks for authors and reviewers: likely mistakes, and the contract clauses that each tool meets."""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from pdp.documents import shown_name
from pdp.documents.document import Path
from pdp.documents.validation import Finding
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.fields import READ_CLASSES, SUBJECT, UNIVERSAL_CLAUSES, Clause, EffectClass, RiskTier, Writes
from pdp.manifest.model import ActionRules, DeclaredTool, Ontology, Tool
from pdp.manifest.rules.labels import label_doubts
from pdp.manifest.rules.rules import says_it_changes
from pdp.manifest.schema.compile import closed_schema
from pdp.manifest.schema.references import direct
from pdp.manifest.schema.walk import BRANCHES, Alternative, SchemaNode, argument_schemas, walk

_SNAKE_CASE: Final = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+")
_WORD: Final = re.compile(r"[A-Za-z]+")
_BOUNDS: Final = (
    (("integer", "number"), ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
    (("string",), ("minLength",), ("maxLength",)),
    (("array",), ("minItems",), ("maxItems",)),
    (("object",), ("minProperties",), ("maxProperties",)),
)
# Keywords that can only restrict a value, and keywords that do not describe its content.
_NARROWING: Final = frozenset(("allOf", "dependentSchemas", "else", "then"))
_CONDITIONS: Final = frozenset(("$defs", "definitions", "if", "not", "propertyNames"))
# The maximum number of steps for reading one schema. 10,000 steps take about 0.2 s.
_MOST_WORK: Final = 10_000
_HINTS: Final = {
    Clause.TYPED: "state it in the manifest; refer to types of the `ontology` file with `$ref`",
    Clause.VERSIONED: "state `version` here, and pin it in `agents` of the manifest",
    Clause.EVAL_GATED: "state `eval_pack` here, and `release` here or in the governance file",
    Clause.PROVENANCE: "write `writes: proposal` and `provenance: {required: [ARGUMENT]}`, naming its sources",
}


@dataclass(frozen=True, slots=True)
class ContractReport:
    """The fields that a tool lacks for each of the six contract clauses. A clause is met if no field is missing."""

    tool: str
    missing: Mapping[Clause, tuple[str, ...]]

    @property
    def met(self) -> tuple[Clause, ...]:
        """The contract clauses that the tool meets."""
        return tuple(clause for clause, missing in self.missing.items() if not missing)


def lint(manifest: EffectiveManifest) -> tuple[ContractReport, ...]:
    """Return the `ContractReport` of each tool, in the order of the manifest."""
    pins = manifest.document.get("agents")
    pinned = None if pins is None else {name for tools in pins.values() for name in tools}
    return tuple(
        ContractReport(tool.name, {clause: missing[clause] for clause in UNIVERSAL_CLAUSES})
        for tool in manifest.tools.values()
        for missing in (_missing(tool, pinned, manifest.ontology),)
    )


def clause_findings(
    tool: Tool,
    clauses: Sequence[Clause],
    pinned: AbstractSet[str] | None,
    ontology: Ontology | None,
    *,
    doubtful: bool = False,
) -> Iterator[Finding]:
    """Yield the required `clauses` that a tool does not meet. With `doubtful`, also warn about missing `provenance`."""
    for clause, lacking in _missing(tool, pinned, ontology).items():
        hint = _HINTS.get(clause, "state it here or in the governance file")
        if lacking and clause in clauses:
            message = f"{shown_name(tool.name)} does not meet clause `{clause}`, which the governance file demands"
            yield Finding(("name",), f"{message}: it has no {', no '.join(lacking)}", hint)
        elif lacking and clause is Clause.PROVENANCE and doubtful and says_it_changes(tool):
            message = f"{shown_name(tool.name)} has effects and no {', no '.join(lacking)}"
            yield Finding(("name",), message, hint, warning=True)


def _missing(tool: Tool, pinned: AbstractSet[str] | None, ontology: Ontology | None) -> dict[Clause, tuple[str, ...]]:
    """Return the missing fields by clause. Every tool meets `audited`, because all dispatches are recorded."""
    side_effects = tool.safety.side_effects if tool.safety else None
    may_write = tool.has_effects and (tool.effect_class is not None or side_effects not in ("none", "read"))
    # A tool that writes canonical memory can have no effects, because every call of it is rejected.
    may_write = may_write and tool.writes is not Writes.CANONICAL
    untyped = [] if ontology is None else _untyped_members(tool, ontology)
    idempotent = tool.idempotency.required or tool.effect_class in READ_CLASSES
    idempotent = idempotent or (tool.safety is not None and tool.safety.idempotent is True)
    may_ask = tool.risk_tier is RiskTier.HIGH or tool.effect_class is EffectClass.COMMIT_HIGH or bool(tool.limits)
    no_approvers = may_ask and not tool.approval.approvers
    needs = (
        # The arguments need no clause here, because a manifest whose arguments may have any type does not load.
        (Clause.TYPED, tool.result_schema is None, "`result_schema`"),
        (Clause.TYPED, tool.ontology_pin is None, "`ontology_pin`"),
        (Clause.TYPED, ontology is None, "`ontology` in its manifest"),
        (Clause.TYPED, bool(untyped), f"type of the ontology for {', '.join(untyped)}"),
        (Clause.VERSIONED, tool.version is None, "`version`"),
        (Clause.VERSIONED, pinned is None, "`agents` that pin it"),
        (Clause.VERSIONED, pinned is not None and tool.name not in pinned, "agent that pins it"),
        (Clause.IDEMPOTENT, not idempotent, "`idempotency` or effect class without side effects"),
        # Rule 9.2 does not apply without an effect class, so the tool may commit without staging.
        (Clause.PERMISSIONED, tool.effect_class is None, "`effect_class`"),
        (Clause.PERMISSIONED, not tool.scopes, "`scopes`"),
        (Clause.PERMISSIONED, tool.markings is None, "`markings`"),
        (Clause.PERMISSIONED, tool.purposes is None, "`purposes`"),
        (Clause.PERMISSIONED, no_approvers, "`approval.approvers` to grant its approvals"),
        (Clause.EVAL_GATED, tool.eval_pack is None, "`eval_pack`"),
        (Clause.EVAL_GATED, tool.release is None, "`release`"),
        (Clause.PROVENANCE, may_write and tool.writes is Writes.NONE, "`writes: proposal`"),
        (Clause.PROVENANCE, may_write and not tool.provenance.required, "`provenance`"),
    )
    return {clause: tuple(what for of, lacks, what in needs if of is clause and lacks) for clause in Clause}


def _untyped_members(tool: Tool, ontology: Ontology) -> list[str]:
    """Return the names of arguments and result members, or of a whole schema, whose type is not an ontology type."""
    copies, unnamed = ontology.copies, dict[str, None]()
    for part, noun, schema in (("request", "argument", tool.schema_), ("response", "result", tool.result_schema)):
        definitions = schema.get("$defs", {}) if schema else {}
        if schema is None or _refers(schema, definitions, copies):
            continue
        # Copied ontology types are replaced by references, because the members of ontology types are typed.
        read = {
            name: {"type": target.get("type", "object"), "properties": {name: {"$ref": f"#/$defs/{name}"}}}
            for name, target in copies.items()
            if definitions.get(name) == target
        }
        whole = {**schema, "$defs": {**definitions, **read}}
        for form in walk(closed_schema(whole) if part == "request" else whole).alternatives:
            members = {**form.conditional, **form.properties, **({"*": form.members} if form.members else {})}
            if form.types != frozenset(("object",)) or not members:
                unnamed[f"the {part}"] = None
            for name, node in members.items():
                if node.parts != (False,) and not _refers({"allOf": list(node.parts)}, definitions, copies):
                    unnamed[f"{noun} {shown_name(name)}"] = None
    return list(unnamed)


def _refers(schema: Any, definitions: Mapping[str, Any], copies: Mapping[str, Any]) -> bool:
    """Return whether a schema is an ontology type, a list of an ontology type, or a choice of such types and null."""
    if not isinstance(schema, dict):
        return False
    found = []
    if isinstance(schema.get("$ref"), str):
        name = schema["$ref"].removeprefix("#/$defs/")
        target, others = definitions.get(name), {of: part for of, part in definitions.items() if of != name}
        found.append((name in copies and target == copies[name]) or _refers(target, others, copies))
    for (key, *_), part in direct(schema):
        narrows = key in _NARROWING and isinstance(part, dict) and "$ref" not in part and not any(direct(part))
        if not narrows and key not in _CONDITIONS and part not in (False, {"type": "null"}):
            found.append(_refers(part, definitions, copies))
    whole = not BRANCHES.isdisjoint(schema) or (schema.get("type") == "array" and "items" in schema)
    return whole and bool(found) and all(found)


def doubts(tool: Tool, rules: ActionRules | None = None, *, sound: bool, labelled: bool) -> Iterator[Finding]:
    """Yield warnings about likely mistakes in an effective entry, and in the governance file's rules for its action."""
    yield from label_doubts(tool) if labelled else ()
    for field, schema in (("schema", tool.schema_), ("result_schema", tool.result_schema)):
        root = walk(schema)
        for path, why in _impossible(root, (field,)) if sound and schema is not None else ():
            hint = "correct the schema: every call or result with this part is rejected"
            yield Finding(path, f"no value matches this schema: {why}", hint, warning=True)
        if root.work >= _MOST_WORK:
            hint = "use fewer alternatives of references, or check by hand that each part accepts a value"
            yield Finding((field,), "this schema is too complex to check completely", hint, warning=True)
    named = (rules.approval.approvers if rules and rules.approval else None) or ()
    if SUBJECT in named and SUBJECT not in (tool.approval.approvers or ()):
        message = f"`{SUBJECT}` has no effect: the manifest names approvers, and only approvers in both files count"
        hint = "remove `approvers` from the manifest if people may approve the calls of their agents"
        yield Finding(("approval", "approvers"), message, hint, warning=True)
    elif tool.approval.approvers == ():
        message = "no approvers left: the list is empty, or both files name no common role"
        hint = "name a role; if both files state approvers, name it in both"
        yield Finding(("approval",), message, hint, warning=True)


@cache
def _verbs() -> frozenset[str]:
    return frozenset(files("pdp.manifest.rules").joinpath("verbs.txt").read_text("ascii").split())


def _is_verb(word: str, description: str) -> bool:
    match = _WORD.match(description)
    return word in _verbs() or (match is not None and match[0].lower() in (f"{word}s", f"{word}es"))


def naming_doubts(tool: DeclaredTool, unusable: frozenset[str], *, sound: bool) -> Iterator[Finding]:
    """Yield warnings about names and descriptions that do not help a model to choose a tool."""
    if "name" not in unusable:
        problem = None
        if not _SNAKE_CASE.fullmatch(tool.name):
            problem = "is not snake_case of at least two words"
        elif not _is_verb(tool.name.partition("_")[0], tool.description or ""):
            problem = "does not start with a known verb"
        if problem:
            hint = "start with a verb, such as search_web, and start the description with it, as in `Searches the web`"
            yield Finding(("name",), f"name {shown_name(tool.name)} {problem}", hint, warning=True)
    if tool.description is None and not {"description", "name"} & unusable:
        yield Finding(
            ("name",), f"tool {shown_name(tool.name)} has no description", "describe it for the model", warning=True
        )
    for name, schema in (argument_schemas(tool.schema_) if sound else {}).items():
        # An argument with a reference has its description at the reference's target.
        if not any(isinstance(part, bool) or part.keys() & {"$ref", "description"} for part in schema.parts):
            yield Finding(
                ("schema", "properties", name),
                f"argument {shown_name(name)} of {shown_name(tool.name)} has no description",
                "describe it for the model",
                warning=True,
                key=True,
            )


def _impossible(root: SchemaNode, place: Path) -> Iterator[tuple[Path, str]]:
    """Yield the outermost schemas that no value can match, with the reason; `false` is deliberate and left out."""
    pending = deque(((place, root),))
    seen: set[SchemaNode] = set()
    while pending and root.work < _MOST_WORK:
        at, node = pending.popleft()
        if node in seen or False in node.parts:
            continue
        seen.add(node)
        reasons = [_contradiction(form) for form in node.alternatives]
        if all(reasons):
            yield at, (reasons[0] if reasons else None) or "its parts contradict each other"
            continue
        pending += (((*at, "properties", name), member) for name, member in node.named().items())
        pending += (((*at, "items"), form.items) for form in node.alternatives if form.items is not None)


def _contradiction(alternative: Alternative) -> str | None:
    if alternative.values == ():
        return "`enum`, `const` and `type` have no common value"
    for types, lows, highs in _BOUNDS:
        if alternative.kinds is not None and not alternative.kinds <= set(types):
            continue
        rest = alternative.rest
        # By the second element of the key, an exclusive bound is narrower than an inclusive bound of the same value.
        lower = [(value, at, key) for at, key in enumerate(lows) for value in rest.get(key, ())]
        upper = [(value, -at, key) for at, key in enumerate(highs) for value in rest.get(key, ())]
        if lower and upper and max(lower)[:2] > min(upper)[:2]:
            (low, _, floor), (high, _, ceiling) = max(lower), min(upper)
            bounds = f"`{floor}` {low} and `{ceiling}` {high}"
            return f"{bounds} are reversed" if low > high else f"{bounds} leave no value between them"
    return None
