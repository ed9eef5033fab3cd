"""What the expressions of an entry read: every path is held against the argument schema and against the session.

What is open admits any name; what is closed admits what it names. A tool that declares `config`, or what it reads of
the state, closes these. Claims are the token's own: one is refused only where it looks like a claim that is known.
An enforcement point loads this only where an entry has mappings, invariants or labels.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pdp.documents import nearest, shown_name
from pdp.documents.document import Path
from pdp.documents.validation import Finding, looks_like
from pdp.manifest.expressions.cel import compile_check
from pdp.manifest.expressions.expression import compile_expression
from pdp.manifest.expressions.path import ANY, SESSION_FIELDS, Contained, ExpressionError, JsonPath
from pdp.manifest.model import Correction, DeclaredTool, Governable
from pdp.manifest.rules.rules import argument_findings
from pdp.manifest.schema.compile import closed_schema, compile_schema
from pdp.manifest.schema.walk import BRANCHES, Alternative, SchemaNode, argument_schemas, walk

_OPEN: Final = {"type": "object"}
_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_CLAIMS: Final = {
    "sub": _TEXT,
    "iss": _TEXT,
    "emts": _OPEN,
    "scope": _TEXT,
    "scopes": _TEXTS,
    "clearances": _TEXTS,
    "roles": _TEXTS,
    "limits": {"type": "object", "additionalProperties": {"type": "number"}},
    "entitlements": {"type": "object", "properties": {"corpora": _TEXTS, "documents": _TEXTS}},
    "act": {"$ref": "#/$defs/claims"},
}
_ANYTHING: Final = walk(True)
_BARE_PATH: Final = re.compile(r"(?:arguments|session)(?:\.[A-Za-z_][A-Za-z0-9_]*|\[[^\]]*\])+")
# What a check compares a step's `tool` with, on either side.
_QUOTED: Final = re.compile(r"""(["'])([^"'\\\n]*)\1""")
_STEP_TOOL: Final = re.compile(
    r"""(["'][^"'\n]*["'])\s*[=!]=\s*\w[\w.]*(?:\[[^\]]*\])?\.tool\b|\.tool\s*(?:[=!]=\s*(["'][^"'\n]*["'])|in\s*(\[[^\]]*\]))"""
)

PROTECTED: Final = frozenset((
    "act", "approval", "approvals", "approved", "approved_by", "approver", "approvers", "claims", "clearances",
    "entitlements", "limits", "markings", "permissions", "roles", "scopes", "subject",
))  # fmt: skip
"""What says who the subject is, how data is marked, or who approved: never taken from arguments."""


def mapping_findings(rules: Governable, tool: DeclaredTool | None) -> Iterator[Finding]:
    """Yield what is wrong with the mappings of `rules` for a tool; None: its schema is not known, or faulty."""
    roots = None if tool is None else _roots(tool)
    for path, value in mapped_values({"context": rules.context, "resource": rules.resource}, ()):
        if isinstance(value, str) and _BARE_PATH.fullmatch(value):
            hint = f"write `${value}`; as a text, `$'{value}'`"
            yield Finding(path, f"{shown_name(value)} is a text here, and not what it names", hint)
        try:
            expression = compile_expression(value)
        except ExpressionError as error:
            yield Finding(path, error.message, error.hint)
            continue
        protected = [str(step) for step in path if step in PROTECTED]
        if protected and expression.reads_arguments:
            message = f"{shown_name(protected[-1])} is taken from the arguments, which the model writes"
            yield Finding(path, message, "take it from the session: $session.facts… or $session.claims…")
        yield from _path_findings(expression.paths, roots, path)


def mapped_values(value: Any, at: Path) -> Iterator[tuple[Path, Any]]:
    """Yield each value of a mapping that holds no others, with its place."""
    if not isinstance(value, dict | list) or not value:
        yield at, value
        return
    for step, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from mapped_values(part, (*at, step))


def invariant_findings(tool: DeclaredTool, *, sound: bool) -> Iterator[Finding]:
    """Yield what is wrong with the invariants of a tool; `sound`: its schema has no fault."""
    roots = _roots(tool) if sound else None
    for at, invariant in enumerate(tool.invariants):
        place = ("invariants", at, "check")
        try:
            paths = compile_check(invariant.check).paths
        except ExpressionError as error:
            yield Finding(place, error.message, error.hint)
        else:
            yield from _path_findings(paths, roots, place)
        for name in invariant.correct.set if roots and isinstance(invariant.correct, Correction) else ():
            at_name = ("invariants", at, "correct", "set", name)
            yield from argument_findings(name, argument_schemas(tool.schema_), at_name, key=True)


def plan_findings(tools: Mapping[int, DeclaredTool]) -> Iterator[Finding]:
    """Yield what invariants ask of a plan's steps that no tool here is, or takes; Python contracts may bring others."""
    names = {tool.name for tool in tools.values()}
    arguments = {name for tool in tools.values() for name in argument_schemas(tool.schema_)}
    for at, tool in tools.items():
        for position, invariant in enumerate(tool.invariants):
            check = invariant.check
            texts = {text[1] for asked in _STEP_TOOL.findall(check) for text in _QUOTED.findall("".join(asked))}
            unknown = [(name, "a tool", names) for name in sorted(texts - names)]
            read = _read_of_steps(check)
            unknown += [(name, "an argument of a tool", arguments) for name in sorted(read - arguments)]
            for name, kind, known in unknown:
                yield Finding(
                    ("tools", at, "invariants", position, "check"),
                    f"{shown_name(name)}, asked of a step of the plan, is not {kind} here",
                    nearest(name, known),
                    warning=not looks_like(name, known),
                )


def _read_of_steps(check: str) -> set[str]:
    """Return the arguments of a plan's steps that a check reads; none of one that is faulty."""
    try:
        paths = compile_check(check).paths
    except ExpressionError:
        return set()
    read = [path.steps for path in paths if path.variable == "plan"]
    return {str(name) for steps in read if steps[1:2] == ("arguments",) for name in steps[2:3] if isinstance(name, str)}


def _path_findings(paths: Iterable[JsonPath], roots: Mapping[str, SchemaNode] | None, at: Path) -> Iterator[Finding]:
    for path in sorted(paths if roots else (), key=str):
        if roots and (problem := _misspelt(path, roots)):
            yield Finding(at, *problem)


def _roots(tool: DeclaredTool) -> dict[str, SchemaNode]:
    """Return what the expressions of an entry may read; its schema stands on its own and has no fault."""
    config = _named(parameter.key for parameter in tool.config)
    state = _named((*tool.state.reads, *(effect.key for effect in tool.state.effects)) if tool.state else ())
    step = {"type": "object", "properties": {"tool": _TEXT, "arguments": _OPEN}, "additionalProperties": False}
    session = {
        **dict.fromkeys(sorted(SESSION_FIELDS), _TEXT),
        "claims": _CLAIMS["act"],
        "config": _OPEN,
        "facts": _OPEN,
        "plan": {"type": "array"},
        "state": state,
    }
    claims = {"claims": {"type": "object", "properties": _CLAIMS}}
    arguments = walk(closed_schema(tool.schema_))
    return {
        "arguments": arguments,
        "call": arguments,
        "config": walk(config),
        "plan": walk({"type": "array", "items": step}),
        "session": walk({"type": "object", "properties": session, "$defs": claims}),
        "state": walk(state),
    }


def _named(names: Iterable[str]) -> dict[str, Any]:
    """Return the schema of an object with these members; without any it is open."""
    members = dict.fromkeys(names, True)
    return {"type": "object", "properties": members, "additionalProperties": not members}


def _misspelt(path: JsonPath, roots: Mapping[str, SchemaNode]) -> tuple[str, str] | None:
    """Return what is wrong with a path and what to do about it; None where it may lead to a value."""
    forms = roots[path.variable].alternatives
    for at, step in enumerate(path.steps):
        known = sorted({name for form in forms for name in (*form.properties, *form.conditional)})
        nodes = [node for form in forms if (node := part_of(form, step)) is not None]
        own = path.variable == "session" and isinstance(step, str) and step not in known
        if not nodes or (own and looks_like(str(step), known)):
            whole = shown_name(str(path._replace(steps=path.steps[: at + 1])))
            hint = f"known there: {', '.join(known)}" if known else "what it begins with has no such members"
            return f"{whole} leads to nothing that is declared", nearest(str(step), known) or hint
        forms = tuple(form for node in nodes for form in node.alternatives)
    return None


def part_of(form: Alternative, step: str | int) -> SchemaNode | None:
    """Return what a step leads to in a value of one form; None where it leads nowhere."""
    if form.values is not None:
        return _ANYTHING if form.kinds and form.kinds & {"array", "object"} else None
    kinds = form.kinds or frozenset(("array", "object"))
    part = None
    if "array" in kinds and isinstance(step, Contained):
        return _ANYTHING
    if "array" in kinds and not isinstance(step, str):
        part = form.items or _ANYTHING
    elif "object" in kinds and (isinstance(step, str) or step == ANY):
        part = _member(form, step)
    return part if part is not None and part.alternatives else None


def _member(form: Alternative, step: str | int) -> SchemaNode | None:
    if isinstance(step, str):
        named = form.properties.get(step) or form.conditional.get(step)
        patterns = [pattern for stated in form.rest.get("patternProperties", ()) for pattern in stated]
        others = [form.rest.get(key, (True,)) for key in ("additionalProperties", "unevaluatedProperties")]
        if named is not None:
            return named
        if patterns and any(False in stated for stated in others):
            names = compile_schema({"anyOf": [{"pattern": pattern} for pattern in patterns]})
            return form.members if names.is_valid(step) else None
    # What a branch that is too deep, or one of too many, names is unread.
    return form.members if form.members is not None and BRANCHES.isdisjoint(form.rest) else _ANYTHING
