"""Find a small request, and data, for which formulas hold: a model of Z3 with collections of at most two elements.

The model stays near a given request: each value of the request is an assumption, and the solver names those that it
cannot keep. What a builtin function returns is free, unless the engine was asked for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

import orjson
import z3

from pdp.json import canonical
from pdp.workbench.neighbours.values import GONE, JsonPath
from pdp.workbench.proof import terms as t
from pdp.workbench.proof import values as v
from pdp.workbench.proof.solver import Formulas
from pdp.workbench.proof.terms import Term

BOUND: Final = 2
_MOST_CHECKS: Final = 60
_DEEPEST: Final = 12
_ACTION: Final = ("input", "action", "properties")
_HOLDER, _NAME, _LEAF = 0, 2, 3  # the solver gives up the highest first; values of the request have one more
# The names of the tool are kept as long as possible, because no other entry of the manifest is complete.
_NAMES: Final = (("input", "action", "name"), *((*_ACTION, name) for name in ("tool", "manifest_digest")))
_FIRST_HANDLE: Final = 1000  # the numbers of given collections; the solver uses small ones for others

_Place = tuple[str, int]
"""The kind and the number of a collection."""
Call = tuple[str, bytes]
"""The name of a builtin function, and a list of arguments in canonical JSON."""


class SmallModel(NamedTuple):
    """A request and data for which formulas hold, if the builtin functions return for `calls` what the solver chose."""

    given: Any
    data: Any
    calls: frozenset[Call]


class SmallFormulas(Formulas):
    """Terms as formulas of Z3 about small collections. Comprehensions are exact.

    Attributes:
        coarse: the names of functions whose meaning is unknown.
        limited: whether a collection that the policy computes is limited in size as well.
    """

    def __init__(self) -> None:
        super().__init__(bound=BOUND)
        self.coarse: dict[str, None] = {}
        self.limited = False
        self.calls: dict[Term, tuple[Any, list[Any]]] = {}

    def _of_size(self, term: Term) -> Any:
        inner = term.at(0)
        if inner.op != "collect":
            return super()._of_size(term)
        items = list(self._items(inner.at(1)))
        if inner.args[0] != "arr":
            items = [
                (z3.And(when, *(z3.Or(z3.Not(also), key != other) for also, other, _ in items[:at])), key, value)
                for at, (when, key, value) in enumerate(items)
            ]
        zero, one = z3.RealVal(0, self.context), z3.RealVal(1, self.context)
        return self.sort.num(z3.Sum([zero, *(z3.If(when, one, zero) for when, _, _ in items)]))

    def _items(self, body: Term) -> Iterator[tuple[Any, Any, Any]]:
        """Yield what a collection may contain: a condition, the key (the value, if there is none) and the value."""
        if body.op == "item":
            key, value = body.terms
            yield self._of_yes(body), self.of(value if key == t.NULL else key), self.of(value)
        elif body.op == "or":
            for part in body.terms:
                yield from self._items(part)
        elif body.op in ("and", "seq"):
            conditions = [self.of(part) for part in body.terms if not part.items]
            for part in body.terms:
                for when, key, value in self._items(part) if part.items else ():
                    yield z3.And(*conditions, when), key, value
        elif body.items:
            holder, inner = body.terms[1:]
            for at, (has, _, _) in enumerate(self._slots_of(holder)):
                slot = Term("slotkey" if body.op.endswith("key") else "slot", at, holder)
                for when, key, value in self._items(v.replaced(inner, {-body.number: slot})):
                    yield z3.And(has, when), key, value

    def _of_eq(self, term: Term) -> Any:
        one, other = term.terms
        if {one.op, other.op} <= {"collect", "set"} and t.kind_of(one) == t.kind_of(other) == "set":
            return z3.And(self._includes(one, other), self._includes(other, one))
        return super()._of_eq(term)

    def _includes(self, one: Term, other: Term) -> Any:
        others = self._elements(other)
        found = ((when, [z3.And(also, item == value) for also, item in others]) for when, value in self._elements(one))
        return z3.And(self._of_yes(one), *(z3.Implies(when, z3.Or(self._of_no(one), *same)) for when, same in found))

    def _elements(self, term: Term) -> list[tuple[Any, Any]]:
        if term.op == "set":
            return [(self._of_yes(term), self.of(item)) for item in term.terms]
        return [(when, value) for when, _, value in self._items(term.at(1))]

    def _slots_of(self, term: Term) -> list[tuple[Any, Any, Any]]:
        self.limited |= not t.from_json(term)
        return super()._slots_of(term)

    def _of_collect(self, term: Term) -> Any:
        self.coarse["a comprehension as a value"] = None
        return super()._of_collect(term)

    def _of_call(self, term: Term) -> Any:
        self.coarse[f"`{term.args[0]}`"] = None
        value = super()._of_call(term)
        self.calls[term] = value, [self.of(arg) for arg in term.args if isinstance(arg, Term)]
        return value


class _Fact(NamedTuple):
    """A value of the given request or data: what a collection holds at a key, or all elements (`step` is None)."""

    place: _Place
    step: str | None
    order: tuple[int, int]


class SmallModels:
    """Searches small requests and data for which all `terms` hold. Each question takes at most `seconds`."""

    def __init__(self, terms: Sequence[Term], seconds: float) -> None:
        self.formulas = SmallFormulas()
        self._solver = z3.Solver(ctx=self.formulas.context)
        self._solver.set("timeout", int(seconds * 1000))
        self._solver.set("core.minimize", True)
        self._solver.set("random_seed", 0)
        self._solver.add(*map(self.formulas.of, terms))
        self.formulas.facts(terms)  # the definitions bring more collections
        self._solver.add(*self.formulas.facts(terms))
        self._asked = _looked_up(self._solver.assertions())
        self._solver.add(*(z3.Not(self.formulas.sort.is_set(get)) for get in self._asked["get_"]))
        self._handles: dict[bytes, int] = {}
        self._held: dict[_Place, Any] = {}
        self._paths: dict[_Place, JsonPath] = {}
        self._facts: dict[Any, _Fact] = {}
        for text, number in list(self.formulas.strings.items()):
            length = self.formulas.function("size_", "VI", self.formulas.sort.str(number))
            self._solver.add(length == len(text))

    def impossible(self) -> bool:
        """Return whether there is certainly no request with small collections."""
        return bool(self._solver.check() == z3.unsat)

    def learn(self, answers: Mapping[Call, Any]) -> None:
        """Add what functions return for arguments, as the engine answered; `GONE` is undefined."""
        for term, (value, args) in self.formulas.calls.items():
            for (name, given), answer in answers.items():
                values = orjson.loads(given)
                if name == term.args[0] and len(values) == len(args):
                    same = (arg == self._constant(one) for arg, one in zip(args, values, strict=True))
                    self._solver.add(z3.Implies(z3.And(*same), value == self._constant(answer)))

    def near(self, given: Any, data: Any) -> SmallModel | None:
        """Return a request and data for which the terms hold, and which differ little from these, or None."""
        self._solver.push()
        self._facts.clear()
        self._paths.clear()
        self._held.clear()
        for name, document in (("input", given), ("data", data)):
            root = self._constant(document, (name,))
            self._solver.add(self.formulas.function(name, "V") == root)
        for place in list(self._held):
            self._state(place)
        try:
            return self._nearest()
        finally:
            self._solver.pop()

    def _nearest(self) -> SmallModel | None:
        dropped: set[Any] = set()
        for _ in range(_MOST_CHECKS):
            found = self._solver.check(*(fact for fact in self._facts if fact not in dropped))
            if found == z3.sat and not self._state_absent(self._solver.model()):
                kept = {(fact.place, fact.step) for at, fact in self._facts.items() if at not in dropped}
                return self._documents(self._solver.model(), kept)
            if found == z3.unsat:
                core = [fact for fact in self._solver.unsat_core() if fact in self._facts]
                if not core:
                    return None
                dropped.add(max(core, key=lambda fact: self._facts[fact].order))
            elif found == z3.unknown:
                return None
        return None

    # Documents as values of Z3

    def _constant(self, value: Any, path: JsonPath = ()) -> Any:
        sort, context = self.formulas.sort, self.formulas.context
        if value is GONE or value is None:
            return sort.undef if value is GONE else sort.null
        if isinstance(value, bool):
            return sort.bool(z3.BoolVal(value, context))
        if isinstance(value, int | float):
            return sort.num(z3.RealVal(str(Fraction(repr(value))), context))
        if isinstance(value, str):
            return self.formulas.of(t.string(value))
        kind = "arr" if isinstance(value, list) else "obj"
        handle = self._handles.setdefault(canonical(value), _FIRST_HANDLE + len(self._handles))
        place = kind, handle
        self._held[place] = value
        if path:
            self._paths.setdefault(place, path)
        for key, item in _pairs(value):
            self._constant(item, (*path, key) if path else ())
        return self._of_place(place)

    def _of_place(self, place: _Place) -> Any:
        return getattr(self.formulas.sort, place[0])(z3.IntVal(place[1], self.formulas.context))

    def _state(self, place: _Place) -> None:
        """State what a collection holds, as assumptions that can be dropped."""
        value, held, function = self._of_place(place), self._held[place], self.formulas.function
        if isinstance(held, dict):
            for key, item in held.items():
                got, constant = self._get(value, t.string(key)), self._constant(item)
                is_leaf = not isinstance(item, dict | list)
                self._assume(place, key, _LEAF if is_leaf else _HOLDER, got == constant)
                if is_leaf:
                    # A value of the same type is more likely to have the shape that requests need.
                    kinds = {"undef", "null", "str" if item is None else constant.decl().name()}
                    tests = (getattr(self.formulas.sort, f"is_{kind}")(got) for kind in kinds)
                    self._assume(place, f"{key}:", _HOLDER, z3.Or(*tests))
        pairs = [(self._constant(key), self._constant(item)) for key, item in _pairs(held)]
        entries = []
        for at in range(BOUND):
            has, element = function(f"has_{at}", "VB", value), function(f"element_{at}", "VV", value)
            key = function(f"key_{at}", "VV", value)
            fitting = pairs if len(pairs) > BOUND else pairs[at : at + 1]
            same = [z3.And(element == item, isinstance(held, list) or key == name) for name, item in fitting]
            entries.append(z3.And(has, z3.Or(*same)) if fitting else z3.Not(has))
            if isinstance(held, list) and len(pairs) <= BOUND:
                item = pairs[at][1] if fitting else self.formulas.sort.undef
                entries.append(self._get(value, t.number(at)) == item)
        self._assume(place, None, _LEAF, z3.And(*entries))

    def _get(self, value: Any, key: Term) -> Any:
        return self.formulas.function("get_", "VVV", value, self.formulas.of(key))

    def _assume(self, place: _Place, step: str | None, rank: int, formula: Any) -> None:
        fact = z3.Bool(f"fact_{len(self._facts)}", self.formulas.context)
        path = self._paths.get(place, ())
        if (*path, step) in _NAMES:
            rank = _NAME
        elif path[:1] == ("input",):
            rank += 1
        self._facts[fact] = _Fact(place, step, (rank, len(path)))
        self._solver.add(z3.Implies(fact, formula))

    def _state_absent(self, model: Any) -> bool:
        """State that a key is absent which a model adds to a given object. Return whether there is such a key."""
        known = {(fact.place, fact.step) for fact in self._facts.values()}
        added = {(place, key) for place, key, _ in self._found(model) if place in self._held and isinstance(key, str)}
        for place, key in added - known:
            self._assume(place, key, _LEAF, self._get(self._of_place(place), t.string(key)) == self.formulas.sort.undef)
        return not added <= known

    def _found(self, model: Any) -> Iterator[tuple[_Place, Any, Any]]:
        """Yield the collections of a model with their keys and elements, as far as the terms look at them."""
        for get in self._asked["get_"]:
            holder, key, item = (model.eval(part, model_completion=True) for part in (*get.children(), get))
            name, there = holder.decl().name(), item.decl().name() != "undef"
            if there and (name, key.decl().name()) in (("obj", "str"), ("arr", "num")):
                yield (name, holder.arg(0).as_long()), self._scalar(key), item

    # Documents of a model

    def _documents(self, model: Any, kept: set[tuple[_Place, str | None]]) -> SmallModel:
        looked_up: dict[_Place, dict[Any, Any]] = {}
        for place, key, item in self._found(model):
            looked_up.setdefault(place, {})[key] = item
        slots: dict[_Place, list[tuple[Any, Any]]] = {}
        for holder in self._asked["slots"]:
            value = model.eval(holder, model_completion=True)
            if value.decl().name() in ("arr", "obj"):
                place = value.decl().name(), value.arg(0).as_long()
                slots[place] = [
                    (model.eval(self.formulas.function(f"key_{at}", "VV", value), model_completion=True), element)
                    for at in range(BOUND)
                    if z3.is_true(model.eval(self.formulas.function(f"has_{at}", "VB", value), model_completion=True))
                    for element in [
                        model.eval(self.formulas.function(f"element_{at}", "VV", value), model_completion=True)
                    ]
                ]

        def built(value: Any, depth: int) -> Any:
            kind = value.decl().name()
            if kind not in ("arr", "obj", "set") or depth > _DEEPEST:
                return self._scalar(value)
            place = "arr" if kind == "set" else kind, value.arg(0).as_long()
            held, found, entries = self._held.get(place), looked_up.get(place, {}), slots.get(place, [])
            if place[0] == "arr":
                items = [item for _, item in entries] or [found[at] for at in sorted(found)]
                if held is not None and (place, None) in kept:
                    items = [self._constant(item) for item in held]
                return [built(item, depth + 1) for item in items]
            values = {self._scalar(key): item for key, item in entries if (place, None) not in kept} | found
            values |= {key: self._constant(item) for key, item in (held or {}).items() if (place, key) in kept}
            return {str(key): built(item, depth + 1) for key, item in values.items()}

        def read(value: Any) -> Any:
            return built(model.eval(value, model_completion=True), 0)

        given, data = (read(self.formulas.function(name, "V")) for name in ("input", "data"))
        calls = {(str(term.args[0]), canonical([*map(read, args)])) for term, (_, args) in self.formulas.calls.items()}
        return SmallModel(given, data, frozenset(calls))

    def _scalar(self, value: Any) -> Any:
        match value.decl().name():
            case "bool":
                return z3.is_true(value.arg(0))
            case "num":
                number = value.arg(0).as_fraction()
                return int(number) if number.denominator == 1 else float(number)
            case "str":
                texts = {number: text for text, number in self.formulas.strings.items()}
                return texts.get(value.arg(0).as_long(), f"made-up-{value.arg(0).as_long()}")
        return None


def _looked_up(formulas: Any) -> dict[str, list[Any]]:
    """Return the terms `get_` in formulas, and the collections whose elements are named."""
    found: dict[str, dict[Any, None]] = {"get_": {}, "slots": {}}
    waiting, seen = list(formulas), set()
    while waiting:
        term = waiting.pop()
        if term.get_id() not in seen:
            seen.add(term.get_id())
            waiting += term.children()
            if term.decl().name() == "get_":
                found["get_"][term] = None
            elif term.decl().name() == "has_0":
                found["slots"][term.arg(0)] = None
    return {name: list(terms) for name, terms in found.items()}


def _pairs(held: Any) -> list[tuple[Any, Any]]:
    return list(held.items() if isinstance(held, dict) else enumerate(held))
