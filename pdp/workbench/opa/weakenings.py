"""Weakened conditions: forms that decide alike until somebody comes who is nearly right.

Texts are compared by a part of them, a number is off by a little or bounded, of a list only the first element counts.
Each form is what a careful saboteur would write, so it is a text edit as every other one. A form stands only where both
sides can be of its type: constants of another type, and calls that give numbers, are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdp.workbench.opa.syntax import Node, Source, Span, operator

if TYPE_CHECKING:
    from collections.abc import Iterator

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

Change = tuple[str, Span | None, str]
"""Kind, place and new text of an edit; without a place, OPA does not say where it stands, and it is left out."""


def weakened_call(terms: list[Node], span: Span | None, source: Source) -> Iterator[Change]:
    """Yield the weakened forms of a call, an operator's included.

    Args:
        terms: its name and its operands.
        span: where all of it stands, without a `not` before it.
        source: the module.
    """
    operands = terms[1:]
    if len(operands) != 2:  # noqa: PLR2004 - of two sides
        return
    name, (a, b) = operator(terms), map(source.written, operands)
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
        yield from _numbers(operands, source)
    if name in _ORDER and all(map(_may_be_text, operands)):
        yield "compared by day", span, f"substring({a}, 0, 10) {source.written(terms[0])} substring({b}, 0, 10)"
    yield from _overlap(name, operands, span, source)


def weakened_domain(domain: Node, source: Source) -> Iterator[Change]:
    """Yield what `some` or `every` looks at, cut to its first element."""
    cut = f"array.slice([member | some member in {source.written(domain)}], 0, 1)"
    yield "first element only", source.span(domain), cut


def weakened_key(part: Node, source: Source) -> Iterator[Change]:
    """Yield weakened forms of an attribute of the request by which something is looked up."""
    if part["type"] == "ref" and part["value"][0]["value"] == "input":
        for function in ("lower", "trim_space"):
            yield "key weakened", source.span(part), f"{function}({source.written(part)})"


def _equality(operands: list[Node], a: str, b: str, *, negated: bool) -> Iterator[str]:
    if not all(map(_may_be_text, operands)):
        return
    yield from (f"not {text}" if negated else text for text in _near(operands, a, b))
    if not any(operand["type"] == "string" for operand in operands):
        yield f"abs({a} - {b}) {'>=' if negated else '<'} 0.001"


def _near(constants: list[Node], a: str, b: str) -> Iterator[str]:
    """Yield the forms of two texts; an empty constant is a part of every text, and has one form only."""
    empty = any(operand["type"] == "string" and not operand["value"] for operand in constants)
    for form in _NEAR[-1:] if empty else _NEAR:
        yield form.format(a=a, b=b)


def _numbers(operands: list[Node], source: Source) -> Iterator[Change]:
    """The operands of a comparison, off by a little; a count and a constant are whole, which `constant moved` has.

    Beside a constant, a bound changes nothing or everything, and to shift or round down or up is to shift the constant.
    """
    counts, constants = map(_is_count, operands), [operand["type"] == "number" for operand in operands]
    fixed = any(constants)
    for index, (operand, count) in enumerate(zip(operands, counts, strict=True)):
        span, written = source.span(operand), source.written(operand)
        if constants[index] and not _is_count(operands[1 - index]):
            yield from (("number shifted", span, str(round(operand["value"] + by, 9))) for by in (0.001, -0.001))
        if not _may_be_number(operand):
            continue
        forms = {
            "number bounded": () if fixed else _BOUNDED,
            "number rounded": () if count else _ROUNDED[: 1 if fixed else None],
            # To shift one side is enough.
            "number shifted": _SHIFTED if not (fixed or count) and (index or _is_count(operands[1])) else (),
        }
        yield from ((kind, span, form.format(a=written)) for kind, texts in forms.items() for form in texts)


def _overlap(name: str, operands: list[Node], span: Span | None, source: Source) -> Iterator[Change]:
    """`count(a - b) == 0`, none is missing, as "they have one in common"; and the opposite."""
    others = {"equal": "> 0", "gt": "== 0"}
    if name not in others or not _is_count(operands[0]) or operands[1].get("value") != 0:
        return
    counted = operands[0]["value"][1]
    if counted["type"] == "call" and operator(counted["value"]) == "minus":
        a, b = map(source.written, counted["value"][1:])
        yield "set difference weakened", span, f"count({a} & {b}) {others[name]}"


def _is_count(term: Node) -> bool:
    return bool(term["type"] == "call") and operator(term["value"]) == "count"


def _may_be_text(term: Node) -> bool:
    kind = term["type"]
    return kind in ("string", "ref", "var") or (kind == "call" and operator(term["value"]) not in _NO_TEXT)


def _may_be_number(term: Node) -> bool:
    return term["type"] in ("ref", "var", "call")
