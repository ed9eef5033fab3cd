"""Builtin functions that the prover knows. A proof holds for any result of the others."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pdp.workbench.proof import terms as t
from pdp.workbench.proof import values as v
from pdp.workbench.proof.terms import Term

RELATIONS: Final = frozenset(("walk",))
"""Builtin functions that return several values, so they are outside."""

_TYPES: Final = {
    "is_array": "arr",
    "is_boolean": "bool",
    "is_null": "null",
    "is_number": "num",
    "is_object": "obj",
    "is_set": "set",
    "is_string": "str",
}
_FORMULAS: Final[Mapping[tuple[str, int], Callable[..., Term]]] = {
    ("equal", 2): v.eq,
    ("neq", 2): lambda one, other: t.neg(v.eq(one, other)),
    ("lt", 2): v.less,
    ("gt", 2): lambda one, other: v.less(other, one),
    ("gte", 2): lambda one, other: t.neg(v.less(one, other)),
    ("lte", 2): lambda one, other: t.neg(v.less(other, one)),
    ("internal.member_2", 2): v.member,
    ("internal.member_3", 3): lambda key, item, collection: v.eq(v.get(collection, key), item),
}


def builtin(name: str, args: Sequence[Term]) -> Term:
    """Return what a builtin function returns for defined arguments. A function that fails is undefined."""
    formula = _FORMULAS.get((name, len(args)))
    if formula:
        return v.boolean(formula(*args))
    if name in _TYPES and len(args) == 1:
        return v.boolean(t.is_kind(_TYPES[name], args[0]))
    if name in ("min", "max") and len(args) == 1:
        # Every collection has a smallest and a largest element, but an empty one.
        some = t.conj(t.disj(t.is_kind("arr", args[0]), t.is_kind("set", args[0])), v.nonempty(args[0]))
        return v.ite(some, _sure(v.called(name, *args), t.NULL), t.UNDEF)
    if name == "object.union" and len(args) == 2:  # noqa: PLR2004
        return _union(*args)
    return v.size(*args) if (name, len(args)) == ("count", 1) else v.called(name, *args)


def _sure(value: Term, instead: Term) -> Term:
    """Return the result of a builtin function that does not fail here; `instead` is never its result."""
    return v.ite(t.defined(value), value, instead)


def _union(one: Term, other: Term) -> Term:
    for at, value in enumerate((one, other)):
        if value.op == "ite":
            given = ((new, other) if at == 0 else (one, new) for new in value.terms[1:])
            return v.ite(value.at(0), *(_union(*pair) for pair in given))
    objects = t.conj(t.is_kind("obj", one), t.is_kind("obj", other))
    return v.ite(objects, _sure(v.called("object.union", one, other), one), t.UNDEF)
