"""The shapes of the ten tool patterns: the request and response skeletons in shapes.json, which tools must extend.

Source: tool pattern library, 9.3. pdp/patterns checks each call again, as comparing schemas cannot find all deviations.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from pdp.documents import shown_name
from pdp.documents.validation import Finding
from pdp.manifest.fields import Pattern
from pdp.manifest.model import DeclaredTool
from pdp.manifest.schema.compile import SchemaValidator, compile_schema
from pdp.manifest.schema.faults import member_place
from pdp.manifest.schema.references import self_contained
from pdp.manifest.schema.walk import Alternative, SchemaNode, argument_schemas, walk

_FIELDS: Final = (
    ("request", "schema", "the arguments", "argument"),
    ("response", "result_schema", "the result", "member of the result"),
)
_ADDRESSEES: Final = frozenset(("principal", "queue"))


@cache
def shape(pattern: Pattern) -> dict[str, Any]:
    """Return a pattern's skeletons `{request, response}`, which refer to shared types. Do not change the result."""
    content = json.loads(files("pdp.manifest.schema").joinpath("shapes.json").read_text("utf-8"))
    skeletons: dict[str, Any] = content["shapes"][pattern.value]
    return skeletons


@cache
def shape_validator(pattern: Pattern, part: str) -> SchemaValidator:
    """Return a pattern's compiled skeleton of `request` or `response`. The skeleton accepts additional members."""
    return compile_schema(shape(pattern)[part])


@cache
def _skeleton(pattern: Pattern, part: str) -> SchemaNode:
    return walk(self_contained(shape(pattern)[part], {})[0])


def shape_findings(tool: DeclaredTool) -> Iterator[Finding]:
    """Yield the differences of a tool's schemas from the skeletons of its pattern. The schemas must be valid."""
    if tool.pattern is None:
        return
    if tool.result_schema is None:
        yield Finding(
            ("pattern",),
            f"pattern {tool.pattern} needs a `result_schema`",
            f"write a schema for the result with these members: {_members(_skeleton(tool.pattern, 'response'))}",
        )
    for part, field, whole, member in _FIELDS:
        own = tool.schema_ if part == "request" else tool.result_schema
        if own is None:
            continue
        skeleton = _skeleton(tool.pattern, part)
        for name, message in dict.fromkeys(_narrowing(walk(own), skeleton, "", set())):
            yield Finding(
                member_place(own, field, name),
                f"pattern {tool.pattern}: {f'{member} {shown_name(name)}' if name else whole} {message}",
                f"its shape: {_members(skeleton)}",
            )
    yield from _own_findings(tool)


def _members(skeleton: SchemaNode) -> str:
    (shown,) = skeleton.alternatives
    names = [name if name in shown.required else f"{name}?" for name in shown.properties]
    return f"{{{', '.join(names)}}}" if names else " or ".join(sorted(shown.types or ("any type",)))


def _narrowing(
    own: SchemaNode, skeleton: SchemaNode, name: str, seen: set[tuple[SchemaNode, SchemaNode]]
) -> Iterator[tuple[str, str]]:
    """Yield the dotted name and a message for each part of a tool's schema that accepts more than the skeleton."""
    (wanted,) = skeleton.alternatives
    if (own, skeleton) in seen:
        return
    seen.add((own, skeleton))
    if wanted != Alternative() and not own.alternatives:
        yield name, "accepts no value"
    for form in own.alternatives:
        mistyped = tuple(_type_narrowing(form, wanted, name))
        yield from mistyped
        if not mistyped:  # If the type is wrong, the content is not compared.
            yield from _inner_narrowing(form, wanted, name, seen)


def _inner_narrowing(
    form: Alternative, wanted: Alternative, name: str, seen: set[tuple[SchemaNode, SchemaNode]]
) -> Iterator[tuple[str, str]]:
    for member, part in wanted.properties.items():
        inner = f"{name}.{member}" if name else member
        if member in form.properties:
            yield from _narrowing(form.properties[member], part, inner, seen)
        if member in wanted.required:
            if member not in form.properties:
                yield inner, "is missing"
            elif member not in form.required:
                yield inner, "must be required"
    if wanted.items is not None:
        if form.items is None:
            yield f"{name}[]", "must have a type"
        else:
            yield from _narrowing(form.items, wanted.items, f"{name}[]", seen)


def _type_narrowing(form: Alternative, wanted: Alternative, name: str) -> Iterator[tuple[str, str]]:
    if wanted.values is not None:
        if form.values is None or any(value not in wanted.values for value in form.values):
            yield name, f"must be one of {', '.join(map(str, wanted.values))}, and no other"
        return
    types, kinds = wanted.types, form.kinds
    if types is not None and (kinds is None or not kinds <= (types | {"integer"} if "number" in types else types)):
        stated = "any type" if kinds is None else " or ".join(sorted(kinds))
        yield name, f"must be of type {' or '.join(sorted(types))}, not {stated}"
        return
    for bound, tighter in (("minimum", max), ("maximum", min)):
        for limit in wanted.rest.get(bound, ()):
            stated_bounds = form.values or (*form.rest.get(bound, ()), *form.rest.get("exclusiveM" + bound[1:], ()))
            keeps = [tighter(number, limit) == number for number in stated_bounds]
            if not (all(keeps) if form.values else any(keeps)):
                yield name, f"must have `{bound}: {limit}`"


def _own_findings(tool: DeclaredTool) -> Iterator[Finding]:
    arguments, result = argument_schemas(tool.schema_), tool.result_schema or {}
    members = argument_schemas(result)
    if tool.pattern is Pattern.APPROVAL_REQUEST and not arguments.keys() & _ADDRESSEES:
        yield Finding(
            ("schema",),
            "pattern approval-request: has neither argument `queue` nor `principal`",
            "add one of them: a task is assigned to a queue or a principal",
        )
    # Without a list of bands, any text in the result would be a valid band.
    if tool.pattern is Pattern.CLASSIFICATION and any(not form.values for form in _forms(members, "band")):
        yield Finding(
            member_place(result, "result_schema", "band"),
            "pattern classification: the bands are not exhaustive",
            "list every band: `band: {enum: [...]}`; other values are classify.out_of_distribution",
        )
    if tool.pattern is Pattern.COMPOSITION and any(form.values != ("draft",) for form in _forms(members, "state")):
        yield Finding(
            member_place(result, "result_schema", "state"),
            "pattern composition: the result is always a draft",
            "write `state: {const: draft}`, or remove it",
        )
    if tool.pattern is Pattern.ACTION_STAGING and tool.commits is not None and "action" in arguments:
        kinds = _forms(arguments["action"].named(), "kind")
        if any(value not in tool.commits for form in kinds for value in form.values or (None,)):
            yield Finding(
                member_place(tool.schema_, "schema", "action"),
                "pattern action-staging: `action.kind` allows tools that `commits` does not name",
                f"write `kind: {{enum: [{', '.join(tool.commits)}]}}`",
            )


def _forms(members: Mapping[str, SchemaNode], name: str) -> tuple[Alternative, ...]:
    return members[name].alternatives if name in members else ()
