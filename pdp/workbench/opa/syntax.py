"""Rego syntax trees, as `opa parse --format json --json-include locations` writes them, and where their nodes stand.

A node's location has row and column (in characters, from 1) and the node's text in base64. OPA gives everything in a
bare `else` branch the location of the branch; `span` returns None for such a location.
"""

import base64
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pdp.errors import Fault, FileFaultsError, Place
from pdp.workbench.opa.modules import Module
from pdp.workbench.opa.tool import OpaTool

Node = dict[str, Any]
Span = tuple[int, int]
"""Start and end of a node in the text, in characters."""

COMPREHENSIONS: Final = frozenset({"arraycomprehension", "setcomprehension", "objectcomprehension"})

_TREES: Final = 256
_PROGRAMS: Final = 4


def parse_modules(opa: Path, modules: Mapping[str, Module]) -> dict[str, Node]:
    """Return the syntax tree of each module by its path in the bundle. Trees are shared: do not change them."""
    faults: list[Fault] = []
    trees: dict[str, Node] = {}
    with ThreadPoolExecutor(_PROGRAMS, thread_name_prefix="pdp-parse") as pool:
        parsing = {path: pool.submit(_tree, opa, path, module) for path, module in modules.items()}
        for path, parsed in parsing.items():
            try:
                trees[path] = parsed.result()
            except FileFaultsError as error:
                faults += error.faults
    if faults:
        raise FileFaultsError(faults)
    return trees


@lru_cache(maxsize=_TREES)
def _tree(opa: Path, path: str, module: Module) -> Node:
    with tempfile.TemporaryDirectory(prefix="pdp-parse-") as folder:
        tree: Node = OpaTool(opa, Path(folder), {path: module}).parse(path)
    mark_negations(tree)
    return tree


def mark_negations(tree: Any) -> None:
    """Give each negation of one expression the form that it has without `import rego.v2`: `negated`, in place."""
    for node in nodes(tree):
        if is_not(node) and not node["terms"]["explicit_body"]:
            negated = node["terms"]["body"][0]
            node |= {key: part for key, part in negated.items() if key not in ("index", "location")}
            node["negated"] = True


class Source:
    """The text of a module, and what stands where in it."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self.text = text
        self._starts = [0]
        for line in text.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def span(self, node: Node) -> Span | None:
        """Return where a node stands, or None when its location is not that of its text."""
        location = node.get("location")
        if not location or not location.get("text"):
            return None
        start = self._starts[location["row"] - 1] + location["col"] - 1
        text = base64.b64decode(location["text"]).decode()
        if text.startswith("(") and not self.text.startswith(text, start):
            # Of what stands in parentheses, OPA gives the column behind the first of them.
            start -= 1
        if not self.text.startswith(text, start):
            return None
        return start, start + len(text)

    def written(self, node: Node) -> str:
        """Return a node's text; empty when it has no place."""
        span = self.span(node)
        return "" if span is None else self.text[span[0] : span[1]]

    def place(self, offset: int) -> Place:
        """Return the place of an offset, as editors understand it."""
        line = self.text.count("\n", 0, offset) + 1
        return Place(str(self.file), line, offset - self._starts[line - 1] + 1)

    def line(self, offset: int) -> str:
        """Return the line in which an offset stands."""
        start = self.text.rfind("\n", 0, offset) + 1
        return self.text[start:].split("\n", 1)[0]

    def changed(self, span: Span, text: str) -> str:
        """Return the whole text with `text` in the place of what stands at `span`."""
        return self.text[: span[0]] + text + self.text[span[1] :]


def package_of(tree: Node) -> str:
    """Return a module's package, dotted and without `data`."""
    return ".".join(str(part["value"]) for part in tree["package"]["path"][1:])


def imports_of(tree: Node) -> dict[str, list[Node]]:
    """Return the references that a module imports, by the names that it has for them."""
    imported = ((node.get("alias"), node["path"]["value"]) for node in tree.get("imports") or ())
    return {str(alias or parts[-1]["value"]): parts for alias, parts in imported}


def operator(terms: list[Node]) -> str:
    """Return the dotted name of what is called, such as `lt`, `internal.member_2` or `reason.new`."""
    head = terms[0]
    if head.get("type") != "ref":
        return ""
    return ".".join(part["value"] for part in head["value"] if isinstance(part.get("value"), str))


def is_some(expression: Node) -> bool:
    """Whether it is a `some` declaration."""
    return isinstance(expression["terms"], dict) and "symbols" in expression["terms"]


def is_every(expression: Node) -> bool:
    """Whether it is an `every`."""
    return isinstance(expression["terms"], dict) and "domain" in expression["terms"]


def is_not(expression: Node) -> bool:
    """Whether it is a negation in the form of `rego.v2`."""
    terms = expression.get("terms")
    return isinstance(terms, dict) and terms.get("type") == "not"


def declared(expression: Node) -> set[str]:
    """Return the variables that an expression brings about: those of `some` and of the left side of `:=`."""
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
    """Count the variables in a part of a tree."""
    names = (part.get("value") for part in nodes(node) if part.get("type") == "var")
    return Counter(name for name in names if isinstance(name, str))


def branches(rule: Node) -> Iterator[Node]:
    """Yield a rule and then each of its `else` branches."""
    node: Node | None = rule
    while node is not None:
        yield node
        node = node.get("else")


def rule_name(rule: Node) -> str:
    """Return the name under which a rule is known in its package."""
    return ".".join(str(part["value"]) for part in rule["head"]["ref"])


def nodes(tree: Any) -> Iterator[Node]:
    """Yield every node of a part of a tree, outer ones first; locations and METADATA are not nodes."""
    if isinstance(tree, dict):
        yield tree
        for key, value in tree.items():
            if key not in ("location", "annotations"):
                yield from nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from nodes(value)
