"""Check that the paths in the expressions of an entry exist in its argument schema or in the session.

A path into an object that allows no additional members needs a declared name. `config` and `state` are such objects if
the tool declares them. A token may have any claims, so a claim is rejected only if it looks like a misspelt known name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pdp.documents import nearest, shown_name
from pdp.documents.document import Path
from pdp.documents.validation import Finding, looks_like
from pdp.json import pointer_steps
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
# Finds the texts that a check compares with the `tool` of a plan step, on either side of the comparison.
_QUOTED: Final = re.compile(r"""(["'])([^"'\\\n]*)\1""")
_STEP_TOOL: Final = re.compile(
    r"""(["'][^"'\n]*["'])\s*[=!]=\s*\w[\w.]*(?:\[[^\]]*\])?\.tool\b|\.tool\s*(?:[=!]=\s*(["'][^"'\n]*["'])|in\s*(\[[^\]]*\]))"""
)

PROTECTED: Final = frozenset((
    "act", "approval", "approvals", "approved", "approved_by", "approver", "approvers", "claims", "clearances",
    "entitlements", "limits", "markings", "permissions", "roles", "scopes", "subject",
))  # fmt: skip
"""Facts about the subject, the data's markings and the approvers. A mapping must never read them from arguments."""


def mapping_findings(rules: Governable, tool: DeclaredTool | None) -> Iterator[Finding]:
    """Yield faults in the mappings of `rules` for a tool. Pass None as the tool if its schema is unknown or faulty."""
    roots = None if tool is None else _roots(tool)
    for path, value in mapped_values({"context": rules.context, "resource": rules.resource}, ()):
        if isinstance(value, str) and _BARE_PATH.fullmatch(value):
            hint = f"write `${value}` for the value, or `$'{value}'` for the text"
            yield Finding(path, f"{shown_name(value)} is plain text here, not an expression", hint)
        try:
            expression = compile_expression(value)
        except ExpressionError as error:
            yield Finding(path, error.message, error.hint)
            continue
        protected = [str(step) for step in path if step in PROTECTED]
        if protected and expression.reads_arguments:
            message = f"{shown_name(protected[-1])} must not come from the arguments, which the model writes"
            yield Finding(path, message, "take the value from the session: $session.facts… or $session.claims…")
        yield from _path_findings(expression.paths, roots, path)


def role_findings(rules: Governable, tool: DeclaredTool) -> Iterator[Finding]:
    """Yield pointers of `roles` to which no argument can have a value."""
    for path in rules.roles or ():
        if not path.startswith("/"):
            continue
        argument, *steps = pointer_steps(path)
        nodes = [node] if (node := argument_schemas(tool.schema_).get(argument)) is not None else []
        for step in steps if nodes else ():
            forms = [form for each in nodes for form in each.alternatives]
            known = sorted({name for form in forms for name in form.properties})
            names: tuple[str | int, ...] = (*known, ANY) if step == "*" else (step,)
            nodes = [part for form in forms for name in names if (part := part_of(form, name)) is not None]
            if not nodes or (step != "*" and step not in known and looks_like(step, known)):
                hint = nearest(step, known) or "write a path of the argument schema, with `*` for the items of a list"
                yield Finding(("roles", path), f"{shown_name(path)} is not in the argument schema", hint, key=True)
                break


def mapped_values(value: Any, at: Path) -> Iterator[tuple[Path, Any]]:
    """Yield each scalar, empty list and empty object in a mapping, with its path."""
    if not isinstance(value, dict | list) or not value:
        yield at, value
        return
    for step, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from mapped_values(part, (*at, step))


def invariant_findings(tool: DeclaredTool, *, sound: bool) -> Iterator[Finding]:
    """Yield faults in the invariants of a tool. Paths are checked only if its schemas have no faults (`sound`)."""
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
    """Yield tools and arguments that invariants expect in steps of a plan, but that the manifest does not have."""
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
                    f"{shown_name(name)}, expected in a plan step, is not {kind} of this manifest",
                    nearest(name, known),
                    warning=not looks_like(name, known),
                )


def _read_of_steps(check: str) -> set[str]:
    """Return the names of plan step arguments that a check reads; an empty set if the check is invalid."""
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
    members = dict.fromkeys(names, True)
    return {"type": "object", "properties": members, "additionalProperties": not members}


def _misspelt(path: JsonPath, roots: Mapping[str, SchemaNode]) -> tuple[str, str] | None:
    forms = roots[path.variable].alternatives
    for at, step in enumerate(path.steps):
        known = sorted({name for form in forms for name in (*form.properties, *form.conditional)})
        nodes = [node for form in forms if (node := part_of(form, step)) is not None]
        own = path.variable == "session" and isinstance(step, str) and step not in known
        if not nodes or (own and looks_like(str(step), known)):
            whole = shown_name(str(path._replace(steps=path.steps[: at + 1])))
            hint = f"known names: {', '.join(known)}" if known else "its parent has no such members"
            return f"{whole} is not declared", nearest(str(step), known) or hint
        forms = tuple(form for node in nodes for form in node.alternatives)
    return None


def part_of(form: Alternative, step: str | int) -> SchemaNode | None:
    """Return the schema of a value's member or item at a path step, or None if the schema does not allow it."""
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
    # Branches that were not read, because they are too deep or too many, may name any member.
    return form.members if form.members is not None and BRANCHES.isdisjoint(form.rest) else _ANYTHING
