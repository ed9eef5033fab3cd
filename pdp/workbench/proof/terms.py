"""Terms: the values and formulas into which Rego is translated, and the simplest formulas.

A `Term` is immutable. Terms of equal structure are equal, so that equal policies give equal formulas without a solver.
Constructors simplify: they fold constants, sort what has no order, and move conditions out of iterations.

Values:
    undef, null, (num FRACTION), (str TEXT), (boolean FORMULA)
    input, data
    (arr ITEM...), (set ITEM...), (obj KEY VALUE...)
    (get V K)               the element of V at K; undefined if V has none
    (size V)                `count`: undefined unless V is a collection or a string
    (ite F A B)             A if F holds, otherwise B
    (call NAME V...)        a builtin function without meaning here; undefined if the builtin fails
    (var N JSON), (bound N JSON)    an element or key of a collection, outside and inside of its quantifier
    (slot N V), (slotkey N V)       the element and key number N of a bounded collection, for models only
    (collect KIND BODY)     a comprehension or a partial rule: BODY is a formula with `item` where an element is found
Formulas:
    yes, no, (and F...), (or F...), (not F)
    (defined V), (holds V)  V is defined; V is defined and not false
    (is KIND V)             V has the type `null`, `bool`, `num`, `str`, `arr`, `obj` or `set`
    (eq A B), (less A B)    both are defined, and equal, or in OPA's order over all types
    (member X V)            X is defined and an element (not a key) of the collection V
    (exists N V F)          F holds for an element `(bound N)` of the collection V
    (existskey N V F)       F holds for a key or index `(bound N)` of V
    (item K V)              in a BODY: the collection has V at key K; K is null in arrays, and V in sets
    (def LABEL F)           F, under which a rule LABEL has a value: a name for the solver and for people

The BODY of an array keeps order and repetition: (seq F BODY), (each N V BODY), (eachkey N V BODY). `relaxed` changes it
to a formula. JSON is true if a value comes from `input` or `data`, so it contains no sets.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from hashlib import blake2b
from typing import Final, cast

Leaf = str | int | bool | Fraction

KINDS: Final = ("null", "bool", "num", "str", "arr", "obj", "set")  # in OPA's order
COLLECTIONS: Final = frozenset(("arr", "obj", "set"))

_FORMULAS: Final = frozenset((
    "yes", "no", "and", "or", "not", "defined", "holds", "is", "eq", "less", "member", "exists", "existskey", "item",
    "seq", "each", "eachkey", "def",
))  # fmt: skip
BINDERS: Final = frozenset(("exists", "existskey", "each", "eachkey"))
STRUCTURES: Final = frozenset(("arr", "set", "obj", "collect"))
_SURE: Final = frozenset(("null", "num", "str", "boolean", "var", "bound", *STRUCTURES))  # never undefined


class Term:
    """A value or a formula. `key` identifies its structure.

    Attributes:
        free: the numbers of free variables; those of `bound` are negative.
        height: the highest number of a quantifier inside.
        items: whether an `item` of the collection that is described is inside.
    """

    __slots__ = ("args", "formula", "free", "height", "items", "key", "op")

    def __init__(self, op: str, *args: "Term | Leaf") -> None:
        self.op = op
        self.args = args
        terms = [arg for arg in args if isinstance(arg, Term)]
        parts = (b"t" + arg.key if isinstance(arg, Term) else f"{type(arg).__name__} {arg!r}".encode() for arg in args)
        self.key: bytes = blake2b(b"\0".join((op.encode(), *parts)), digest_size=16).digest()
        self.formula: bool = op in _FORMULAS
        self.height: int = max((term.height for term in terms), default=0)
        self.items: bool = op == "item" or (op != "collect" and any(term.items for term in terms))
        if op in ("var", "bound"):
            self.free: frozenset[int] = frozenset((self.number if op == "var" else -self.number,))
        else:
            self.free = frozenset().union(*(term.free for term in terms))
        if op in BINDERS:
            self.height = max(self.height, self.number)
            self.free = self.at(1).free | (self.at(2).free - {-self.number})

    def __hash__(self) -> int:
        # The hash of bytes differs from process to process, and with it the order of sets.
        return int.from_bytes(self.key[:7])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Term) and self.key == other.key

    def __repr__(self) -> str:
        return f"({' '.join(map(str, (self.op, *self.args)))})" if self.args else self.op

    def at(self, index: int) -> "Term":
        """Return an argument that is a term."""
        return cast("Term", self.args[index])

    @property
    def number(self) -> int:
        """The number of a variable or a quantifier."""
        return cast("int", self.args[0])

    @property
    def terms(self) -> tuple["Term", ...]:
        """The arguments of an operation that has only terms."""
        return cast("tuple[Term, ...]", self.args)


YES, NO = Term("yes"), Term("no")
UNDEF, NULL = Term("undef"), Term("null")
INPUT, DATA = Term("input"), Term("data")
TRUE, FALSE = Term("boolean", YES), Term("boolean", NO)


def subterms(terms: Iterable[Term]) -> Iterator[Term]:
    """Yield terms and all terms inside them, each once."""
    waiting, seen = list(terms), set[Term]()
    while waiting:
        term = waiting.pop()
        if term not in seen:
            seen.add(term)
            waiting += (arg for arg in term.args if isinstance(arg, Term))
            yield term


def string(value: str) -> Term:
    """Return a string."""
    return Term("str", value)


def number(value: int | Fraction | str) -> Term:
    """Return a number."""
    return Term("num", Fraction(value))


def is_constant(term: Term) -> bool:
    """Return whether a term is null, a boolean, a number or a string."""
    return term.op in ("null", "num", "str") or term in (TRUE, FALSE)


def kind_of(term: Term) -> str | None:
    """Return the type of a value if it is known, and it is not undefined."""
    if term.op in ("arr", "set", "obj", "num", "str", "null"):
        return term.op
    if term.op == "collect":
        return str(term.args[0])
    if is_sorted(term):
        return "arr"
    return "bool" if term.op == "boolean" else None


def is_sorted(term: Term) -> bool:
    """Return whether a value is the result of `sort`, which has the elements of its argument."""
    return term.op == "call" and term.args[0] == "sort" and kind_of(term.at(1)) in ("arr", "set")


def from_json(term: Term) -> bool:
    """Return whether a value is certainly JSON or undefined: it has no sets, and keys of objects are strings."""
    if term.op in ("var", "bound"):
        return bool(term.args[1])
    if term.op in ("slot", "slotkey"):
        return from_json(term.at(1))
    if term.op == "obj" and any(kind_of(key) != "str" for key in term.terms[::2]):
        return False
    if term.op in ("ite", "arr", "obj"):
        return all(from_json(part) for part in term.terms if not part.formula)
    if term.op == "get":
        return from_json(term.at(0))
    return term.op in ("input", "data", "undef", "size") or is_constant(term) or term.op == "boolean"


# Formulas


def conj(*formulas: Term) -> Term:
    """Return `and`, flat and sorted. Contradictions that are visible are `NO`."""
    parts: dict[Term, None] = {}
    for formula in formulas:
        for part in formula.terms if formula.op == "and" else (formula,):
            parts[part] = None
    parts.pop(YES, None)
    values = {part: _pinned(part) for part in parts if part.op == "eq"}
    fixed: dict[Term, Term] = {}
    for pinned in values.values():
        if pinned and fixed.setdefault(*pinned) != pinned[1]:
            return NO
    if NO in parts or any(part.op == "not" and _implied(part.at(0), parts) for part in parts):
        return NO
    # A value that is equal to another one is defined.
    known = {term for part in parts if part.op in ("eq", "less", "member", "holds") for term in part.terms[:2]}
    known |= {part.at(1) for part in parts if part.op == "is"}
    return _joined("and", [part for part in parts if not (part.op == "defined" and part.at(0) in known)], YES)


def _implied(formula: Term, parts: Mapping[Term, None]) -> bool:
    return formula in parts or (formula.op == "and" and all(part in parts for part in formula.terms))


def disj(*formulas: Term) -> Term:
    """Return `or`, flat and sorted."""
    parts: dict[Term, None] = {}
    for formula in formulas:
        for part in formula.terms if formula.op == "or" else (formula,):
            parts[part] = None
    parts.pop(NO, None)
    if YES in parts or any(part.op == "not" and part.at(0) in parts for part in parts):
        return YES
    # `a or (a and b)` is `a`.
    rest = [part for part in parts if not (part.op == "and" and any(inner in parts for inner in part.terms))]
    return _joined("or", rest, NO)


def _joined(op: str, parts: list[Term], empty: Term) -> Term:
    ordered = sorted(parts, key=lambda part: part.key)
    return Term(op, *ordered) if ordered[1:] else ordered[0] if ordered else empty


def _pinned(equation: Term) -> tuple[Term, Term] | None:
    one, other = equation.terms
    if is_constant(one):
        one, other = other, one
    return (one, other) if is_constant(other) else None


def neg(formula: Term) -> Term:
    """Return `not`."""
    if formula in (YES, NO):
        return NO if formula == YES else YES
    return formula.at(0) if formula.op == "not" else Term("not", formula)


def same(one: Term, other: Term) -> Term:
    """Return whether two formulas hold in the same calls."""
    return disj(conj(one, other), conj(neg(one), neg(other)))


def defined(value: Term) -> Term:
    """Return whether a value is defined."""
    if value.op in _SURE or value == DATA:
        return YES
    if value.op == "ite":
        return either(value, defined)
    return NO if value == UNDEF else Term("defined", value)


def holds(value: Term) -> Term:
    """Return whether an expression succeeds: its value is defined and not false."""
    if value.op == "boolean":
        return value.at(0)
    if value.op == "ite":
        return either(value, holds)
    return defined(value) if kind_of(value) or value == UNDEF else Term("holds", value)


def is_kind(kind: str, value: Term) -> Term:
    """Return whether a value has a type."""
    if value.op == "ite":
        return either(value, lambda part: is_kind(kind, part))
    known = kind_of(value)
    if known or value == UNDEF or (kind == "set" and from_json(value)):
        return YES if known == kind else NO
    return Term("is", kind, value)


def is_collection(value: Term) -> Term:
    """Return whether a value is an array, an object or a set."""
    return disj(*(is_kind(kind, value) for kind in sorted(COLLECTIONS)))


def either(value: Term, formula: Callable[[Term], Term]) -> Term:
    """Return a formula about the value of an `ite`."""
    condition, one, other = value.terms
    return disj(conj(condition, formula(one)), conj(neg(condition), formula(other)))
