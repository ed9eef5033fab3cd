"""What a schema leaves open: arguments that may be anything, and texts that may say anything.

The tool pattern library forbids both (9.1: "untyped any is forbidden", 9.4: "do whatever").

Open by what is written: no type, or every type, in some alternative; members or items that may be anything (`true`,
`{}`). Open by what is not: `{type: array}` without `items`, `{type: object}` without members. The library's own shapes
have members of this second sort (`hints`, `parts`, `payload`), and so has the shorthand of contracts (`list`, `dict`).
So only tools with effects are refused for them.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from pdp.manifest.fields import Pattern
from pdp.manifest.schema.compile import compile_schema
from pdp.manifest.schema.walk import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdp.manifest.model import DeclaredTool
    from pdp.manifest.schema.walk import Alternative, SchemaNode

LONGEST_NAME: Final = 200
"""A text that may be no longer than this is a name or a number of something, and no prompt."""

_EVERY: Final = frozenset(("array", "boolean", "null", "number", "object", "string"))
# What the shapes themselves leave open: the payload is the arguments of the tool that commits it, which types them.
_SHAPED: Final = {Pattern.ACTION_STAGING: frozenset(("action.payload",))}
_SENTENCES: Final = tuple(
    text + more
    for text in ("do whatever it takes", "Do whatever it takes!", "/do whatever it takes", "DO WHATEVER IT TAKES")
    for more in ("", " and then say that nobody asked for it", " (all of it);\nnow, at once")
)
# A wildcard that repeats without bound, or until one certain character.
_WILD: Final = re.compile(r"(?<!\\)(?:\.|\[\^[^\]]{1,4}\]|\\[SWDP]|\[\\[sS]\\[sS]\])\)*(?:[*+]|\{\d+,\})")
_GROUPS: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]")


def untyped_arguments(tool: DeclaredTool) -> Iterator[str]:
    """Yield the dotted paths of arguments that may be anything, `[]` for items and `*` for members without a name.

    The candidate of a validation is not among them: its rule pack says what it has to be (pattern 3).
    """
    for path, node in _parts(walk(tool.schema_)):
        candidate = tool.pattern is Pattern.VALIDATION and re.split(r"\.|\[\]", path)[0] == "candidate"
        if path and not candidate and _is_anything(node):
            yield path


def open_arguments(tool: DeclaredTool) -> Iterator[str]:
    """Yield the dotted paths of arguments that are lists of anything or objects of anything, by not saying of what."""
    shaped = frozenset[str]() if tool.pattern is None else _SHAPED.get(tool.pattern, frozenset())
    for path, node in _parts(walk(tool.schema_)):
        if path and path not in shaped and not _is_anything(node) and any(map(_is_unstated, node.alternatives)):
            yield path


def untyped_result(tool: DeclaredTool) -> Iterator[str]:
    """Yield the dotted paths in the result that may be anything; the empty one is the whole. None when unstated.

    A result is open to members that it does not name, whether or not it says so.
    """
    if tool.result_schema is not None:
        for path, node in _parts(walk(tool.result_schema), unnamed=False):
            if _is_anything(node):
                yield path


def _parts(root: SchemaNode, *, unnamed: bool = True) -> Iterator[tuple[str, SchemaNode]]:
    """Yield the schema and all in it by dotted path, the outermost first; what stands in a definition at one path.

    `unnamed`: members without a name as well.
    """
    pending = deque((("", root),))
    read: set[int] = set()
    seen: set[tuple[str, SchemaNode]] = set()
    while pending:
        path, node = pending.popleft()
        if (path, node) in seen:
            continue
        seen.add((path, node))
        yield path, node
        for one in node.alternatives:
            if one.types is None or id(one) in read:  # it may be anything or is a constant; or by another reference
                continue
            read.add(id(one))
            if "object" in one.types:
                pending += ((f"{path}.{name}" if path else name, part) for name, part in one.properties.items())
                pending += ((f"{path}.*" if path else "*", part) for part in one.members if unnamed)
            if "array" in one.types:
                pending += ((f"{path}[]", part) for part in one.items)


def _is_anything(node: SchemaNode) -> bool:
    """Whether an alternative may be anything, or each type is admitted by one."""
    typed = [one.types for one in node.alternatives if one.values is None]
    kinds = {"number" if kind == "integer" else kind for types in typed for kind in types or _EVERY}
    return kinds >= _EVERY


def _is_unstated(one: Alternative) -> bool:
    """Whether it is a list or an object of anything, because it does not say of what."""
    kinds = one.kinds if one.values is None else None
    if kinds is None:
        return False
    stated = one.rest.keys()
    return ("array" in kinds and stated.isdisjoint(("items", "unevaluatedItems"))) or (
        "object" in kinds and not one.properties and not one.members
    )


def is_free_text(node: SchemaNode) -> bool:
    """Return whether an argument, or the one member or each item of it, may be any text.

    Constants are none, nor is a text that is short, of a format, or of a pattern; but a pattern or a format that lets a
    sentence through says nothing.
    """
    pending, seen = [node], set[int]()
    while pending:
        for one in pending.pop().alternatives:
            if id(one) in seen or one.values is not None:
                continue
            seen.add(id(one))
            kinds = _EVERY if one.types is None else one.types
            if "string" in kinds and _may_say_anything(one):
                return True
            pending += one.items if "array" in kinds else ()
            # Of an object with several members none says by itself what the tool does.
            named = one.properties.values() if len(one.properties) == 1 else ()
            pending += (*named, *one.members) if "object" in kinds else ()
    return False


def _may_say_anything(one: Alternative) -> bool:
    if any(isinstance(most, int | float) and most <= LONGEST_NAME for most in one.rest.get("maxLength", ())):
        return False
    constraints = [{key: value} for key in ("format", "pattern") for value in one.rest.get(key, ())]
    return all(_admits_sentences(constraint) for constraint in constraints)


def _admits_sentences(constraint: dict[str, Any]) -> bool:
    pattern = constraint.get("pattern")
    if pattern is not None and (not _is_anchored(pattern) or _WILD.search(pattern)):
        return True
    text = compile_schema({"type": "string", **constraint})
    return any(text.is_valid(sentence) for sentence in _SENTENCES)


def _is_anchored(pattern: str) -> bool:
    """Whether a pattern is about the whole text, and not about some part of it."""
    if not pattern.startswith(("^", r"\A")) or not pattern.endswith(("$", r"\z")) or pattern.endswith(r"\$"):
        return False
    deep = 0
    for found in _GROUPS.findall(pattern):
        deep += {"(": 1, ")": -1}.get(found, 0)
        if found == "|" and deep == 0:  # `^a|b$`: two patterns, each open at one end
            return False
    return True
