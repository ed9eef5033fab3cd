"""Where the paths of expressions lead: every step is held against the argument schema and against the session.

What is open admits any name; what is closed admits what it names. A tool that declares `config`, or what it reads of
the state, closes these. Claims are the token's own: one is refused only where it looks like a claim that is known.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from pdp.documents import nearest, shown_name
from pdp.manifest.expressions.expression import ANY, SESSION_FIELDS, Contained, JsonPath
from pdp.manifest.model import DeclaredTool
from pdp.manifest.schema.compile import closed_schema, compile_schema
from pdp.manifest.schema.walk import BRANCHES, Alternative, SchemaNode, walk

Roots = dict[str, "SchemaNode"]
"""What each variable of an expression may hold."""

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


def path_roots(tool: DeclaredTool) -> Roots:
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


def looks_like(name: str, known: Iterable[str]) -> bool:
    """Whether a name is likely one of the known ones, misspelt: `clearence`, `role` for `roles`."""
    return bool(get_close_matches(name, list(known), 1, 0.8))


def _named(names: Iterable[str]) -> dict[str, Any]:
    """Return the schema of an object with these members; without any it is open."""
    members = dict.fromkeys(names, True)
    return {"type": "object", "properties": members, "additionalProperties": not members}


def misspelt(path: JsonPath, roots: Mapping[str, SchemaNode]) -> tuple[str, str] | None:
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
