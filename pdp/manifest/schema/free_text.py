"""Whether an argument is a text that could say anything: "do whatever" (tool pattern library, 9.4).

A text is none where it is a constant, short, of a format, or of a pattern; of a list or an object, where what is in it
is none. A pattern or a format that lets a sentence through says nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pdp.manifest.schema.compile import compile_schema
from pdp.manifest.schema.view import branches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.manifest.schema.view import View

LONGEST_NAME: Final = 200
"""A text that may be no longer than this is a name or a number of something, and no prompt."""

_CONSTRAINTS: Final = ("format", "pattern")
_DEEPEST: Final = 8
_SENTENCES: Final = tuple(
    text + more
    for text in ("do whatever it takes", "Do whatever it takes!", "/do whatever it takes", "DO WHATEVER IT TAKES")
    for more in ("", " and then say that nobody asked for it", " (all of it);\nnow, at once")
)
# A wildcard that repeats without bound, or until one certain character.
_WILD: Final = re.compile(r"(?<!\\)(?:\.|\[\^[^\]]{1,4}\]|\\[SWDP]|\[\\[sS]\\[sS]\])\)*(?:[*+]|\{\d+,\})")
_GROUPS: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]")


def is_free(schema: Any, root: Mapping[str, Any], depth: int = 0) -> bool:
    """Return whether an argument, or the one member or each item of it, may be any text.

    Args:
        schema: the argument's.
        root: where its references lead.
        depth: how deep within the argument.
    """
    return depth <= _DEEPEST and any(_is_free_branch(view, root, depth + 1) for view in branches(schema, root))


def _is_free_branch(view: View, root: Mapping[str, Any], depth: int) -> bool:
    if not view.whole:
        return True
    if view.values is not None:
        return False
    kinds = view.kinds
    if kinds is None:
        return _is_free_text(view)
    return (
        ("string" in kinds and _is_free_text(view))
        or ("array" in kinds and any(is_free(part, root, depth) for part in _items(view)))
        or ("object" in kinds and any(is_free(part, root, depth) for part in _members(view)))
    )


def _items(view: View) -> list[Any]:
    first = view.rest.get("prefixItems", [])
    firsts = [part for one in (first if isinstance(first, tuple) else (first,)) for part in one]
    return [view.items, *firsts]


def _members(view: View) -> list[Any]:
    """Of an object with several members none says by itself what the tool does; of many without a name each may."""
    named = list(view.properties.values()) if len(view.properties) == 1 else []
    unnamed = [view.rest.get(key) for key in ("additionalProperties", "unevaluatedProperties")]
    patterns = view.rest.get("patternProperties", {})
    matched = [part for one in (patterns if isinstance(patterns, tuple) else (patterns,)) for part in one.values()]
    return [*named, *(part for one in unnamed for part in (one if isinstance(one, tuple) else (one,))), *matched]


def _is_free_text(view: View) -> bool:
    longest = view.rest.get("maxLength")
    if any(
        isinstance(one, int) and one <= LONGEST_NAME for one in (longest if isinstance(longest, tuple) else (longest,))
    ):
        return False
    stated = [
        {key: one}
        for key in _CONSTRAINTS
        if key in view.rest
        for one in (view.rest[key] if isinstance(view.rest[key], tuple) else (view.rest[key],))
    ]
    return all(_admits_sentences(one) for one in stated)


def _admits_sentences(constraint: dict[str, str]) -> bool:
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
