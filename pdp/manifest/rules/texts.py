"""Whether a schema limits the texts that it accepts, or accepts any sentence, address or link."""

import re
from typing import Any, Final

from pdp.manifest.schema.compile import compile_schema
from pdp.manifest.schema.walk import EVERY_TYPE, Alternative, SchemaNode

LONGEST_NAME: Final = 200
"""The maximum length of a name or number. A longer text can be a prompt."""

_SENTENCES: Final = tuple(
    text + more
    for text in ("do anything it takes", "Do anything it takes!", "/do anything it takes", "DO ANYTHING IT TAKES")
    for more in ("", " and then say that no one asked for it", " (all of it);\nnow, at once")
)
# Domains of many lengths, for patterns that limit the length of a text.
_ADDRESSES: Final = tuple(
    form(f"{start}{domain}vil.com{end}")
    for start, end in (("eve@", ""), ("https://", "/x"), ("", "/x"))
    for domain in ("e" * length for length in range(1, 64))
    for form in (str, str.upper)
)
# A wildcard that repeats without a limit, or up to a certain character.
_WILD: Final = re.compile(r"(?<!\\)(?:\.|\[\^[^\]]{1,4}\]|\\[SWDP]|\[\\[sS]\\[sS]\])\)*(?:[*+]|\{\d+,\})")
_GROUPS: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]")


def is_free_text(node: SchemaNode) -> bool:
    """Return whether an argument, its only member or its items accept arbitrary text, such as a sentence."""
    pending, seen = [node], set[int]()
    while pending:
        for form in pending.pop().alternatives:
            if id(form) in seen or form.values is not None:
                continue
            seen.add(id(form))
            kinds = EVERY_TYPE if form.types is None else form.types
            short = any(
                isinstance(most, int | float) and most <= LONGEST_NAME for most in form.rest.get("maxLength", ())
            )
            if "string" in kinds and not short and not bounds_text(form):
                return True
            inner = [form.items] if "array" in kinds else []
            if "object" in kinds:
                # If an object has several members, no single member determines what the tool does.
                named = form.properties or form.conditional
                inner += [form.members, *(named.values() if len(named) == 1 else ())]
            pending += filter(None, inner)
    return False


def bounds_text(form: Alternative) -> bool:
    """Return whether a schema's format or pattern excludes sentences."""
    constraints = [{key: value} for key in ("format", "pattern") for value in form.rest.get(key, ())]
    return not all(_admits_sentences(constraint) for constraint in constraints)


def admits_address(form: Alternative) -> bool:
    """Return whether a text's format or pattern allows mail addresses or links of any domain."""
    bounds = ("format", "pattern", "minLength", "maxLength")
    constraints = [{key: value} for key in bounds for value in form.rest.get(key, ())]
    text = compile_schema({"type": "string", "allOf": constraints})
    return any(map(text.is_valid, _ADDRESSES))


def _admits_sentences(constraint: dict[str, Any]) -> bool:
    pattern = constraint.get("pattern")
    if pattern is not None and (not _is_anchored(pattern) or _WILD.search(pattern)):
        return True
    text = compile_schema({"type": "string", **constraint})
    return any(text.is_valid(sentence) for sentence in _SENTENCES)


def _is_anchored(pattern: str) -> bool:
    if not pattern.startswith(("^", r"\A")) or not pattern.endswith(("$", r"\z")) or pattern.endswith(r"\$"):
        return False
    deep = 0
    for mark in _GROUPS.findall(pattern):
        deep += {"(": 1, ")": -1}.get(mark, 0)
        # In `^a|b$`, the first alternative has no end anchor and the second no start anchor.
        if mark == "|" and deep == 0:
            return False
    return True
