"""Values and formulas that depend on the structure of collections: equality, order, elements and iteration."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from itertools import count
from typing import Final, NamedTuple, cast

from pdp.workbench.proof.terms import (
    BINDERS,
    COLLECTIONS,
    FALSE,
    KINDS,
    NO,
    NULL,
    STRUCTURES,
    TRUE,
    UNDEF,
    YES,
    Term,
    conj,
    defined,
    disj,
    either,
    from_json,
    holds,
    is_constant,
    is_kind,
    is_sorted,
    kind_of,
    neg,
    number,
    string,
)

Finding = Callable[[Term, Term], Term]
"""From key and element to a formula."""

_numbers = count(1)


def eq(one: Term, other: Term) -> Term:
    """Return whether two values are defined and equal."""
    for value, against in ((one, other), (other, one)):
        if value.op == "ite":
            return either(value, lambda part, against=against: eq(part, against))  # type: ignore[misc]
    if UNDEF in (one, other):
        return NO
    if one == other:
        return defined(one)
    found = _equal_to(one, other) or _equal_to(other, one) or _literals_equal(one, other)
    return found or Term("eq", *sorted((one, other), key=lambda term: term.key))


def _equal_to(value: Term, against: Term) -> Term | None:
    """Return the formula for an equation whose first value has a known structure."""
    if value.op == "boolean" and against in (TRUE, FALSE):
        return value.at(0) if against == TRUE else neg(value.at(0))
    if value.op == "size" and value.at(0).op == "collect" and against == number(0):
        return neg(nonempty(value.at(0)))
    if value.op == "collect" and against == Term(str(value.args[0])):
        return neg(nonempty(value))
    if value.op == "arr" and (against.op == "arr" or not kind_of(against)):
        items = (eq(item, get(against, number(at))) for at, item in enumerate(value.terms))
        return conj(is_kind("arr", against), eq(size(against), number(len(value.args))), *items)
    return None


def _literals_equal(one: Term, other: Term) -> Term | None:
    kinds = kind_of(one), kind_of(other)
    if None not in kinds and (kinds[0] != kinds[1] or (is_constant(one) and is_constant(other))):
        return NO
    if one.op == other.op == "obj" and all(is_constant(key) for key in (*one.terms[::2], *other.terms[::2])):
        same = one.terms[::2] == other.terms[::2]
        return conj(*map(eq, one.terms[1::2], other.terms[1::2])) if same else NO
    both_sets = one.op == other.op == "set"
    return NO if both_sets and all(map(is_constant, (*one.terms, *other.terms))) else None


def less(one: Term, other: Term) -> Term:
    """Return whether both values are defined and the first comes first in OPA's order."""
    if one.op == "ite":
        return either(one, lambda part: less(part, other))
    if other.op == "ite":
        return either(other, lambda part: less(one, part))
    if one == other or UNDEF in (one, other):
        return NO
    zero, unit = number(0), number(1)
    if one == zero and other.op == "size" and other.at(0).op == "collect":
        return nonempty(other.at(0))
    if other == unit and one.op == "size" and one.at(0).op == "collect":
        return neg(nonempty(one.at(0)))
    ranks = kind_of(one), kind_of(other)
    if ranks[0] and ranks[1] and ranks[0] != ranks[1]:
        return YES if KINDS.index(ranks[0]) < KINDS.index(ranks[1]) else NO
    if one.op == other.op == "num":
        return YES if cast("Fraction", one.args[0]) < cast("Fraction", other.args[0]) else NO
    return Term("less", one, other)


# Values


def boolean(formula: Term) -> Term:
    """Return a formula as a value."""
    return Term("boolean", formula)


def ite(condition: Term, one: Term, other: Term) -> Term:
    """Return the first value if the condition holds, otherwise the other one."""
    if condition in (YES, NO) or one == other:
        return one if condition == YES else other
    if one.op == other.op == "boolean":
        return boolean(disj(conj(condition, one.at(0)), conj(neg(condition), other.at(0))))
    return Term("ite", condition, one, other)


def array(items: Iterable[Term]) -> Term:
    """Return an array of defined items."""
    return Term("arr", *items)


def set_of(items: Iterable[Term]) -> Term:
    """Return a set of defined items."""
    return Term("set", *sorted(set(items), key=lambda item: item.key))


def object_of(pairs: Mapping[Term, Term]) -> Term:
    """Return an object of defined keys and values."""
    return Term("obj", *(part for key in sorted(pairs, key=lambda key: key.key) for part in (key, pairs[key])))


def get(value: Term, key: Term) -> Term:
    """Return an element of a collection by its key."""
    for part in (value, key):
        if part.op == "ite":
            condition, one, other = part.terms
            parts = (get(one, key), get(other, key)) if part is value else (get(value, one), get(value, other))
            return ite(condition, *parts)
    if value.op == "collect" and value.args[0] == "set":
        return ite(member(key, value), key, UNDEF)
    if value.op in COLLECTIONS:
        found = UNDEF
        for at, item in pairs_of(value):
            found = ite(eq(key, at), item, found)
        return found
    if UNDEF in (value, key) or (kind_of(value) or "arr") not in COLLECTIONS:
        return UNDEF
    return Term("get", value, key)


def pairs_of(value: Term) -> list[tuple[Term, Term]]:
    """Return keys and values of an array, a set or an object that is written in a policy."""
    if value.op == "obj":
        return list(zip(value.terms[::2], value.terms[1::2], strict=True))
    return [(number(at) if value.op == "arr" else item, item) for at, item in enumerate(value.terms)]


def member(item: Term, value: Term) -> Term:
    """Return whether a value is an element of a collection."""
    if item == UNDEF:
        return NO
    if value.op in STRUCTURES or value.op == "ite" or is_sorted(value):
        return over(value, lambda _, element: eq(item, element))
    if value == UNDEF or kind_of(value) not in (None, "arr"):
        return NO
    if item.op == "ite":
        return either(item, lambda part: member(part, value))
    return Term("member", item, value)


def size(value: Term) -> Term:
    """Return the number of elements of a collection, or of characters of a string."""
    if is_sorted(value):
        return size(value.at(1))
    if value.op == "ite":
        return ite(value.at(0), size(value.at(1)), size(value.at(2)))
    if value.op == "arr" or (value.op in ("set", "obj") and all(is_constant(key) for key, _ in pairs_of(value))):
        return number(len(pairs_of(value)))
    if value.op == "str":
        return number(len(str(value.args[0])))
    return UNDEF if value == UNDEF or kind_of(value) in ("null", "bool", "num") else Term("size", value)


def define(label: str, term: Term) -> Term:
    """Return a formula under a name, unless it is small or depends on a variable."""
    inner = term.at(0) if term.op == "not" else term
    large = inner.op in ("and", "or", "exists", "existskey") and not term.free
    return Term("def", label, term) if large else term


# Collections and iteration


def collection(kind: str, body: Term) -> Term:
    """Return the collection of all items of a body."""
    return Term(kind) if body == NO else Term("collect", kind, body)


def nonempty(value: Term) -> Term:
    """Return whether a collection has an element."""
    return over(value, lambda _key, _value: YES)


def over(value: Term, finding: Finding, *, keyed: bool = False) -> Term:
    """Return whether `finding` holds for an element of a collection. With `keyed`, it needs the key as well."""
    if value.op == "ite":
        return either(value, lambda part: over(part, finding, keyed=keyed))
    if value.op in ("arr", "set", "obj"):
        return disj(*(finding(key, item) for key, item in pairs_of(value)))
    if is_sorted(value) and not keyed:
        return over(value.at(1), finding)
    if value.op == "collect" and not (keyed and value.args[0] == "arr"):
        return _found(relaxed(value.at(1)), finding)
    if value == UNDEF or (kind_of(value) or "arr") not in COLLECTIONS:
        return NO
    element = Term("var", next(_numbers), from_json(value))
    if keyed:
        return _close("existskey", element, value, finding(element, get(value, element)))
    return _close("exists", element, value, finding(NULL, element))


def in_order(value: Term, finding: Finding, *, keyed: bool) -> Term:
    """Return the part of an array's body that iterates over a collection."""
    element = Term("var", next(_numbers), from_json(value))
    body = finding(element, get(value, element)) if keyed else finding(NULL, element)
    at = body.height + 1
    bound = replaced(body, {element.number: Term("bound", at, element.args[1])})
    return NO if body == NO else Term("eachkey" if keyed else "each", at, value, bound)


def seq(condition: Term, body: Term) -> Term:
    """Return the part of an array's body that has a condition."""
    if condition == YES:
        return body
    return NO if NO in (condition, body) else Term("seq", condition, body)


def relaxed(body: Term) -> Term:
    """Return the body of an array as a formula, without order and repetition."""
    if body.op == "seq":
        return conj(body.at(0), relaxed(body.at(1)))
    if body.op not in ("each", "eachkey"):
        return body
    keyed = body.op == "eachkey"

    def inner(key: Term, element: Term) -> Term:
        return relaxed(replaced(body.at(2), {-body.number: key if keyed else element}))

    return over(body.at(1), inner, keyed=keyed)


def _found(body: Term, finding: Finding) -> Term:
    """Return the body of a collection with `finding` in the place of each item."""
    if body.op == "item":
        return finding(*body.terms)
    if body.op in ("and", "or"):
        join = conj if body.op == "and" else disj
        return join(*(_found(part, finding) if part.items else part for part in body.terms))
    if body.op in ("exists", "existskey"):
        element = _opened(body)
        return _close(body.op, element, body.at(1), _found(replaced(body.at(2), {-body.number: element}), finding))
    return body


def _opened(binder: Term) -> Term:
    # A quantifier over the keys of JSON has keys that are JSON as well.
    return Term("var", next(_numbers), from_json(binder.at(1)))


class Case(NamedTuple):
    """An item of a body, and when it is there. `inner` are the variables that iterations inside the body bring."""

    when: Term
    key: Term
    value: Term
    inner: frozenset[int]


def outer_variables(term: Term, wanted: frozenset[int] | None = None) -> Iterator[Term]:
    """Yield the free variables of a term in a fixed order, perhaps repeatedly."""
    wanted = term.free if wanted is None else wanted
    if term.op in ("var", "bound"):
        yield term
    for arg in term.args:
        if isinstance(arg, Term) and not arg.free.isdisjoint(wanted):
            body = term.op in BINDERS and arg is term.args[2]
            yield from outer_variables(arg, wanted - {-term.number} if body else wanted)


def cases_of(body: Term) -> list[Case]:
    """Return the items of a body."""
    if body.op == "item":
        return [Case(YES, body.at(0), body.at(1), frozenset())]
    if body.op == "or":
        return [case for part in body.terms for case in cases_of(part)]
    if body.op == "and":
        rest = conj(*(part for part in body.terms if not part.items))
        cases = (case for part in body.terms if part.items for case in cases_of(part))
        return [case._replace(when=conj(rest, case.when)) for case in cases]
    if body.op not in ("exists", "existskey"):
        return []
    element = _opened(body)
    return [
        case._replace(when=_close(body.op, element, body.at(1), case.when), inner=case.inner | element.free)
        for case in cases_of(replaced(body.at(2), {-body.number: element}))
    ]


def _close(op: str, element: Term, value: Term, body: Term) -> Term:
    """Return a quantifier over a variable. Parts that do not depend on the variable are moved out of it."""
    if body == NO:
        return NO
    if body.op == "or":
        return disj(*(_close(op, element, value, part) for part in body.terms))
    parts = body.terms if body.op == "and" else (body,)
    inside = [part for part in parts if element.number in part.free]
    outside = [part for part in parts if element.number not in part.free]
    if not inside:
        return conj(Term("exists", 1, value, YES), *outside)
    for part in inside:
        if part.op == "eq" and element in part.args:
            same = part.at(1) if part.at(0) == element else part.at(0)
            if element.number not in same.free:
                rest = replaced(conj(*(other for other in inside if other is not part)), {element.number: same})
                return conj(member(same, value) if op == "exists" else defined(get(value, same)), rest, *outside)
    inner = conj(*inside)
    at = inner.height + 1
    quantified = Term(op, at, value, replaced(inner, {element.number: Term("bound", at, element.args[1])}))
    return conj(quantified, *outside)


def replaced(term: Term, values: Mapping[int, Term], done: dict[Term, Term] | None = None) -> Term:
    """Return a term with other terms in the places of free variables, simplified again."""
    done = {} if done is None else done
    if term.free.isdisjoint(values):
        return term
    if term not in done:
        if term.op in ("var", "bound"):
            return values[next(iter(term.free))]
        if term.op in BINDERS:
            done[term] = _replaced_binder(term, values, done)
        else:
            args = [replaced(arg, values, done) if isinstance(arg, Term) else arg for arg in term.args]
            done[term] = _REBUILT.get(term.op, partial(Term, term.op))(*args)
    return done[term]


def _replaced_binder(term: Term, values: Mapping[int, Term], done: dict[Term, Term]) -> Term:
    value = replaced(term.at(1), values, done)
    number, inner = -term.number, {at: new for at, new in values.items() if at != -term.number}
    if any(new.height for new in inner.values()):
        # Quantifiers inside may get higher numbers, so the variable must not have a number meanwhile.
        element = _opened(term)
        number, inner = element.number, {**inner, -term.number: element}
    body = replaced(term.at(2), inner, done if inner == values else {})
    if term.op in ("exists", "existskey") and (value.op in STRUCTURES or value.op in ("ite", "undef")):
        keyed = term.op == "existskey"

        def found(key: Term, element: Term) -> Term:
            return replaced(body, {number: key if keyed else element})

        return over(value, found, keyed=keyed)
    if body == NO:
        return NO
    at = body.height + 1
    if number != -at:
        body = replaced(body, {number: Term("bound", at, from_json(value))})
    return Term(term.op, at, value, body)


# Builtin functions that depend on the structure of their arguments


def called(name: str, *args: Term) -> Term:
    """Return what a builtin function returns for defined arguments."""
    # A key that may be an array is a path, whose steps are known only if it is written in the policy.
    if name == "object.get" and (args[1].op in ("ite", "arr") or kind_of(args[1]) not in (None, "arr")):
        return _looked_up(*args)
    if name in ("or", "and", "minus") and all(kind_of(arg) == "set" for arg in args):
        one, other = args
        item = partial(Term, "item")
        if name == "or":
            return collection("set", disj(over(one, item), over(other, item)))
        sign = neg if name == "minus" else conj
        return collection("set", over(one, lambda key, value: conj(sign(member(value, other)), item(key, value))))
    if name == "array.concat" and all(arg.op == "arr" for arg in args):
        return array(item for arg in args for item in arg.terms)
    if name == "object.union" and all(arg.op == "obj" for arg in args):
        pairs = [pair for arg in args for pair in pairs_of(arg)]
        if all(is_constant(key) for key, _ in pairs) and len(dict(pairs)) == len(pairs):
            return object_of(dict(pairs))
    if name == "template" and all(arg.op == "str" for arg in args):
        return string("".join(str(arg.args[0]) for arg in args))
    return Term("call", name, *args)


def _looked_up(value: Term, key: Term, default: Term) -> Term:
    """Return `object.get`. An array as key is a path."""
    for at, part in enumerate((value, key)):
        if part.op == "ite":
            condition, *parts = part.terms
            given = ((new, key) if at == 0 else (value, new) for new in parts)
            return ite(condition, *(called("object.get", *pair, default) for pair in given))
    found = value
    for step in key.terms if key.op == "arr" else (key,):
        found = get(found, step)
    return ite(is_kind("obj", value), _or_else(found, default), UNDEF)


def _or_else(value: Term, default: Term) -> Term:
    if value.op == "ite":
        condition, one, other = value.terms
        return ite(condition, _or_else(one, default), _or_else(other, default))
    return ite(defined(value), value, default)


_REBUILT: Final[Mapping[str, Callable[..., Term]]] = {
    "and": conj,
    "or": disj,
    "not": neg,
    "defined": defined,
    "holds": holds,
    "is": is_kind,
    "eq": eq,
    "less": less,
    "member": member,
    "boolean": boolean,
    "ite": ite,
    "set": lambda *items: set_of(items),
    "get": get,
    "size": size,
    "collect": collection,
    "seq": seq,
    "call": called,
}
