"""Create edits of a Rego module that each break one place in it, found in its syntax tree.

METADATA is not edited, so codes and messages do not change. The details of a reason are not edited, because they
explain a verdict and do not affect the verdict.

Some edits weaken a condition, so that decisions differ only for values that are nearly right, as a careful saboteur
would. These edits compare parts of texts, shift or bound a number, or use only the first element of a list. Operands
are weakened only if their type may fit.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from pdp.opa.syntax import (
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

_COMPARISONS: Final = {
    "lt": ("<=",), "lte": ("<",), "gt": (">=",), "gte": (">",), "equal": ("!=",), "neq": ("==",),
}  # fmt: skip
_SETS: Final = {"minus": ("&", "|"), "and": ("|", "-"), "or": ("&", "-"), "plus": ("-",), "mul": ("/",), "div": ("*",)}
# For each type of finding (such as deny), the types that replace it in a mutant.
_FINDINGS: Final = {"deny": ("step_up",), "step_up": ("allow", "deny"), "allow": ("step_up",)}
_VERDICTS: Final = ("ALLOW", "DENY", "STEP_UP")
_NUMBER: Final = re.compile(r"-?[0-9.eE+-]+")
_REASON: Final = "reason.new"
_EMPTY: Final = {"[]": "[false]", "{}": '{"~": false}', "set()": "{false}"}
_NOT: Final = re.compile(r"not\s+")
_IF: Final = re.compile(r"\s*if\s+")
_NEAR: Final = (
    "startswith({a}, {b})", "startswith({b}, {a})", "endswith({a}, {b})", "endswith({b}, {a})",
    "contains({a}, {b})", "contains({b}, {a})",
    "startswith({b}, substring({a}, 0, floor(count({a}) / 2)))",
    "lower({a}) == lower({b})", "trim_space({a}) == trim_space({b})",
)  # fmt: skip
_BOUNDED: Final = ("min([{a}, 3])", "min([{a}, 10000])", "max([{a}, 1])", "max([{a}, 100])")
_ROUNDED: Final = ("round({a})", "floor({a})", "ceil({a})")
_SHIFTED: Final = ("{a} + 0.001", "{a} - 0.001")
_NO_TEXT: Final = frozenset(("count", "sum", "plus", "minus", "mul", "div", "rem", "abs", "round", "ceil", "floor"))
_ORDER: Final = frozenset(("lt", "lte", "gt", "gte"))
_AT_MOST: Final = "number.at_most"
_LOWERED: Final = "{{lower(member) | some member in {a}}}"
_FIRST: Final = "array.slice([member | some member in {a}], 0, 1)"

Change = tuple[str, Span | None, str]
"""The kind, location and new text of an edit. An edit without a location is left out."""


class Edit(NamedTuple):
    """The name of the edited rule, the kind of edit, the location of the replaced text, and the new text."""

    rule: str
    kind: str
    span: Span
    text: str


def edits(tree: Node, source: Source) -> list[Edit]:
    """Return the edits of a module, in the order of their locations, without duplicates."""
    known: dict[tuple[Span, str], Edit] = {}
    for rule in tree.get("rules", ()):
        for kind, span, text in _RuleEdits(source).rule(rule):
            if span is not None and source.text[slice(*span)] != text:
                known.setdefault((span, text), Edit(rule_name(rule), kind, span, text))
    return sorted(known.values(), key=lambda edit: (edit.span, edit.kind, edit.text))


class _RuleEdits:
    """Creates the edits of a rule, with one method for each kind of syntax."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def rule(self, rule: Node) -> Iterator[Change]:
        head = rule["head"]
        if rule.get("default"):
            # For a default rule, OPA locates only the word `default`, so the rest is taken from the location of the
            # head.
            word, rest = self._source.span(rule), self._source.span(head)
            yield "rule dropped", word and rest and (word[0], rest[1]), ""
            yield from (("default changed", span, changed) for _, span, changed in self.term(head["value"]))
            return
        span, name = self._source.span(head), rule_name(rule)
        if span is not None and "key" in head and len(head["ref"]) == 1:
            for other in _FINDINGS.get(name, ()):
                yield "verdict swapped", (span[0], span[0] + len(name)), other
        for branch in branches(rule):
            yield from self._branch(branch)

    def _branch(self, branch: Node) -> Iterator[Change]:
        head, body = branch["head"], self._body(branch)
        yield from self._dropped(head, body)
        for part in (*head.get("args", ()), head.get("key"), head.get("value")):
            if part is not None:
                yield from self.term(part)
        yield from self.body(body, branch)

    def _body(self, branch: Node) -> list[Node]:
        """Return the conditions that the author wrote. OPA adds a condition to a rule without conditions."""
        body: list[Node] = branch["body"]
        head, first = self._source.span(branch["head"]), self._source.span(body[0])
        if head is None or first is None or first[0] >= head[1]:
            return body
        # If a branch without braces has a single condition, OPA gives the condition the location of the whole branch.
        following = self._source.span(branch.get("else", {}))
        end = len(self._source.text[: first[1] if following is None else following[0]].rstrip())
        match = _IF.match(self._source.text, head[1])
        if match is None or match.end() >= end:
            return []
        return [body[0] | {"location": None, "span": (match.end(), end)}]

    def _span(self, expression: Node) -> Span | None:
        span: Span | None = expression.get("span") or self._source.span(expression)
        return span

    def _dropped(self, rule_head: Node, body: list[Node]) -> Iterator[Change]:
        head = self._source.span(rule_head)
        first = self._span(body[0]) if body else None
        if head is None or first is None:
            yield "rule dropped", head and (head[1], head[1]), " if { false }"
        elif "{" in self._source.text[head[1] : first[0]]:
            # If the removed condition starts a source line, the line stays.
            line = self._source.text.rfind("\n", 0, first[0]) + 1
            indent = self._source.text[line : first[0]]
            between = f"\n{indent}" if not indent.strip() else "; "
            yield "rule dropped", (first[0], first[0]), f"false{between}"
        else:
            yield "rule dropped", first, f"{{ false; {self._source.text[slice(*first)]} }}"

    def body(self, body: list[Node], scope: Node) -> Iterator[Change]:
        """Yield the edits of a list of conditions. `scope` is the syntax node in which their variables are visible."""
        for index, expression in enumerate(body):
            yield from self._condition(expression, scope)
            if is_some(expression):
                yield from self._for_all(body[index:], scope)
            yield from self._parts(expression)

    def _condition(self, expression: Node, scope: Node) -> Iterator[Change]:
        span = self._span(expression)
        if span is None:
            return
        text, made = self._source.text[slice(*span)], declared(expression)
        if text != "true" and not _needed(made, scope, expression):
            yield "condition dropped", span, "true"
        if expression.get("negated"):
            yield "condition negated", span, _NOT.sub("", text, count=1)
        elif not made and not is_every(expression):
            yield "condition negated", span, f"not {text}"
        elif is_every(expression):
            yield from self._for_any(expression, span)

    def _for_any(self, expression: Node, span: Span) -> Iterator[Change]:
        terms = expression["terms"]
        names = ", ".join(self._source.written(terms[part]) for part in ("key", "value") if terms.get(part))
        conditions = "; ".join(self._source.written(inner) for inner in terms["body"])
        domain = self._source.written(terms["domain"])
        # A count can replace an `every` at any place, with or without braces.
        yield "quantifier swapped", span, f"count([1 | some {names} in {domain}; {conditions}]) > 0"

    def _for_all(self, body: list[Node], scope: Node) -> Iterator[Change]:
        """Turn `some x in xs` and the conditions after it into `every`, unless their variables are used elsewhere."""
        first, rest = body[0], body[1:]
        symbols = first["terms"]["symbols"]
        spans = [span for expression in body if (span := self._span(expression))]
        if not rest or len(symbols) != 1 or symbols[0]["type"] != "call" or len(spans) < len(body):
            return
        made = {name for expression in body for name in declared(expression)}
        if _needed(made, scope, body) or any(map(is_some, rest)):
            return
        heading = re.sub(r"^some\b", "every", self._source.text[slice(*spans[0])])
        end = spans[-1][1]
        conditions = self._source.text[spans[1][0] : end]
        yield "quantifier swapped", (spans[0][0], end), f"{heading} {{ {conditions} }}"

    def _parts(self, expression: Node) -> Iterator[Change]:
        terms = expression["terms"]
        if is_some(expression):
            for symbol in terms["symbols"]:
                if symbol["type"] == "call":
                    yield from self._domain(symbol["value"][-1])
        elif is_every(expression):
            yield from self._domain(terms["domain"])
            yield from self.body(terms["body"], expression)
        elif isinstance(terms, list):
            span = None if expression.get("with") else self._span(expression)
            negation = _NOT.match(self._source.text, span[0]) if span and expression.get("negated") else None
            yield from self._call(terms, (negation.end(), span[1]) if span and negation else span)
        else:
            yield from self.term(terms)
        for replaced in expression.get("with", ()):
            yield from self.term(replaced["value"])

    def _domain(self, domain: Node) -> Iterator[Change]:
        yield "first element only", self._source.span(domain), _FIRST.format(a=self._source.written(domain))
        yield from self.term(domain)

    def _call(self, terms: list[Node], span: Span | None) -> Iterator[Change]:
        if len(terms) == len(("operator", "left", "right")):
            yield from self._weakened(terms, span)
        name, written = operator(terms), self._source.written(terms[0])
        # Functions such as `lt(a, b)` have the same operator names as signs, but only signs are replaced.
        for kind, others in (("comparison moved", _COMPARISONS), ("set operation swapped", _SETS)):
            if name in others and written and not written[0].isalpha():
                yield from ((kind, self._source.span(terms[0]), other) for other in others[name])
        for term in terms[1:2] if name.endswith(_REASON) else terms[1:]:
            yield from self.term(term)

    def _weakened(self, terms: list[Node], span: Span | None) -> Iterator[Change]:
        """Yield weaker forms of a call with two operands. `span` locates the call, without a `not` before it."""
        operands = terms[1:]
        name, (a, b) = operator(terms), map(self._source.written, operands)
        if name in ("equal", "neq") or (name == "eq" and operands[0]["type"] != "var"):
            yield from (("equality weakened", span, text) for text in _equality(operands, a, b, negated=name == "neq"))
        elif name == "internal.member_2" and _may_be_text(operands[0]):
            for text in _near(operands[:1], a, "near"):
                yield "membership weakened", span, f"count([1 | some near in {b}; {text}]) > 0"
        elif name in ("startswith", "endswith"):
            yield "text test weakened", span, f"contains({a}, {b})"
            yield "text test weakened", span, f"{name}(lower({a}), lower({b}))"
        elif name == "minus":
            yield "set difference weakened", span, f"{_LOWERED.format(a=a)} - {_LOWERED.format(a=b)}"
        elif name in _ORDER or name.endswith(_AT_MOST):
            yield from self._numbers(operands)
        if name in _ORDER and all(map(_may_be_text, operands)):
            sign = self._source.written(terms[0])
            yield "compared by day", span, f"substring({a}, 0, 10) {sign} substring({b}, 0, 10)"
        yield from self._overlap(name, operands, span)

    def _numbers(self, operands: list[Node]) -> Iterator[Change]:
        """Yield edits that shift, bound or round the operands of a comparison.

        Constants that are compared with a count are left out, because `constant moved` shifts them. If one operand is a
        constant, the other operand is not bounded, and is rounded in only one way: more edits would decide the same.
        """
        counts, constants = map(_is_count, operands), [operand["type"] == "number" for operand in operands]
        fixed = any(constants)
        for index, (operand, count) in enumerate(zip(operands, counts, strict=True)):
            span, written = self._source.span(operand), self._source.written(operand)
            if constants[index] and not _is_count(operands[1 - index]):
                yield from (("number shifted", span, str(round(operand["value"] + by, 9))) for by in (0.001, -0.001))
            if operand["type"] not in ("ref", "var", "call"):
                continue
            forms = {
                "number bounded": () if fixed else _BOUNDED,
                "number rounded": () if count else _ROUNDED[: 1 if fixed else None],
                # Only one side of a comparison is shifted, because shifting the other side has the same effect.
                "number shifted": _SHIFTED if not (fixed or count) and (index or _is_count(operands[1])) else (),
            }
            yield from ((kind, span, form.format(a=written)) for kind, texts in forms.items() for form in texts)

    def _overlap(self, name: str, operands: list[Node], span: Span | None) -> Iterator[Change]:
        """Weaken `count(a - b) == 0` (all) to `count(a & b) > 0` (some), and its opposite to `count(a & b) == 0`."""
        others = {"equal": "> 0", "gt": "== 0"}
        if name not in others or not _is_count(operands[0]) or operands[1].get("value") != 0:
            return
        counted = operands[0]["value"][1]
        if counted["type"] == "call" and operator(counted["value"]) == "minus":
            a, b = map(self._source.written, counted["value"][1:])
            yield "set difference weakened", span, f"count({a} & {b}) {others[name]}"

    def term(self, term: Node) -> Iterator[Change]:
        kind, value = term["type"], term.get("value")
        if kind in ("number", "string", "boolean", "null"):
            yield from self._moved(term)
        elif kind in ("array", "set", "object"):
            yield from self._elements(term)
        elif kind == "call":
            yield from self._call(term["value"], self._source.span(term))
        elif kind == "ref":
            yield from self._keys(term["value"])
        elif kind in COMPREHENSIONS and value is not None:
            for part in ("term", "key", "value"):
                if value.get(part) is not None:
                    yield from self.term(value[part])
            yield from self.body(value["body"], term)

    def _keys(self, reference: list[Node]) -> Iterator[Change]:
        """Yield the edits of the keys in a reference. Keys from the request are also lowered or trimmed."""
        for part in reference:
            if part["type"] == "ref" and part["value"][0]["value"] == "input":
                for function in ("lower", "trim_space"):
                    yield "key weakened", self._source.span(part), f"{function}({self._source.written(part)})"
            if part["type"] != "var":
                yield from self.term(part)

    def _moved(self, term: Node) -> Iterator[Change]:
        value: Any = term.get("value")
        kind, written = term["type"], self._source.written(term)
        change, texts = "constant moved", list[str]()
        if kind == "number" and _NUMBER.fullmatch(written):
            texts = [str(value + 1), str(value - 1)]
        elif kind == "boolean" and written in ("true", "false"):
            texts = ["false" if value else "true"]
        elif written == "null":
            texts = ["false"]
        elif kind == "string" and written in (f'"{value}"', f"`{value}`"):
            if value in _VERDICTS:
                change, texts = "verdict swapped", [f'"{other}"' for other in _VERDICTS if other != value]
            else:
                texts = [f"{written[:-1]}~{written[-1]}"]
        for text in texts:
            yield change, self._source.span(term), text

    def _elements(self, term: Node) -> Iterator[Change]:
        written = self._source.written(term)
        if written in _EMPTY:
            yield "constant moved", self._source.span(term), _EMPTY[written]
        for text in _shortened(term, self._source):
            yield "element lost", self._source.span(term), text
        for element in term["value"]:
            # Keys of an object are not edited, because a changed key has the same effect as a removed element.
            yield from self.term(element[1] if isinstance(element, list) else element)


def _needed(names: Iterable[str], scope: Node, part: Any) -> bool:
    """Return whether one of the variables `names` is used in `scope` outside `part`."""
    used, own = variables(scope), variables(part)
    return any(used[name] > own[name] for name in names)


def _shortened(term: Node, source: Source) -> Iterator[str]:
    """Yield the text of a list, set or object with one element removed, for each element."""
    whole = source.span(term)
    elements = [element if isinstance(element, list) else [element] for element in term["value"]]
    spans = [(source.span(element[0]), source.span(element[-1])) for element in elements]
    # The elements are sorted by location, because OPA sorts the elements of sets and objects by value.
    known = sorted((first[0], last[1]) for first, last in spans if first and last)
    if whole is None or len(known) < len(spans) or source.text[whole[0]] not in "[{":
        return
    text = source.text
    for index, (start, end) in enumerate(known):
        if len(known) == 1:
            yield "set()" if term["type"] == "set" else text[whole[0]] + text[whole[1] - 1]
        elif index + 1 < len(known):
            yield text[whole[0] : start] + text[known[index + 1][0] : whole[1]]
        else:
            yield text[whole[0] : known[index - 1][1]] + text[end : whole[1]]


def _equality(operands: list[Node], a: str, b: str, *, negated: bool) -> Iterator[str]:
    if not all(map(_may_be_text, operands)):
        return
    yield from (f"not {text}" if negated else text for text in _near(operands, a, b))
    if not any(operand["type"] == "string" for operand in operands):
        yield f"abs({a} - {b}) {'>=' if negated else '<'} 0.001"


def _near(constants: list[Node], a: str, b: str) -> Iterator[str]:
    """Yield weaker comparisons of two texts; a single comparison for an empty constant, which every text contains."""
    empty = any(operand["type"] == "string" and not operand["value"] for operand in constants)
    for form in _NEAR[-1:] if empty else _NEAR:
        yield form.format(a=a, b=b)


def _is_count(term: Node) -> bool:
    return bool(term["type"] == "call") and operator(term["value"]) == "count"


def _may_be_text(term: Node) -> bool:
    kind = term["type"]
    return kind in ("string", "ref", "var") or (kind == "call" and operator(term["value"]) not in _NO_TEXT)
