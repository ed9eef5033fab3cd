"""Rego syntax trees from `opa parse --format json --json-include locations`, and the locations of their nodes.

A node's location has row and column (in characters, from 1), and the node's text in base64. OPA gives all nodes in a
bare `else` branch the location of the whole branch, so `span` returns None for them.
"""

import base64
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pdp.errors import Fault, FileFaultsError, Place
from pdp.opa.modules import Module
from pdp.opa.tool import OpaTool

Node = dict[str, Any]
Span = tuple[int, int]  # start and end of a node in the text, in characters

COMPREHENSIONS: Final = frozenset({"arraycomprehension", "setcomprehension", "objectcomprehension"})

_TREES: Final = 256
_PROGRAMS: Final = 4


def parse_modules(opa: Path, modules: Mapping[str, Module]) -> dict[str, Node]:
    """Return the syntax tree of each module by path. The trees are cached, so do not change them."""
    faults: list[Fault] = []
    trees: dict[str, Node] = {}
    with ThreadPoolExecutor(_PROGRAMS, thread_name_prefix="pdp-parse") as pool:
        parsing = {path: pool.submit(_tree, opa, path, module.text) for path, module in modules.items()}
        for path, parsed in parsing.items():
            try:
                trees[path] = parsed.result()
            except FileFaultsError as error:
                file = str(modules[path].file)
                faults += (replace(fault, place=replace(fault.place, file=file)) for fault in error.faults)
    if faults:
        raise FileFaultsError(faults)
    return trees


@lru_cache(maxsize=_TREES)
def _tree(opa: Path, path: str, text: str) -> Node:
    # The file is no part of the key, because most modules of two compared bundles are equal.
    module = Module(Path(path), text, custom=False)
    with tempfile.TemporaryDirectory(prefix="pdp-parse-") as folder:
        tree: Node = OpaTool(opa, Path(folder), {path: module}).parse(path)
    mark_negations(tree)
    return tree


def mark_negations(tree: Any) -> None:
    """Replace each negation (`not`) of a single expression, in place, by the expression with `negated: true`."""
    for node in nodes(tree):
        if is_not(node) and not node["terms"]["explicit_body"]:
            negated = node["terms"]["body"][0]
            node |= {key: part for key, part in negated.items() if key not in ("index", "location")}
            node["negated"] = True


class Source:
    """A module's text, in which syntax tree nodes can be located."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self.text = text
        self._starts = [0]
        for line in text.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def span(self, node: Node) -> Span | None:
        """Return the start and end of a node in the text, or None if the node's location does not match the text."""
        location = node.get("location")
        if not location or not location.get("text"):
            return None
        start = self._starts[location["row"] - 1] + location["col"] - 1
        text = base64.b64decode(location["text"]).decode()
        if text.startswith("(") and not self.text.startswith(text, start):
            # For an expression in parentheses, OPA's column is one too high: it points after the first parenthesis.
            start -= 1
        if not self.text.startswith(text, start):
            return None
        return start, start + len(text)

    def written(self, node: Node) -> str:
        """Return the source text of a node, or an empty string if its location is unknown."""
        span = self.span(node)
        return "" if span is None else self.text[span[0] : span[1]]

    def place(self, offset: int) -> Place:
        """Return the file, line and column of an offset in the text."""
        line = self.text.count("\n", 0, offset) + 1
        return Place(str(self.file), line, offset - self._starts[line - 1] + 1)

    def line(self, offset: int) -> str:
        """Return the text line that contains an offset."""
        start = self.text.rfind("\n", 0, offset) + 1
        return self.text[start:].split("\n", 1)[0]

    def changed(self, span: Span, text: str) -> str:
        """Return a copy of the whole text in which `span` is replaced by `text`."""
        return self.text[: span[0]] + text + self.text[span[1] :]


def package_of(tree: Node) -> str:
    """Return the dotted package name of a module's syntax tree, without `data`."""
    return ".".join(str(part["value"]) for part in tree["package"]["path"][1:])


def imports_of(tree: Node) -> dict[str, list[Node]]:
    """Return the references that a module imports, by the names that the module uses for them."""
    imported = ((node.get("alias"), node["path"]["value"]) for node in tree.get("imports") or ())
    return {str(alias or parts[-1]["value"]): parts for alias, parts in imported}


def operator(terms: list[Node]) -> str:
    """Return the dotted name of the function that an expression calls, such as `lt` or `reason.new`."""
    head = terms[0]
    if head.get("type") != "ref":
        return ""
    return ".".join(part["value"] for part in head["value"] if isinstance(part.get("value"), str))


def is_some(expression: Node) -> bool:
    """Return whether an expression is a `some` declaration."""
    return isinstance(expression["terms"], dict) and "symbols" in expression["terms"]


def is_every(expression: Node) -> bool:
    """Return whether an expression is an `every` statement."""
    return isinstance(expression["terms"], dict) and "domain" in expression["terms"]


def is_not(expression: Node) -> bool:
    """Return whether a node is a negation (`not`) that `mark_negations` has not replaced."""
    terms = expression.get("terms")
    return isinstance(terms, dict) and terms.get("type") == "not"


def declared(expression: Node) -> set[str]:
    """Return the variables that an expression declares with `some`, or on the left side of `:=` or `=`."""
    terms = expression["terms"]
    if is_some(expression):
        symbols = terms["symbols"]
        return {
            name
            for symbol in symbols
            for part in (symbol["value"][1:-1] if symbol["type"] == "call" else [symbol])
            for name in variables(part)
        }
    if isinstance(terms, list) and operator(terms) in ("assign", "eq"):
        return set(variables(terms[1]))
    return set()


def variables(node: Any) -> Counter[str]:
    """Return how often each variable occurs in a node."""
    names = (part.get("value") for part in nodes(node) if part.get("type") == "var")
    return Counter(name for name in names if isinstance(name, str))


def branches(rule: Node) -> Iterator[Node]:
    """Yield a rule, then each of its `else` branches."""
    node: Node | None = rule
    while node is not None:
        yield node
        node = node.get("else")


def rule_name(rule: Node) -> str:
    """Return a rule's name within its package."""
    return ".".join(str(part["value"]) for part in rule["head"]["ref"])


def nodes(tree: Any) -> Iterator[Node]:
    """Yield all nodes inside a node, outer nodes first. Locations and METADATA do not count as nodes."""
    if isinstance(tree, dict):
        yield tree
        for key, value in tree.items():
            if key not in ("location", "annotations"):
                yield from nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from nodes(value)
