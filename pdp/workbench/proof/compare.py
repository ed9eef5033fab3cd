"""Ask for each head of each concern whether two versions of the policies find the same in the same calls.

All answers are about requests that `shape.valid` of one of the versions admits, and any data. A builtin function that
fails is undefined. The rules of the decision itself, and `shape.valid`, are not compared.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pdp.installed import extra
from pdp.opa.modules import Module
from pdp.workbench.engines import ENGINE_TIMEOUT, OPA_SHARE
from pdp.workbench.proof import terms as t
from pdp.workbench.proof import values as v
from pdp.workbench.proof.answers import HeadAnswer, Word
from pdp.workbench.proof.rules import OutsideError, Rules, closure, closure_form, heads, policy_rules, uses
from pdp.workbench.proof.terms import NO, YES, Term
from pdp.workbench.proof.translate import TranslatedPolicy

if TYPE_CHECKING:
    from pdp.workbench.proof.solver import Prover
    from pdp.workbench.proof.witness import Claim

PolicyTexts = Mapping[str, Module]
"""The modules of a policy by path."""

WORK: Final = 10_000_000
SECONDS: Final = 20.0

_SHAPE: Final = "authz.lib.shape.valid"
_DOCUMENTS: Final = ("authz.decision", "authz.plan")
"""The documents that enforcement points query."""

_REASONS: Final = "authz.decision.reasons"
_DECIDING: Final = {
    _SHAPE: 0,
    "authz.lib.approval.valid": 0,
    "authz.lib.grant.clears": 1,
    "authz.lib.reason.well_formed": 2,
}
"""Rules that the decision itself asks, and their arguments. Each of them admits calls where it holds."""
_COMPUTED: Final = "*"  # codes that are not written in the policy
_ANY: Final = Term("var", 0, False)  # any item; the number of no other variable
_OTHER: Final = Term("var", 10**8, False)
_SHOWN_ONLY: Final = ("message", "remedy")  # fields of a reason that people read


def compare(
    old: PolicyTexts,
    new: PolicyTexts,
    *,
    opa: Path,
    work: int = WORK,
    seconds: float = SECONDS,
    known: Sequence[bytes] | None = (),
    data: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[HeadAnswer, ...]:
    """Return the answers for two versions, with a call for each head that is not proved; see `PolicyPair.searched`.

    A question takes at most `work` steps of the solver, and `seconds` on a slow machine. With None as `known`, no call
    is searched. Raises `MissingExtraError` if the solver is needed and not installed.
    """
    pair = PolicyPair(opa, old, new, work, seconds)
    answers = pair.answers()
    return answers if known is None else pair.searched(answers, known, data)


@dataclass
class PolicyPair:
    """Two versions of the policies, with their translations."""

    opa: Path
    old: PolicyTexts
    new: PolicyTexts
    work: int = WORK
    seconds: float = SECONDS
    _definitions: dict[str, list[Term]] = field(default_factory=dict)

    def answers(self) -> tuple[HeadAnswer, ...]:
        """Return an answer for each rule of `reaches` that differs between the versions, first the decision's own."""
        return (*self._decision_answers(), *(self._answer(name) for name in sorted(self._changed())))

    def searched(
        self,
        answers: tuple[HeadAnswer, ...],
        known: Sequence[bytes],
        data: Mapping[str, Any],
        engine_timeout: float = OPA_SHARE * ENGINE_TIMEOUT,
    ) -> tuple[HeadAnswer, ...]:
        """Return the answers with a call for each that is not proved, if one is found.

        It is one of `known`, the requests of scenarios, which are decided on `data`, or a call that differs little from
        one of them.
        """
        if all(answer.word != "not proved" for answer in answers):
            return answers
        with extra("proof"):
            from pdp.workbench.proof.witness import EnginePair, WitnessSearch  # noqa: PLC0415 - an optional extra
        # The last search may begin just before the end, so all take at most `seconds`.
        end = time.monotonic() + self.seconds / 2
        with EnginePair(self.opa, self.old, self.new, timeout=engine_timeout) as engines:
            search = WitnessSearch(engines, known, data, self.seconds / 4)
            return tuple(
                search.answer(answer, self._claim(answer))
                if answer.word == "not proved" and time.monotonic() < end
                else answer
                for answer in answers
            )

    @cached_property
    def reaches(self) -> dict[str, set[str]]:
        """By the name of each rule that has an answer if it differs, the rules of both versions that it uses."""
        old, new = self._reaches
        return {name: old.get(name, set()) | new.get(name, set()) for name in {*old, *new}}

    @cached_property
    def _reaches(self) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
        return _reaches(self.old_rules, self._old_uses), _reaches(self.new_rules, self._new_uses)

    @cached_property
    def old_rules(self) -> Rules:
        """The rules of the old version by name."""
        return policy_rules(self.opa, self.old, self.new)

    @cached_property
    def new_rules(self) -> Rules:
        """The rules of the new version by name."""
        return policy_rules(self.opa, self.new, self.old)

    def _changed(self) -> set[str]:
        """Return the heads whose rules, or rules that these use, differ in their form."""
        return {name for name in heads(self.old_rules) | heads(self.new_rules) if self._differs(name)}

    def _differs(self, name: str) -> bool:
        """Return whether a rule, or a rule that it uses, differs in its form."""
        old, new = (reach.get(name, ()) for reach in self._reaches)
        return closure_form(self.old_rules, old) != closure_form(self.new_rules, new)

    @cached_property
    def _old_uses(self) -> dict[str, set[str]]:
        return uses(self.old_rules)

    @cached_property
    def _new_uses(self) -> dict[str, set[str]]:
        return uses(self.new_rules)

    @cached_property
    def _old(self) -> TranslatedPolicy:
        def settle(label: str, formula: Term) -> Term:
            defined = v.define(label, formula)
            self._definitions.setdefault(label, []).append(defined)
            return defined

        return TranslatedPolicy(self.old_rules, settle)

    @cached_property
    def _new(self) -> TranslatedPolicy:
        def settle(label: str, formula: Term) -> Term:
            """Return the old definition of a rule if it is proved to be equal."""
            defined = v.define(label, formula)
            for known in self._definitions.get(label, ()):
                if known == defined or (defined.op == "def" and self._prover.proves([], t.same(known, defined))):
                    return known
            return defined

        return TranslatedPolicy(self.new_rules, settle)

    @cached_property
    def _prover(self) -> "Prover":
        with extra("proof"):
            from pdp.workbench.proof.solver import Prover  # noqa: PLC0415 - an optional extra
        return Prover(self.work, self.seconds)

    @cached_property
    def _assumption(self) -> Term:
        """The formula for requests that one of the versions does not reject for their shape."""
        valid = [t.holds(policy.rule(_SHAPE)) if _SHAPE in policy.rules else YES for policy in (self._old, self._new)]
        return t.disj(*valid)

    def _decision_answers(self) -> Iterator[HeadAnswer]:
        """Yield answers for the documents of the decision, and for rules that it asks besides the concerns."""
        for name in filter(self._differs, _DOCUMENTS):
            try:
                is_equal = self._items(self._old, name) == self._items(self._new, name)
            except (OutsideError, RecursionError):
                is_equal = False
            word: Word = "equal" if is_equal else "not proved"
            term = "" if is_equal else "rules of the decision changed"
            package, _, rule = name.rpartition(".")
            yield HeadAnswer(package, rule, word, items=is_equal, codes=(), term=term)
        yield from map(self._decision_answer, filter(self._differs, _DECIDING))

    def _decision_answer(self, name: str) -> HeadAnswer:
        package, _, rule = name.rpartition(".")
        try:
            assumption, old, new = self._deciding(name)
        except (OutsideError, RecursionError) as error:
            return HeadAnswer(package, rule, "not proved", items=False, codes=(), term=_term(error))
        word: Word = "narrower" if self._prover.implies(assumption, new, old) else "not proved"
        if word == "narrower" and self._prover.implies(assumption, old, new):
            word = "equal"
        return HeadAnswer(package, rule, word, items=False, codes=(), term="time" if word == "not proved" else "")

    def _deciding(self, name: str) -> tuple[Term, Term, Term]:
        """Return an assumption, and when a rule that the decision asks holds in both versions."""
        args = (_ANY, _OTHER)[: _DECIDING[name]]
        old, new = (
            t.holds(self._items(policy, name, args)) if name in policy.rules else NO
            for policy in (self._old, self._new)
        )
        return YES if name == _SHAPE else self._assumption, old, new

    def _answer(self, name: str) -> HeadAnswer:
        """Return the answer for a head."""
        concern, _, head = name.rpartition(".")
        try:
            old, new = self._items(self._old, name), self._items(self._new, name)
            assumption = self._assumption
            denied = self._items(self._new, f"{concern}.deny") if head == "step_up" else Term("set")
            return _HeadPair(self._prover, assumption, head, old, new, denied).answer(concern)
        except (OutsideError, RecursionError) as error:
            return HeadAnswer(concern, head, "not proved", items=False, codes=(), term=_term(error))

    def _claim(self, answer: HeadAnswer) -> "Claim":
        """Return what an answer did not prove, as formulas if the rules can be translated."""
        from pdp.workbench.proof.witness import Claim  # noqa: PLC0415 - an optional extra

        name = f"{answer.concern}.{answer.head}"
        try:
            if name in _DECIDING:
                assumption, old, new = self._deciding(name)
                return Claim(_REASONS, assumption, ((new, old),))
            old, new = self._items(self._old, name), self._items(self._new, name)
            denied = v.nonempty(self._items(self._new, f"{answer.concern}.deny")) if answer.head == "step_up" else NO
            assumption = self._assumption
        except (OutsideError, RecursionError):
            return Claim(name if name in heads(self.new_rules) else _REASONS, YES, ())
        sides = (new, old) if answer.head == "allow" else (old, new)
        parts: list[Callable[[Term], Term]] = [v.nonempty]
        if answer.head != "deny":
            parts.append(_having((lambda item: item) if answer.head == "obligations" else _essential))
        ways = ((part(sides[0]), t.disj(part(sides[1]), denied)) for part in parts)
        return Claim(name, assumption, tuple(ways))

    def _items(self, policy: TranslatedPolicy, name: str, args: tuple[Term, ...] = ()) -> Term:
        """Return the value of a rule, a set for a head. Raise an error if definitions that it uses may conflict."""
        if name not in policy.rules:
            return Term("set")
        found = policy.rule(name, args)
        all_uses = self._old_uses if policy is self._old else self._new_uses
        for used in sorted(closure(all_uses, name)):
            for conflict in policy.conflicts.get(used, ()):
                if not self._prover.implies(YES, conflict, NO):
                    raise policy.rules[used][0].outside("definitions that may conflict")
        return found


@dataclass
class _HeadPair:
    """A head in both versions. `denied` is what the new version denies in the same concern, for `step_up`."""

    prover: "Prover"
    assumption: Term
    head: str
    old: Term
    new: Term
    denied: Term

    def answer(self, concern: str) -> HeadAnswer:
        codes: tuple[str, ...] = ()
        # Of a deny, the decision reads only the code. Details of an allow are read, and grants read those of a step-up.
        part = _whole if self.head == "obligations" else _essential
        kept = self.head != "deny" and self._implies(_having(part))
        equal = kept and self._implies(_having(part), back=True)
        if not equal:
            codes = tuple(sorted(code for code, formula in self._codes() if not self._same(formula)))
            # An item without a code is denied as well.
            equal = self.head == "deny" and not codes and self._same(v.nonempty)
        word: Word = "equal" if equal else "narrower" if self._narrower(kept=kept) else "not proved"
        term = "time" if word == "not proved" else self._implausible()
        items = equal and self._same(_having(_whole))
        return HeadAnswer(concern, self.head, "not proved" if term else word, items, codes, term)

    def _same(self, formula: Callable[[Term], Term]) -> bool:
        return self._implies(formula) and self._implies(formula, back=True)

    def _implies(self, formula: Callable[[Term], Term], *, back: bool = False) -> bool:
        old, new = formula(self.old), formula(self.new)
        return self.prover.implies(self.assumption, *((new, old) if back else (old, new)))

    def _narrower(self, *, kept: bool) -> bool:
        """Return whether the new version admits no call that the old version does not admit. `kept`: all old items."""
        if self.head == "allow":
            return self._implies(_having(_essential), back=True)
        if self.head == "deny":
            return self._implies(v.nonempty)
        denied = v.nonempty(self.denied)
        return kept or self._implies(
            lambda items: t.disj(_having(_essential)(items), denied if items is self.new else NO)
        )

    def _codes(self) -> list[tuple[str, Callable[[Term], Term]]]:
        """Return a formula for each code: whether the set has an item with the code."""
        name = t.string("id" if self.head == "obligations" else "code")
        bodies = [found.at(1) for found in (self.old, self.new) if found.op == "collect"]
        cases = [case for body in bodies for case in v.cases_of(body)]
        codes = {code for case in cases for code in _leaves(v.get(case.value, name))}
        texts = sorted(str(code.args[0]) for code in codes if code.op == "str")
        formulas = [(text, _having(lambda item: v.get(item, name), t.string(text))) for text in texts]
        if all(code.op == "str" for code in codes):
            return formulas
        return [*formulas, (_COMPUTED, _having(lambda item: v.get(item, name)))]

    def _implausible(self) -> str:
        """Return why an answer is not credible: a head that can never or always fire is probably not understood."""
        if self.old == self.new:
            return ""
        fires = v.nonempty(self.old if self.old.op == "collect" else self.new)
        for formula, word in ((fires, "never"), (t.neg(fires), "always")):
            if not self.prover.satisfiable([formula]):
                return f"{self.head} {word} fires" if self.prover.implies(YES, formula, NO) else "time"
        return ""


def _reaches(rules: Rules, all_uses: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the names of rules that have answers, each with the rules that it uses.

    The documents of the decision do not count the rules that have answers of their own.
    """
    found = {name: closure(all_uses, name) for name in (*heads(rules), *_DECIDING) if name in rules}
    apart = {
        name: {other for other in used if other not in _DECIDING and other.split(".")[1:2] != ["concerns"]}
        for name, used in all_uses.items()
    }
    return found | {root: closure(apart, root) for root in _DOCUMENTS if root in rules}


def _term(error: Exception) -> str:
    return str(error) if isinstance(error, OutsideError) else "rules that are nested too deeply"


def _whole(item: Term) -> Term:
    return item


def _having(part: Callable[[Term], Term], value: Term = _ANY) -> Callable[[Term], Term]:
    """Return a formula about a set: whether an item of it has a value in a part."""
    return lambda items: v.over(items, lambda _, item: v.eq(value, part(item)))


def _leaves(value: Term) -> set[Term]:
    """Return the values that a value may have if it is defined."""
    return _leaves(value.at(1)) | _leaves(value.at(2)) if value.op == "ite" else {value} - {t.UNDEF}


def _essential(item: Term) -> Term:
    """Return an item without the texts that only people read."""
    if item.op == "ite":
        return v.ite(item.at(0), _essential(item.at(1)), _essential(item.at(2)))
    if item.op != "obj":
        return item
    pairs = v.pairs_of(item)
    shown = {key for key, value in pairs if key.args[0] in _SHOWN_ONLY and value.op == "str"}
    return v.object_of({key: value for key, value in pairs if key not in shown})
