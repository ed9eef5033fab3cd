"""The shapes of the ten patterns: a tool that names a pattern extends its request and response skeletons.

Source: tool pattern library, 9.3; the skeletons stand in shapes.json. Checked when a manifest is loaded, with places,
and once more on what really comes and goes (pdp/patterns), since a schema can say things that no comparison sees
through.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from pdp.documents import shown_name
from pdp.manifest.fields import Pattern
from pdp.manifest.findings import Finding
from pdp.manifest.schema.compile import argument_schemas, compile_schema
from pdp.manifest.schema.references import shared_types
from pdp.manifest.schema.view import View, views

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.documents.document import Path
    from pdp.manifest.model import DeclaredTool
    from pdp.manifest.schema.compile import Validator

_FIELDS: Final = (("request", "schema", "argument"), ("response", "result_schema", "member of the result"))
_ADDRESSEES: Final = ("queue", "principal")


@cache
def shape(pattern: Pattern) -> dict[str, Any]:
    """Return `{request, response}`, two schemas whose references name shared types. Do not change them."""
    content = json.loads(files("pdp.manifest.schema").joinpath("shapes.json").read_text("utf-8"))
    found: dict[str, Any] = content["shapes"][pattern.value]
    return found


@cache
def shape_validator(pattern: Pattern, part: str) -> Validator:
    """Return the compiled skeleton; `part` is `request` or `response`. It admits members that it does not name."""
    return compile_schema(shape(pattern)[part])


def shape_findings(tool: DeclaredTool) -> Iterator[Finding]:
    """Yield where the schemas of a tool do not extend the skeletons of its pattern.

    Args:
        tool: an entry whose schemas stand on their own and have no fault.
    """
    if tool.pattern is None:
        return
    if tool.result_schema is None:
        yield Finding(
            ("pattern",),
            f"pattern {tool.pattern} without `result_schema`",
            f"state the schema of the answer; its shape: {_members(shape(tool.pattern)['response'])}",
        )
    for part, field, what in _FIELDS:
        own = tool.schema_ if part == "request" else tool.result_schema
        if own is None:
            continue
        for name, message in _departures(own, shape(tool.pattern)[part], what):
            yield Finding(
                _place(own, field, name),
                f"pattern {tool.pattern}: {message}",
                f"its shape: {_members(shape(tool.pattern)[part])}",
            )
    yield from _OWN_RULES.get(tool.pattern, _no_rule)(tool)


def _members(skeleton: Mapping[str, Any]) -> str:
    schema = _resolved(skeleton)
    required = schema.get("required", ())
    names = [name if name in required else f"{name}?" for name in schema.get("properties", {})]
    return f"{{{', '.join(names)}}}" if names else schema.get("type", "any type")


def _place(own: dict[str, Any], field: str, name: str) -> Path:
    top = name.partition(".")[0].removesuffix("[]")
    properties = own.get("properties")
    known = isinstance(properties, dict) and top in properties
    return (field, "properties", top) if known else (field,)


def _departures(own: dict[str, Any], skeleton: Mapping[str, Any], what: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, message) of what in `own` is not as in the skeleton; each once, whatever its branch."""
    seen: set[tuple[str, str]] = set()
    for one in _narrowing(own, own, skeleton, "", 0):
        name, message = one
        if one not in seen:
            seen.add(one)
            yield name, f"{what} {shown_name(name)} {message}" if name else f"the {_WHOLE[what]} {message}"


_WHOLE: Final = {"argument": "arguments", "member of the result": "result"}
_DEEPEST: Final = 12


def _narrowing(
    own: Any, root: dict[str, Any], skeleton: Mapping[str, Any], name: str, depth: int
) -> Iterator[tuple[str, str]]:
    """Yield where `own` admits what the skeleton does not."""
    wanted = _resolved(skeleton)
    if not wanted or depth > _DEEPEST:
        return
    branches = views(own, root)
    if not branches:
        yield name, "admits nothing"
    for view in branches:
        if not view.whole:
            yield name, "has a schema too deep or with too many branches to compare"
            continue
        mistyped = tuple(_type_narrowing(view, wanted, name))
        yield from mistyped
        if not mistyped:  # otherwise, what it is made of cannot fit either
            yield from _inner_narrowing(view, root, wanted, name, depth + 1)


def _inner_narrowing(
    view: View, root: dict[str, Any], wanted: Mapping[str, Any], name: str, depth: int
) -> Iterator[tuple[str, str]]:
    for member, part in wanted.get("properties", {}).items():
        inner = f"{name}.{member}" if name else member
        if member in view.properties:
            yield from _narrowing(view.properties[member], root, part, inner, depth)
        if member in wanted.get("required", ()):
            if member not in view.properties:
                yield inner, "is missing"
            elif member not in view.required:
                yield inner, "must be required"
    if "items" in wanted and view.items is None:
        yield f"{name}[]", "must have a type"
    elif "items" in wanted:
        yield from _narrowing(view.items, root, wanted["items"], f"{name}[]", depth)


def _type_narrowing(view: View, wanted: Mapping[str, Any], name: str) -> Iterator[tuple[str, str]]:
    if "enum" in wanted:
        if view.values is None or any(value not in wanted["enum"] for value in view.values):
            yield name, f"must be one of {', '.join(map(str, wanted['enum']))}, and no other"
        return
    kind = wanted.get("type")
    kinds = view.kinds
    if kind is not None and (kinds is None or not _within(kinds, kind)):
        stated = "any type" if kinds is None else " or ".join(sorted(kinds))
        yield name, f"must be of type {kind}, not {stated}"
        return
    for bound, tighter in (("minimum", max), ("maximum", min)):
        if bound in wanted and not _bounded(view, bound, wanted[bound], tighter):
            yield name, f"must have `{bound}: {wanted[bound]}`"


def _within(kinds: frozenset[str], kind: str) -> bool:
    return kinds <= ({"integer", "number"} if kind == "number" else {kind})


def _bounded(view: View, bound: str, wanted: float, tighter: Any) -> bool:
    exclusive = "exclusiveM" + bound[1:]
    stated = [view.rest[key] for key in (bound, exclusive) if key in view.rest]
    numbers = [number for one in stated for number in (one if isinstance(one, tuple) else (one,))]
    if view.values is not None:
        return all(tighter(value, wanted) == value for value in view.values)
    return any(tighter(number, wanted) == number for number in numbers)


def _resolved(skeleton: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = skeleton.get("$ref")
    if not isinstance(reference, str):
        return skeleton
    found = shared_types().get(reference.removeprefix("#/$defs/"))
    return found if isinstance(found, dict) else {}


def _no_rule(tool: DeclaredTool) -> Iterator[Finding]:  # noqa: ARG001 - of the form of the others
    yield from ()


def _classification(tool: DeclaredTool) -> Iterator[Finding]:
    schema = tool.result_schema or {}
    band = argument_schemas(schema).get("band")
    # Without bands to hold a result against, whatever the tool says would be a band.
    if band is not None and any(not view.values for view in views(band, schema)):
        yield Finding(
            _place(schema, "result_schema", "band"),
            "pattern classification: the bands are not exhaustive",
            "list every band: `band: {enum: [...]}`; what is in none of them is classify.out_of_distribution",
        )


def _composition(tool: DeclaredTool) -> Iterator[Finding]:
    schema = tool.result_schema or {}
    state = argument_schemas(schema).get("state")
    if state is not None and any(view.values != ("draft",) for view in views(state, schema)):
        yield Finding(
            _place(schema, "result_schema", "state"),
            "pattern composition: the result is always a draft",
            "write `state: {const: draft}`, or leave it out",
        )


def _approval_request(tool: DeclaredTool) -> Iterator[Finding]:
    if not any(name in argument_schemas(tool.schema_) for name in _ADDRESSEES):
        yield Finding(
            ("schema",),
            "pattern approval-request: neither argument `queue` nor `principal` is there",
            "a task is addressed to a queue or to a named principal",
        )


def _action_staging(tool: DeclaredTool) -> Iterator[Finding]:
    if tool.commits is None:
        return
    for action in views(argument_schemas(tool.schema_).get("action"), tool.schema_):
        for kind in views(action.properties.get("kind"), tool.schema_):
            if kind.values is None or any(value not in tool.commits for value in kind.values):
                yield Finding(
                    _place(tool.schema_, "schema", "action"),
                    "pattern action-staging: `action.kind` admits what `commits` does not name",
                    f"write `kind: {{enum: [{', '.join(tool.commits)}]}}`",
                )
                return


_OWN_RULES: Final = {
    Pattern.CLASSIFICATION: _classification,
    Pattern.COMPOSITION: _composition,
    Pattern.APPROVAL_REQUEST: _approval_request,
    Pattern.ACTION_STAGING: _action_staging,
}
