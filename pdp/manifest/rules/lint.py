"""Checks of entries for authors and reviewers: likely mistakes, and the contract clauses that each tool meets.

An enforcement point loads this only where its governance file demands clauses.
"""

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
# Where a schema may only narrow a value, and where it says nothing of what the value is made of.
_NARROWING: Final = frozenset(("allOf", "dependentSchemas", "else", "then"))
_CONDITIONS: Final = frozenset(("$defs", "definitions", "if", "not", "propertyNames"))
# Steps of reading one schema; 10,000 take about 0.2 s.
_MOST_WORK: Final = 10_000
_HINTS: Final = {
    Clause.TYPED: "state it in the manifest; a type is a `$ref` to one of the file that `ontology` names",
    Clause.VERSIONED: "state `version` here, and pin it in `agents` of the manifest",
    Clause.EVAL_GATED: "state `eval_pack` here, and `release` here or in the governance file",
    Clause.PROVENANCE: "write `writes: proposal` and `provenance: {required: [ARGUMENT]}`: what names its sources",
}


@dataclass(frozen=True, slots=True)
class ContractReport:
    """One tool and, for each of the six clauses, what it is missing. A clause that misses nothing is met."""

    tool: str
    missing: Mapping[Clause, tuple[str, ...]]

    @property
    def met(self) -> tuple[Clause, ...]:
        """The clauses that the tool meets."""
        return tuple(clause for clause, missing in self.missing.items() if not missing)


def lint(manifest: EffectiveManifest) -> tuple[ContractReport, ...]:
    """Return what each tool meets and misses, in the manifest's order."""
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
    """Yield which of the demanded clauses an effective entry does not meet.

    `pinned` and `ontology` are what its manifest states. `doubtful`: also warn of a tool that says that it changes
    something and does not meet `provenance`, where that is not demanded.
    """
    for clause, lacking in _missing(tool, pinned, ontology).items():
        hint = _HINTS.get(clause, "state it here or in the governance file")
        if lacking and clause in clauses:
            message = f"{shown_name(tool.name)} does not meet clause `{clause}`, which the governance file demands"
            yield Finding(("name",), f"{message}: it has no {', no '.join(lacking)}", hint)
        elif lacking and clause is Clause.PROVENANCE and doubtful and says_it_changes(tool):
            message = f"{shown_name(tool.name)} has effects and no {', no '.join(lacking)}"
            yield Finding(("name",), message, hint, warning=True)


def _missing(tool: Tool, pinned: AbstractSet[str] | None, ontology: Ontology | None) -> dict[Clause, tuple[str, ...]]:
    """Return what an effective entry is missing of each clause; `pinned` None: no agent pins tools.

    Audited is always met: the enforcement point records every dispatch of every tool, whatever the manifest says.
    """
    side_effects = tool.safety.side_effects if tool.safety else None
    may_write = tool.has_effects and (tool.effect_class is not None or side_effects not in ("none", "read"))
    may_write = may_write and tool.writes is not Writes.CANONICAL  # every call of that is rejected
    untyped = [] if ontology is None else _untyped_members(tool, ontology)
    idempotent = tool.idempotency.required or tool.effect_class in READ_CLASSES
    idempotent = idempotent or (tool.safety is not None and tool.safety.idempotent is True)
    may_ask = tool.risk_tier is RiskTier.HIGH or tool.effect_class is EffectClass.COMMIT_HIGH or bool(tool.limits)
    nobody = may_ask and not tool.approval.approvers
    needs = (
        (Clause.TYPED, tool.result_schema is None, "`result_schema`"),  # what may be anything does not load
        (Clause.TYPED, tool.ontology_pin is None, "`ontology_pin`"),
        (Clause.TYPED, ontology is None, "`ontology` of its manifest"),
        (Clause.TYPED, bool(untyped), f"type of the ontology for {', '.join(untyped)}"),
        (Clause.VERSIONED, tool.version is None, "`version`"),
        (Clause.VERSIONED, pinned is None, "`agents` that pin it"),
        (Clause.VERSIONED, pinned is not None and tool.name not in pinned, "an agent that pins it"),
        (Clause.IDEMPOTENT, not idempotent, "`idempotency`, or an effect class without side effects"),
        # A tool without effect class has no gate of 9.2: nothing says that its commits are staged.
        (Clause.PERMISSIONED, tool.effect_class is None, "`effect_class`"),
        (Clause.PERMISSIONED, not tool.scopes, "`scopes`"),
        (Clause.PERMISSIONED, tool.markings is None, "`markings`"),
        (Clause.PERMISSIONED, tool.purposes is None, "`purposes`"),
        (Clause.PERMISSIONED, nobody, "`approval.approvers`: nobody could grant what it asks for"),
        (Clause.EVAL_GATED, tool.eval_pack is None, "`eval_pack`"),
        (Clause.EVAL_GATED, tool.release is None, "`release`"),
        (Clause.PROVENANCE, may_write and tool.writes is Writes.NONE, "`writes: proposal`"),
        (Clause.PROVENANCE, may_write and not tool.provenance.required, "`provenance`"),
    )
    return {clause: tuple(what for of, lacks, what in needs if of is clause and lacks) for clause in Clause}


def _untyped_members(tool: Tool, ontology: Ontology) -> list[str]:
    """Return the members of request and response that refer to no type of the ontology.

    A value that is neither such a type nor an object with members counts as a whole.
    """
    copies, found = ontology.copies, dict[str, None]()
    for part, noun, schema in (("request", "argument", tool.schema_), ("response", "result", tool.result_schema)):
        definitions = schema.get("$defs", {}) if schema else {}
        if schema is None or _refers(schema, definitions, copies):
            continue
        # What a type of the ontology is made of is typed: a member of it refers to it again.
        read = {
            name: {"type": target.get("type", "object"), "properties": {name: {"$ref": f"#/$defs/{name}"}}}
            for name, target in copies.items()
            if definitions.get(name) == target
        }
        whole = {**schema, "$defs": {**definitions, **read}}
        for form in walk(closed_schema(whole) if part == "request" else whole).alternatives:
            members = {**form.conditional, **form.properties, **({"*": form.members} if form.members else {})}
            if form.types != frozenset(("object",)) or not members:
                found[f"the {part}"] = None
            for name, node in members.items():
                if node.parts != (False,) and not _refers({"allOf": list(node.parts)}, definitions, copies):
                    found[f"{noun} {shown_name(name)}"] = None
    return list(found)


def _refers(schema: Any, definitions: Mapping[str, Any], copies: Mapping[str, Any]) -> bool:
    """Whether a schema refers to a type of the ontology, is a list of such values, or one of several, null included.

    What stands beside a reference may narrow it; a member or an alternative there has to refer to such a type itself.
    """
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
    """Yield what is legal in an effective entry and likely a mistake, as warnings.

    `rules`: what the governance file states for its action, where that is to be looked at; `sound`: its schemas are;
    `labelled`: labels are in use in its manifest.
    """
    yield from label_doubts(tool) if labelled else ()
    for field, schema in (("schema", tool.schema_), ("result_schema", tool.result_schema)):
        root = walk(schema)
        for path, why in _impossible(root, (field,)) if sound and schema is not None else ():
            hint = "correct it: every call, or every result, that has this is refused"
            yield Finding(path, f"no value fits this schema: {why}", hint, warning=True)
        if root.work >= _MOST_WORK:
            hint = "use fewer alternatives of references, or check by hand that each part admits a value"
            yield Finding((field,), "this schema unfolds too far to be checked to its end", hint, warning=True)
    named = (rules.approval.approvers if rules and rules.approval else None) or ()
    if SUBJECT in named and SUBJECT not in (tool.approval.approvers or ()):
        message = f"`{SUBJECT}` is without effect: the manifest names approvers, and who approves is named by both"
        hint = "take `approvers` out of the manifest, if people may approve what their own agents ask"
        yield Finding(("approval", "approvers"), message, hint, warning=True)
    elif tool.approval.approvers == ():
        hint = "name a role, one that both files name where both state approvers"
        yield Finding(("approval",), "nobody can approve this: its approvers are none", hint, warning=True)


@cache
def _verbs() -> frozenset[str]:
    return frozenset(files("pdp.manifest.rules").joinpath("verbs.txt").read_text("ascii").split())


def _is_verb(word: str, description: str) -> bool:
    """Whether a name's first word is a verb that is listed, or the one that its description has in the third person."""
    match = _WORD.match(description)
    return word in _verbs() or (match is not None and match[0].lower() in (f"{word}s", f"{word}es"))


def naming_doubts(tool: DeclaredTool, unusable: frozenset[str], *, sound: bool) -> Iterator[Finding]:
    """Yield what a model can hardly choose by in an entry as it is stated, as warnings; `sound`: its schema is."""
    if "name" not in unusable:
        amiss = None
        if not _SNAKE_CASE.fullmatch(tool.name):
            amiss = "is not snake_case of at least two words"
        elif not _is_verb(tool.name.partition("_")[0], tool.description or ""):
            amiss = "begins with no verb that is known"
        if amiss:
            hint = "write a verb first, such as search_web, and begin the description with it, as in `Searches the web`"
            yield Finding(("name",), f"name {shown_name(tool.name)} {amiss}", hint, warning=True)
    if tool.description is None and not {"description", "name"} & unusable:
        yield Finding(
            ("name",), f"tool {shown_name(tool.name)} has no description", "the model chooses tools by it", warning=True
        )
    for name, schema in (argument_schemas(tool.schema_) if sound else {}).items():
        # A reference is described where it leads.
        if not any(isinstance(part, bool) or part.keys() & {"$ref", "description"} for part in schema.parts):
            yield Finding(
                ("schema", "properties", name),
                f"argument {shown_name(name)} of {shown_name(tool.name)} has no description",
                "the model reads it to know what to put there",
                warning=True,
                key=True,
            )


def _impossible(root: SchemaNode, place: Path) -> Iterator[tuple[Path, str]]:
    """Yield where no value fits in any alternative, and why; what is within is left alone, `False` says so itself."""
    pending = deque(((place, root),))
    seen: set[SchemaNode] = set()
    while pending and root.work < _MOST_WORK:
        at, node = pending.popleft()
        if node in seen or False in node.parts:
            continue
        seen.add(node)
        reasons = [_contradiction(form) for form in node.alternatives]
        if all(reasons):
            yield at, (reasons[0] if reasons else None) or "its parts exclude each other"
            continue
        pending += (((*at, "properties", name), member) for name, member in node.named().items())
        pending += (((*at, "items"), form.items) for form in node.alternatives if form.items is not None)


def _contradiction(alternative: Alternative) -> str | None:
    if alternative.values == ():
        return "no constant is left of `enum`, `const` and `type`"
    for types, lows, highs in _BOUNDS:
        if alternative.kinds is not None and not alternative.kinds <= set(types):
            continue
        rest = alternative.rest
        # The second part orders an exclusive bound behind one that is not, on either side.
        lower = [(value, at, key) for at, key in enumerate(lows) for value in rest.get(key, ())]
        upper = [(value, -at, key) for at, key in enumerate(highs) for value in rest.get(key, ())]
        if lower and upper and max(lower)[:2] > min(upper)[:2]:
            (low, _, floor), (high, _, ceiling) = max(lower), min(upper)
            bounds = f"`{floor}` {low} and `{ceiling}` {high}"
            return f"{bounds} are the wrong way round" if low > high else f"{bounds} leave nothing between them"
    return None
