"""Terms of Rego's syntax tree as a trace holds them: values, and references to input and data."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ROOTS: Final = ("input", "data")
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*")
_LIBRARY: Final = "data.authz.lib."
_NESTED: Final = ("array", "set")


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference without variables: as Rego (`text`), and as its author would write it (`name`)."""

    text: str
    name: str

    def called(self, name: str) -> Reference:
        """Return the reference with another name for readers."""
        return replace(self, name=name)


def value_of(term: Mapping[str, Any]) -> Any:
    """Return a ground term as plain JSON, sets as lists; what is none, as its kind in angle brackets."""
    kind, value = term.get("type"), term.get("value")
    if kind in _NESTED and isinstance(value, list):
        return [value_of(item) for item in value]
    if kind == "object" and isinstance(value, list):
        return {str(value_of(key)): value_of(item) for key, item in value}
    if kind in ("string", "number", "boolean", "null"):
        return value
    return f"<{kind}>"


def references(nodes: Sequence[Any], variables: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield the references to input and data in expressions, each once; functions that are called are none.

    Args:
        nodes: expressions of the syntax tree.
        variables: values by name, put in where a reference has a variable. At the first that is unknown, or no text
            or number, the reference ends.
    """
    found: dict[str, None] = {}
    for node in nodes:
        for term in _references(node):
            text = _text(term, variables)
            if text is not None:
                found[text] = None
    for text in found:
        yield Reference(text, text)


def shown_name(text: str, package: str) -> str:
    """Return a reference as an author writes it in `package`: own rules by name, libraries by their last name."""
    if text.startswith(_LIBRARY) and not f"data.{package}.".startswith(_LIBRARY):
        return text.removeprefix(_LIBRARY)
    own = f"data.{package}."
    return text.removeprefix(own) if text.startswith(own) else text.removeprefix(_LIBRARY)


def _references(node: Any) -> Iterator[list[Any]]:
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
    elif isinstance(node, dict):
        terms = node.get("terms")
        if isinstance(terms, list):
            # The first one is the operator, a reference as well.
            yield from _references(terms[1:])
            return
        if node.get("type") == "ref":
            yield node["value"]
            return
        if node.get("type") == "call":
            yield from _references(node["value"][1:])
            return
        for value in node.values():
            yield from _references(value)


def _text(term: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str | None:
    if not term or term[0].get("type") != "var" or term[0].get("value") not in _ROOTS:
        return None
    text = str(term[0]["value"])
    for part in term[1:]:
        value = part.get("value")
        if part.get("type") == "var":
            value = variables.get(str(value))
        if isinstance(value, bool) or not isinstance(value, str | int):
            break
        plain = isinstance(value, str) and _PLAIN.fullmatch(value)
        text += f".{value}" if plain else f"[{json.dumps(value)}]"
    return None if text in _ROOTS else text
