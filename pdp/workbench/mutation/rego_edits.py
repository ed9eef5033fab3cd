"""Mutants of Rego: a module broken in one place by a text edit, found in its syntax tree.

Not touched: METADATA, so that codes and messages stay; the details that a reason is given, which explain a verdict and
are no part of it; and entrypoints beside `authz/decision`, for which scenarios do not ask.
"""

from __future__ import annotations

import base64
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pdp.workbench.mutation.mutant import Identities, RegoMutant, difference
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
    package_of,
    parse_modules,
    rule_name,
    variables,
)
from pdp.workbench.opa.tool import OpaTool
from pdp.workbench.reports.shown_file import shown_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.workbench.opa.modules import Module

_COMPARISONS: Final = {"lt": ("<="), "lte": ("<"), "gt": (">="), "gte": (">"), "equal": ("!="), "neq": ("==")}
_SETS: Final = {"minus": ("&", "|"), "and": ("|", "-"), "or": ("&", "-"), "plus": ("-",), "mul": ("/",), "div": ("*",)}
# A finding that weighs otherwise: less, and where there is more, more.
_FINDINGS: Final = {"deny": ("step_up",), "step_up": ("allow", "deny"), "allow": ("step_up",)}
_VERDICTS: Final = ("ALLOW", "DENY", "STEP_UP")
_NUMBER: Final = re.compile(r"-?[0-9.eE+-]+")
_DECISION: Final = "data.authz.decision"
_REASON: Final = "reason.new"
_IF: Final = re.compile(r"\s*if\s+")


@dataclass(frozen=True, slots=True)
class Edit:
    """A text in the place of what stands at `span`, and the rule that it is part of."""

    rule: str
    kind: str
    span: Span
    text: str


def rego_mutants(opa: Path, modules: Mapping[str, Module]) -> list[RegoMutant]:
    """Return the mutants of modules by their places, without those of rules that no decision asks for.

    A mutant whose text is that of another one is left out. Whether one compiles is not known yet.

    Raises:
        FileFaultsError: a module is not Rego.
        UsageError: OPA cannot be run.
    """
    trees = parse_modules(opa, modules)
    with tempfile.TemporaryDirectory(prefix="pdp-mutants-") as folder:
        asked = OpaTool(opa, Path(folder), modules).dependencies(_DECISION)
    return [
        mutant
        for path, module in modules.items()
        for mutant in _of_module(path, module, trees[path])
        if f"data.{mutant.package}.{mutant.owner.split('.')[0]}" in asked
    ]


def _of_module(path: str, module: Module, tree: Node) -> list[RegoMutant]:
    source = Source(Path(shown_file(module.file)), module.text)
    identities = Identities(path)
    mutants: dict[str, RegoMutant] = {}
    for edit in edits(tree, source):
        original = source.text[edit.span[0] : edit.span[1]]
        text = source.changed(edit.span, edit.text)
        # An insertion has no text of its own: the line tells which one it is.
        about = original or source.line(edit.span[0])
        identity = identities.of(edit.rule, edit.kind, about, edit.text)
        if text in mutants:
            continue
        mutants[text] = RegoMutant(
            id=identity,
            kind=edit.kind,
            owner=edit.rule,
            place=source.place(edit.span[0]),
            original=original,
            changed=edit.text,
            diff=difference(str(source.file), source.text, text),
            module=path,
            package=package_of(tree),
            text=text,
        )
    return list(mutants.values())


def edits(tree: Node, source: Source) -> list[Edit]:
    """Return every edit of a module, in the order of their places, none twice.

    Args:
        tree: the module's.
        source: the module itself.
    """
    package = package_of(tree)
    found: dict[tuple[Span, str], Edit] = {}
    for rule in tree.get("rules", ()):
        name = rule_name(rule)
        entrypoint = any(note.get("entrypoint") for note in rule.get("annotations", ()))
        if entrypoint and f"data.{package}.{name}" != _DECISION:
            continue
        for edit in _Walk(source, name).rule(rule):
            if source.text[slice(*edit.span)] != edit.text:
                found.setdefault((edit.span, edit.text), edit)
    return sorted(found.values(), key=lambda edit: (edit.span, edit.kind, edit.text))


class _Walk:
    """The edits of one rule, part by part."""

    def __init__(self, source: Source, rule: str) -> None:
        self._source = source
        self._rule = rule

    def _edit(self, kind: str, span: Span | None, text: str) -> Iterator[Edit]:
        if span is not None:
            yield Edit(self._rule, kind, span, text)

    def rule(self, rule: Node) -> Iterator[Edit]:
        """The edits of a rule with all its branches."""
        if rule.get("default"):
            yield from self._default(rule)
            return
        yield from self._verdict(rule)
        for branch in branches(rule):
            yield from self._branch(branch)

    def _default(self, rule: Node) -> Iterator[Edit]:
        # OPA gives the location of its word `default` alone; the head's location has the rest.
        text = b"default " + base64.b64decode(rule["head"]["location"]["text"])
        whole = {"location": rule["location"] | {"text": base64.b64encode(text).decode()}}
        yield from self._edit("rule dropped", self._source.span(whole), "")
        value = rule["head"]["value"]
        if value["type"] == "null":
            yield from self._edit("default changed", self._source.span(value), "false")
        for edit in self.term(value):
            yield Edit(edit.rule, "default changed", edit.span, edit.text)

    def _verdict(self, rule: Node) -> Iterator[Edit]:
        head = rule["head"]
        span = self._source.span(head)
        if span is None or "key" not in head or len(head["ref"]) != 1:
            return
        for other in _FINDINGS.get(self._rule, ()):
            yield from self._edit("verdict swapped", (span[0], span[0] + len(self._rule)), other)

    def _branch(self, branch: Node) -> Iterator[Edit]:
        head = branch["head"]
        for argument in head.get("args", ()):
            yield from self.term(argument)
        yield from self._dropped(branch)
        for part in (head.get("key"), head.get("value")):
            if part is not None:
                yield from self.term(part)
        yield from self.body(self._body(branch), branch)

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
            yield from self._parts(expression)

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

    def _parts(self, expression: Node) -> Iterator[Edit]:
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
        """The edits of a number, boolean or string; what is not written out, such as a name for it, is left alone."""
        kind, value, written = term["type"], term["value"], self._source.written(term)
        change, texts = "constant moved", list[str]()
        if kind == "number" and _NUMBER.fullmatch(written):
            texts = [str(value + 1), str(value - 1)]
        elif kind == "boolean" and written in ("true", "false"):
            texts = ["false" if value else "true"]
        elif kind == "string" and written in (f'"{value}"', f"`{value}`"):
            if value in _VERDICTS:
                change, texts = "verdict swapped", [f'"{other}"' for other in _VERDICTS if other != value]
            else:
                texts = [f"{written[:-1]}~{written[-1]}"]
        for text in texts:
            yield from self._edit(change, self._source.span(term), text)

    def _elements(self, term: Node) -> Iterator[Edit]:
        for text in _shortened(term, self._source):
            yield from self._edit("element lost", self._source.span(term), text)
        for element in term["value"]:
            # Of an object, the values: a key that is another is an element that is lost.
            yield from self.term(element[1] if isinstance(element, list) else element)


def _shortened(term: Node, source: Source) -> Iterator[str]:
    """Yield the text of a list, set or object without each of its elements, in the order in which they stand."""
    whole = source.span(term)
    elements = [element if isinstance(element, list) else [element] for element in term["value"]]
    spans = [(source.span(element[0]), source.span(element[-1])) for element in elements]
    # OPA lists the elements of sets and objects by their values, not as they stand.
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
