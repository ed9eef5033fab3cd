"""The ways in which a Rego module is broken in one place: text edits, found in its syntax tree.

Not touched: METADATA, so that codes and messages stay; the details that a reason is given, which explain a verdict and
are no part of it; and entrypoints beside `authz/decision`, for which scenarios do not ask.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.mutation.rego_values import moved, shortened
from pdp.workbench.opa.syntax import (
    COMPREHENSIONS,
    Node,
    Source,
    Span,
    branches,
    declared,
    is_every,
    is_some,
    operator,
    rule_name,
    variables,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPARISONS: Final = {"lt": ("<="), "lte": ("<"), "gt": (">="), "gte": (">"), "equal": ("!="), "neq": ("==")}
_SETS: Final = {"minus": ("&", "|"), "and": ("|", "-"), "or": ("&", "-"), "plus": ("-",), "mul": ("/",), "div": ("*",)}
# A finding that weighs otherwise: less, and where there is more, more.
_FINDINGS: Final = {"deny": ("step_up",), "step_up": ("allow", "deny"), "allow": ("step_up",)}
_REASON: Final = "reason.new"
_IF: Final = re.compile(r"\s*if\s+")


@dataclass(frozen=True, slots=True)
class Edit:
    """A text in the place of what stands at `span`, and the rule that it is part of.

    `within` is the branch of the rule that has to be evaluated for the edit to matter; None when that is not enough.
    """

    rule: str
    kind: str
    span: Span
    text: str
    within: Span | None = None


def edits(tree: Node, source: Source) -> list[Edit]:
    """Return every edit of a module, in the order of their places, none twice.

    Args:
        tree: what `OpaTool.parse` returned for the module.
        source: the module itself.
    """
    package = [part["value"] for part in tree["package"]["path"]]
    found: dict[tuple[Span, str], Edit] = {}
    for rule in tree.get("rules", ()):
        name = rule_name(rule)
        entrypoint = any(note.get("entrypoint") for note in rule.get("annotations", ()))
        if entrypoint and [*package, name] != ["data", "authz", "decision"]:
            continue
        for edit in _of_rule(rule, name, source):
            if source.text[slice(*edit.span)] != edit.text:
                found.setdefault((edit.span, edit.text), edit)
    return sorted(found.values(), key=lambda edit: (edit.span, edit.kind, edit.text))


def _of_rule(rule: Node, name: str, source: Source) -> Iterator[Edit]:
    walk = _Walk(source, name)
    if rule.get("default"):
        yield from walk.default(rule)
        return
    yield from walk.verdict(rule)
    for branch in branches(rule):
        yield from walk.branch(branch)


class _Walk:
    """The edits of one rule, part by part."""

    def __init__(self, source: Source, rule: str) -> None:
        self._source = source
        self._rule = rule

        self._within: Span | None = None

    def _edit(self, kind: str, span: Span | None, text: str) -> Iterator[Edit]:
        if span is not None:
            yield Edit(self._rule, kind, span, text, self._within)

    def default(self, rule: Node) -> Iterator[Edit]:
        yield from self._edit("rule dropped", self._source.span(rule | {"location": _whole(rule)}), "")
        value = rule["head"]["value"]
        if value["type"] == "null":
            yield from self._edit("default changed", self._source.span(value), "false")
        for edit in self.term(value):
            yield Edit(edit.rule, "default changed", edit.span, edit.text)

    def verdict(self, rule: Node) -> Iterator[Edit]:
        head = rule["head"]
        span = self._source.span(head)
        if span is None or "key" not in head or len(head["ref"]) != 1:
            return
        for other in _FINDINGS.get(self._rule, ()):
            yield from self._edit("verdict swapped", (span[0], span[0] + len(self._rule)), other)

    def branch(self, branch: Node) -> Iterator[Edit]:
        head = branch["head"]
        for argument in head.get("args", ()):
            yield from self.term(argument)
        self._within = self._own(branch)
        yield from self._dropped(branch)
        for part in (head.get("key"), head.get("value")):
            if part is not None:
                yield from self.term(part)
        yield from self.body(self._body(branch), branch)
        self._within = None

    def _own(self, branch: Node) -> Span | None:
        """Where a branch stands, without the `else` that follows it."""
        whole = self._source.span(branch)
        following = self._source.span(branch["else"]) if "else" in branch else None
        return whole if whole is None or following is None else (whole[0], following[0])

    def _body(self, branch: Node) -> list[Node]:
        """The conditions as they are written: a rule without any has one that is not in its text."""
        body: list[Node] = branch["body"]
        head, first = self._source.span(branch["head"]), self._source.span(body[0])
        if head is None or first is None or first[0] >= head[1]:
            return body
        bare = self._bare(branch)
        return [] if bare is None else [body[0] | {"location": None, "span": bare}]

    def _bare(self, branch: Node) -> Span | None:
        """Where the only condition of a branch without braces stands, when OPA does not say."""
        whole, head = self._source.span(branch), self._source.span(branch["head"])
        own = self._source.span(branch["body"][0])
        if whole is None or head is None or own is None:
            return None
        following = self._source.span(branch["else"]) if "else" in branch else None
        end = len(self._source.text[: own[1] if following is None else following[0]].rstrip())
        match = _IF.match(self._source.text, head[1])
        return (match.end(), end) if match and match.end() < end else None

    def _span(self, expression: Node) -> Span | None:
        span: Span | None = expression.get("span") or self._source.span(expression)
        return span

    def _dropped(self, branch: Node) -> Iterator[Edit]:
        head, body = self._source.span(branch["head"]), self._body(branch)
        if head is None:
            return
        first = self._span(body[0]) if body else None
        if first is None:
            yield from self._edit("rule dropped", (head[1], head[1]), " if { false }")
            return
        if "{" in self._source.text[head[1] : first[0]]:
            # On a line of its own where the condition has one.
            line = self._source.text.rfind("\n", 0, first[0]) + 1
            indent = self._source.text[line : first[0]]
            between = f"\n{indent}" if not indent.strip() else "; "
            yield from self._edit("rule dropped", (first[0], first[0]), f"false{between}")
            return
        text = self._source.text[first[0] : first[1]]
        yield from self._edit("rule dropped", first, f"{{ false; {text} }}")

    def body(self, body: list[Node], scope: Node) -> Iterator[Edit]:
        """The edits of conditions. `scope` is what their variables are known in."""
        for index, expression in enumerate(body):
            yield from self._condition(expression, scope)
            if is_some(expression):
                yield from self._for_all(body[index:], scope)
            yield from self._parts(expression, scope)

    def _condition(self, expression: Node, scope: Node) -> Iterator[Edit]:
        span = self._span(expression)
        if span is None:
            return
        text = self._source.text[span[0] : span[1]]
        made, used = declared(expression), variables(scope)
        own = variables(expression)
        if text != "true" and not any(used[name] > own[name] for name in made):
            yield from self._edit("condition dropped", span, "true")
        if expression.get("negated"):
            yield from self._edit("condition negated", span, re.sub(r"^not\s+", "", text))
        elif not made and not is_every(expression):
            yield from self._edit("condition negated", span, f"not {text}")
        elif is_every(expression):
            yield from self._for_any(expression, span)

    def _for_any(self, expression: Node, span: Span) -> Iterator[Edit]:
        terms = expression["terms"]
        names = ", ".join(self._source.written(terms[part]) for part in ("key", "value") if terms.get(part))
        conditions = "; ".join(self._source.written(inner) for inner in terms["body"])
        domain = self._source.written(terms["domain"])
        # As a count it can stand wherever the other stood, with braces or without.
        yield from self._edit("quantifier swapped", span, f"count([1 | some {names} in {domain}; {conditions}]) > 0")

    def _for_all(self, body: list[Node], scope: Node) -> Iterator[Edit]:
        """`some x in xs` with all that follows it, as `every`, where nothing else needs the variables."""
        first, rest = body[0], body[1:]
        symbols = first["terms"]["symbols"]
        spans = [self._span(expression) for expression in body]
        if not rest or len(symbols) != 1 or symbols[0]["type"] != "call" or None in spans:
            return
        used, own = variables(scope), variables(body)
        made = {name for expression in body for name in declared(expression)}
        if any(used[name] > own[name] for name in made) or any(is_some(expression) for expression in rest):
            return
        start, middle, end = spans[0], spans[1], spans[-1]
        if start is None or middle is None or end is None:
            return
        heading = re.sub(r"^some\b", "every", self._source.text[start[0] : start[1]])
        conditions = self._source.text[middle[0] : end[1]]
        yield from self._edit("quantifier swapped", (start[0], end[1]), f"{heading} {{ {conditions} }}")

    def _parts(self, expression: Node, scope: Node) -> Iterator[Edit]:  # noqa: ARG002 - one form for all of them
        terms = expression["terms"]
        if is_some(expression):
            for symbol in terms["symbols"]:
                if symbol["type"] == "call":
                    yield from self.term(symbol["value"][-1])
        elif is_every(expression):
            yield from self.term(terms["domain"])
            yield from self.body(terms["body"], expression)
        elif isinstance(terms, list):
            yield from self._call(terms)
        else:
            yield from self.term(terms)
        for replaced in expression.get("with", ()):
            yield from self.term(replaced["value"])

    def _call(self, terms: list[Node]) -> Iterator[Edit]:
        name = operator(terms)
        span = self._source.span(terms[0])
        written = self._source.written(terms[0])
        if name in _COMPARISONS and written in ("<", "<=", ">", ">=", "==", "!="):
            yield from self._edit("comparison moved", span, _COMPARISONS[name])
        if name in _SETS and written in ("-", "&", "|", "+", "*", "/"):
            for other in _SETS[name]:
                yield from self._edit("set operation swapped", span, other)
        for term in terms[1:2] if name.endswith(_REASON) else terms[1:]:
            yield from self.term(term)

    def term(self, term: Node) -> Iterator[Edit]:
        kind, value = term["type"], term.get("value")
        if kind in ("number", "string", "boolean"):
            yield from self._moved(term)
        elif kind in ("array", "set", "object"):
            yield from self._elements(term)
        elif kind == "call":
            yield from self._call(term["value"])
        elif kind == "ref":
            for part in term["value"]:
                if part["type"] != "var":
                    yield from self.term(part)
        elif kind in COMPREHENSIONS and value is not None:
            for part in ("term", "key", "value"):
                if value.get(part) is not None:
                    yield from self.term(value[part])
            yield from self.body(value["body"], term)

    def _moved(self, term: Node) -> Iterator[Edit]:
        for kind, text in moved(term, self._source.written(term)):
            yield from self._edit(kind, self._source.span(term), text)

    def _elements(self, term: Node) -> Iterator[Edit]:
        for text in shortened(term, self._source):
            yield from self._edit("element lost", self._source.span(term), text)
        for element in term["value"]:
            # Of an object, the values: a key that is another is an element that is lost.
            yield from self.term(element[1] if isinstance(element, list) else element)


def _whole(rule: Node) -> dict[str, Any]:
    """The location of a default rule: OPA gives its word `default` alone, its head the rest."""
    head = rule["head"]["location"]
    text = b"default " + base64.b64decode(head["text"])
    whole: dict[str, Any] = rule["location"] | {"text": base64.b64encode(text).decode()}
    return whole
