"""What is legal and can hardly be meant: schemas that no value fits, names that nobody else uses, nobody to approve.

Not read by an enforcement point: `load` asks where somebody wants warnings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdp.documents import shown_name
from pdp.manifest.findings import Finding
from pdp.manifest.schema.walk import walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdp.documents.document import Path
    from pdp.manifest.model import Tool
    from pdp.manifest.schema.walk import Alternative, SchemaNode

_BOUNDS: Final = (
    (("integer", "number"), ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
    (("string",), ("minLength",), ("maxLength",)),
    (("array",), ("minItems",), ("maxItems",)),
    (("object",), ("minProperties",), ("maxProperties",)),
)
_SHORTEST: Final = 5


def doubts(tools: Sequence[Tool]) -> Iterator[tuple[Tool, Finding]]:
    """Yield what is doubtful about effective entries, each with its entry; all of it are warnings."""
    for tool in tools:
        for field, schema in (("schema", tool.schema_), ("result_schema", tool.result_schema)):
            if schema is not None:
                for path, why in _impossible(walk(schema), (field,), set()):
                    hint = "correct it: every call, or every result, that has this is refused"
                    yield tool, Finding(path, f"no value fits this schema: {why}", hint, warning=True)
        if tool.approval.approvers == ():
            hint = "name a role, one that both files name where both state approvers"
            yield tool, Finding(("approval",), "nobody can approve this: its approvers are none", hint, warning=True)
    yield from _slips(tools)


def _slips(tools: Sequence[Tool]) -> Iterator[tuple[Tool, Finding]]:
    """Yield names that one tool alone has and another has nearly; of two such names the later one."""
    for field in ("scopes", "markings", "purposes"):
        used: dict[str, list[Tool]] = {}
        for tool in tools:
            for name in getattr(tool, field) or ():
                used.setdefault(name, []).append(tool)
        for name in [name for name in reversed(used) if len(used[name]) == 1]:
            other = next((other for other in used if other != name and _is_slip(name, other)), None)
            if other is not None:
                (user,) = used.pop(name)
                message = f"no other tool uses {shown_name(name)}, and {shown_name(other)} is nearly the same"
                yield user, Finding((field, name), message, "correct one of them, if they are one", warning=True)


def _impossible(node: SchemaNode, at: Path, seen: set[SchemaNode]) -> Iterator[tuple[Path, str]]:
    """Yield the places below a schema that no value fits, and why; `False`, which says so itself, is none."""
    if node in seen or False in node.parts:
        return
    seen.add(node)
    reasons = [_contradiction(alternative) for alternative in node.alternatives]
    if all(reasons):
        yield at, reasons[0] if reasons and reasons[0] else "its parts exclude each other"
        return
    for name, member in node.named().items():
        yield from _impossible(member, (*at, "properties", name), seen)
    for alternative in node.alternatives:
        if alternative.items is not None:
            yield from _impossible(alternative.items, (*at, "items"), seen)


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


def _is_slip(name: str, other: str) -> bool:
    """Return whether one letter makes the difference: missing, another one, or two exchanged; numbers are no slips."""
    if min(len(name), len(other)) < _SHORTEST:
        return False
    start = next((at for at, (a, b) in enumerate(zip(name, other, strict=False)) if a != b), min(len(name), len(other)))
    first, second = name[start:], other[start:]
    while first and second and first[-1] == second[-1]:
        first, second = first[:-1], second[:-1]
    if any(letter.isdigit() or letter in "._-:" for letter in first + second):
        return False
    return max(len(first), len(second)) == 1 or (first == second[::-1] and len(first) == len("ab"))
