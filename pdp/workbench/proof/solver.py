"""Ask Z3 about terms.

Values are one datatype with `undef` as a constructor, so absence, null and false are exact. Strings are numbers, and
numbers are reals. Collections are numbers too; functions name their elements.

    get_ V K        the element at a key            mem_ X V    whether X is an element of V
    size_ V         the number of elements          order_ A B  the order within strings and within collections
    fn_NAME V...    a builtin function              lit_KIND    a collection that is written in a policy
    comp_KEY V...   a comprehension, named by its structure, of the variables outside of it
    LABEL_KEY       a formula that a rule defines

With `bound`, no formula has a quantifier: a collection has at most so many elements, `element_N V` at `key_N V`, if
`has_N V`. Such formulas have models that are small requests, and prove nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any, Final

import z3

from pdp.workbench.proof import terms as t
from pdp.workbench.proof import values as v
from pdp.workbench.proof.terms import Term

_QUESTIONS: Final = 10
_SETS: Final = 5  # the most sets that are compared by their elements
_PLACES: Final = 10**9  # above the numbers of all other variables
_ELEMENTS: Final = 2 * 10**9
_FIELDS: Final = {"bool": "B", "num": "R", "str": "I", "arr": "I", "obj": "I", "set": "I"}


class Formulas:
    """Terms as formulas of one context of Z3. Use an instance in one thread only.

    Attributes:
        strings: the numbers of texts.
        work: the steps that solvers have taken in this context.
    """

    def __init__(self, bound: int = 0) -> None:
        self.bound = bound
        self.context = z3.Context()
        sorts = {"B": z3.BoolSort(self.context), "R": z3.RealSort(self.context), "I": z3.IntSort(self.context)}
        datatype = z3.Datatype("Value", self.context)
        for kind in ("undef", *t.KINDS):
            datatype.declare(kind, *([(f"of_{kind}", sorts[_FIELDS[kind]])] if kind in _FIELDS else []))
        self.sort: Any = datatype.create()
        self._sorts = {**sorts, "V": self.sort}
        self.strings: dict[str, int] = {}
        self.work = 0
        self._done: dict[Term, Any] = {}
        # The bounded collections in each term, and what is true of each collection.
        self._uses: dict[Term, frozenset[Term]] = {}
        self._used: set[Term] = set()
        self._slots: dict[Term, list[Any]] = {}

    def function(self, name: str, kinds: str, *args: Any) -> Any:
        """Return an applied function, or a constant. `kinds` are the sorts of arguments and result, such as `VVB`."""
        sorts = [self._sorts[kind] for kind in kinds]
        return z3.Function(name, *sorts)(*args) if args else z3.Const(name, sorts[0])

    def of(self, term: Term) -> Any:
        """Return a term as a value or formula of Z3."""
        if term not in self._done:
            around, self._used = self._used, set()
            self._done[term] = getattr(self, f"_of_{term.op}", self._leaf)(term)
            self._uses[term] = frozenset(self._used)
            self._used = around
        self._used |= self._uses[term]
        return self._done[term]

    def facts(self, terms: Iterable[Term]) -> list[Any]:
        """Return what holds besides the terms: the definitions that they reach, and the facts about collections."""
        definitions, sets = mentioned(terms)
        equal = [_extensional(at, *pair) for at, pair in enumerate(combinations(sets[:_SETS], 2))]
        definitions, _ = mentioned([*terms, *equal])
        facts = [self._is("obj", self.of(t.DATA)), *map(self.of, equal)]
        facts += (self.of(term) == self.of(term.at(1)) for term in definitions)
        used = {slot for term in (*terms, *equal, *(term.at(1) for term in definitions)) for slot in self._uses[term]}
        facts += (fact for slot, known in self._slots.items() if slot in used for fact in known)
        if not self.bound:
            one, other = z3.Consts("one other", self.sort)
            inside = self.function("mem_", "VVB", one, other)
            some = z3.Implies(inside, self.function("size_", "VI", other) > 0)
            facts.append(z3.ForAll([one, other], some, patterns=[inside]))
        return facts

    # Formulas

    def _of_yes(self, _: Term) -> Any:
        return z3.BoolVal(True, self.context)

    def _of_no(self, _: Term) -> Any:
        return z3.BoolVal(False, self.context)

    def _of_and(self, term: Term) -> Any:
        return z3.And(*map(self.of, term.terms))

    def _of_or(self, term: Term) -> Any:
        return z3.Or(*map(self.of, term.terms))

    def _of_not(self, term: Term) -> Any:
        return z3.Not(self.of(term.at(0)))

    def _of_def(self, term: Term) -> Any:
        return self.function(f"{term.args[0]}_{term.key.hex()}", "B")

    def _of_defined(self, term: Term) -> Any:
        return z3.Not(self._is("undef", self.of(term.at(0))))

    def _of_holds(self, term: Term) -> Any:
        value = self.of(term.at(0))
        return z3.And(z3.Not(self._is("undef", value)), value != self.sort.bool(self._of_no(term)))

    def _is(self, kind: str, value: Any) -> Any:
        return getattr(self.sort, f"is_{kind}")(value)

    def _of_is(self, term: Term) -> Any:
        return self._is(str(term.args[0]), self.of(term.at(1)))

    def _of_eq(self, term: Term) -> Any:
        one, other = map(self.of, term.terms)
        return z3.And(z3.Not(self._is("undef", one)), one == other)

    def _of_less(self, term: Term) -> Any:
        one, other = map(self.of, term.terms)
        rank_one, rank_other = self._rank(one), self._rank(other)
        numbers = self.sort.of_num(one) < self.sort.of_num(other)
        booleans = z3.And(z3.Not(self.sort.of_bool(one)), self.sort.of_bool(other))
        others = z3.And(one != other, self.function("order_", "VVB", one, other))
        same = z3.If(self._is("num", one), numbers, z3.If(self._is("bool", one), booleans, others))
        both = z3.Not(z3.Or(self._is("undef", one), self._is("undef", other)))
        return z3.And(both, z3.Or(rank_one < rank_other, z3.And(rank_one == rank_other, same)))

    def _rank(self, value: Any) -> Any:
        rank = z3.IntVal(0, self.context)
        for at, kind in enumerate(t.KINDS):
            rank = z3.If(self._is(kind, value), z3.IntVal(at, self.context), rank)
        return rank

    def _of_member(self, term: Term) -> Any:
        item, value = map(self.of, term.terms)
        if self.bound:
            return z3.Or(*(z3.And(has, element == item) for has, _, element in self._slots_of(term.at(1))))
        there = self.function("mem_", "VVB", item, value)
        return z3.And(self._is_collection(term.at(1)), z3.Not(self._is("undef", item)), there)

    def _is_collection(self, value: Term) -> Any:
        return self.of(t.is_collection(value))

    def _of_exists(self, term: Term) -> Any:
        value, body = term.terms[1:]
        if self.bound:
            return z3.Or(*self._each_slot(term))
        if body == t.YES:
            return z3.And(self._is_collection(value), self.function("size_", "VI", self.of(value)) > 0)
        element = self.of(Term("bound", term.number, t.from_json(value)))
        there = t.defined(v.get(value, Term("bound", term.number, False)))
        if term.op == "exists":
            there = v.member(Term("bound", term.number, t.from_json(value)), value)
        return z3.Exists([element], z3.And(self.of(there), self.of(body)))

    _of_existskey = _of_exists

    def _each_slot(self, term: Term) -> Iterator[Any]:
        value, body = term.terms[1:]
        for at, (has, _, _) in enumerate(self._slots_of(value)):
            slot = Term("slot" if term.op == "exists" else "slotkey", at, value)
            yield z3.And(has, self.of(v.replaced(body, {-term.number: slot})))

    def _slots_of(self, term: Term) -> list[tuple[Any, Any, Any]]:
        """Return what a bounded collection contains, as conditions, keys and elements, and note what they imply."""
        value, found = self.of(term), []
        for at in range(self.bound):
            has = z3.And(self._is_collection(term), self.function(f"has_{at}", "VB", value))
            found.append((has, self.of(Term("slotkey", at, term)), self.of(Term("slot", at, term))))
        self._used.add(term)
        if term in self._slots:
            return found
        facts = self._slots[term] = []
        undef = self.sort.undef
        for at, (has, key, element) in enumerate(found):
            index = self.sort.num(z3.RealVal(at, self.context))
            facts += (
                element != undef,
                z3.Implies(
                    self._is("arr", value), self.function("get_", "VVV", value, index) == z3.If(has, element, undef)
                ),
                z3.Implies(
                    z3.And(self._is("obj", value), has),
                    z3.And(self._is("str", key), self.function("get_", "VVV", value, key) == element),
                ),
            )
        for (has, key, element), (also, later, last) in pairwise(found):
            facts += (z3.Implies(also, has), z3.Implies(self._is("obj", value), key != later))
            facts.append(z3.Implies(z3.And(also, self._is("set", value)), element != last))
        sizes = [z3.If(has, z3.IntVal(1, self.context), z3.IntVal(0, self.context)) for has, _, _ in found]
        facts.append(z3.Implies(self._is_collection(term), self.function("size_", "VI", value) == z3.Sum(sizes)))
        return found

    # Values

    def _leaf(self, term: Term) -> Any:
        match term.op, term.args:
            case "undef" | "null", _:
                return getattr(self.sort, term.op)
            case "num", [Fraction() as value]:
                return self.sort.num(z3.RealVal(str(value), self.context))
            case "str", [str(value)]:
                return self.sort.str(z3.IntVal(self.strings.setdefault(value, len(self.strings)), self.context))
            case "arr" | "set" | "obj", _:
                name = f"lit_{term.op}{len(term.args)}"
                handle = self.function(name, "V" * len(term.args) + "I", *map(self.of, term.terms))
                return getattr(self.sort, term.op)(handle)
            case "slot", [int(at), Term() as value]:
                return self.function(f"element_{at}", "VV", self.of(value))
            case "slotkey", [int(at), Term() as value]:
                index = self.sort.num(z3.RealVal(at, self.context))
                key = self.function(f"key_{at}", "VV", self.of(value))
                return z3.If(self._is("arr", self.of(value)), index, key)
            case "var" | "bound", [int(number), _]:
                return self.function(f"{term.op}_{number}", "V")
        return self.function(term.op, "V")  # input and data

    def _of_boolean(self, term: Term) -> Any:
        return self.sort.bool(self.of(term.at(0)))

    def _of_get(self, term: Term) -> Any:
        value, key = map(self.of, term.terms)
        able = z3.And(self._is_collection(term.at(0)), z3.Not(self._is("undef", key)))
        if t.from_json(term.at(0)):
            objects = z3.And(self._is("obj", value), self._is("str", key))
            able = z3.Or(objects, z3.And(self._is("arr", value), self._is("num", key)))
        return z3.If(able, self.function("get_", "VVV", value, key), self.sort.undef)

    def _of_size(self, term: Term) -> Any:
        inner = term.at(0)
        value, zero, one = self.of(inner), z3.IntVal(0, self.context), z3.IntVal(1, self.context)
        if self.bound and inner.op != "collect":
            self._slots_of(inner)
        found = self.function("size_", "VI", value)
        able = z3.Or(self._is_collection(inner), self._is("str", value))
        number = z3.If(found >= 0, found, zero)
        if inner.op == "collect":
            number = z3.If(self.of(v.nonempty(inner)), z3.If(found > 0, found, one), zero)
        return z3.If(able, self.sort.num(z3.ToReal(number)), self.sort.undef)

    def _of_ite(self, term: Term) -> Any:
        return z3.If(*map(self.of, term.terms))

    def _of_call(self, term: Term) -> Any:
        name, *args = term.args
        found = [self.of(arg) for arg in args if isinstance(arg, Term)]
        if name == "template":
            return self.sort.str(self.function(f"fn_{name}{len(found)}", "V" * len(found) + "I", *found))
        if t.is_sorted(term):
            return self.sort.arr(self.function("fn_sorted", "VI", *found))
        value = self.function(f"fn_{name}{len(found)}", "V" * (len(found) + 1), *found)
        defined = z3.And(*(z3.Not(self._is("undef", arg)) for arg in found), self._of_yes(term))
        return z3.If(defined, value, self.sort.undef)

    def _of_collect(self, term: Term) -> Any:
        outer = list(dict.fromkeys(v.outer_variables(term)))
        places = {
            at: Term("var", _PLACES + place, inner.args[1]) for place, inner in enumerate(outer) for at in inner.free
        }
        name = f"comp_{v.replaced(term, places).key.hex()}"
        args = [self.of(inner) for inner in outer]
        return getattr(self.sort, str(term.args[0]))(self.function(name, "V" * len(args) + "I", *args))


def mentioned(terms: Iterable[Term]) -> tuple[list[Term], list[Term]]:
    """Return the definitions that terms mention, also in definitions, and the sets that are described."""
    definitions, sets = [], []
    for term in t.subterms(terms):
        if term.op == "def":
            definitions.append(term)
        if term.op == "collect" and term.args[0] == "set" and not term.free:
            sets.append(term)
    return definitions, sets


def _extensional(number: int, one: Term, other: Term) -> Term:
    """Return that two sets are equal, or an element is in only one of them."""
    element = Term("var", _ELEMENTS + number, False)
    return t.disj(v.eq(one, other), t.neg(t.same(v.member(element, one), v.member(element, other))))


class Prover:
    """Answers questions about terms. `work` limits one question, and ten times as much limits all of them.

    Work is counted in steps of Z3, so that answers are the same on every machine. `seconds` is for a slow machine.
    """

    def __init__(self, work: int, seconds: float) -> None:
        self._work = work
        self._seconds = seconds
        self._left = work * _QUESTIONS
        self._formulas, self._bounded = Formulas(), Formulas(bound=2)
        self._known: dict[tuple[Term, ...], bool] = {}

    def implies(self, assumption: Term, old: Term, new: Term) -> bool:
        """Return whether it is proved that `new` holds where `old` and the assumption hold."""
        question = assumption, old, new
        if question not in self._known:
            # Most questions need no assumption, and a counter-example is found sooner than a proof is given up.
            denied = [assumption, old, t.neg(new)]
            self._known[question] = self.proves([old], new) or (
                self._check(self._bounded, denied, self._work // 2) == "unsat"
                and self.satisfiable([assumption, old])
                and self._check(self._formulas, denied, self._work, prepared=True) == "unsat"
            )
        return self._known[question]

    def proves(self, assumptions: Sequence[Term], claim: Term) -> bool:
        """Return whether a formula is proved with little work where the assumptions hold."""
        return self._check(self._formulas, [*assumptions, t.neg(claim)], self._work // 5) == "unsat"

    def satisfiable(self, formulas: Sequence[Term]) -> bool:
        """Return whether formulas hold together for some small collections. False may mean a time-out."""
        return self._check(self._bounded, formulas, self._work) == "sat"

    def excluded(self, formulas: Sequence[Term]) -> bool:
        """Return whether it is proved that formulas hold together for no small collections. False is no answer."""
        return self._check(self._bounded, formulas, self._work) == "unsat"

    def _check(self, formulas: Formulas, terms: Sequence[Term], work: int, *, prepared: bool = False) -> str:
        if t.conj(*terms) == t.NO:
            return "unsat"
        if self._left <= 0:
            return "unknown"
        # Tactics prepare formulas with quantifiers well, and take longer than the search for one without.
        solver = (z3.Solver if prepared else z3.SimpleSolver)(ctx=formulas.context)
        solver.set("rlimit", work)
        solver.set("timeout", int(self._seconds * 1000))
        solver.add(*map(formulas.of, terms))
        solver.add(*formulas.facts(terms))
        found = str(solver.check())
        done = int(solver.statistics().get_key_value("rlimit count"))
        self._left, formulas.work = self._left - done + formulas.work, done
        return found
