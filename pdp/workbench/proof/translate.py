"""Translate rules to terms.

`TranslatedPolicy.rule` returns the value of a rule: a partial rule is a `collect`, another rule has its values by
condition, and `undef` where no definition applies. Calls of functions are replaced by the function's value for their
arguments.
"""

from collections.abc import Callable, Sequence
from itertools import combinations

from pdp.json import canonical, digest
from pdp.opa.syntax import Node, branches
from pdp.workbench.proof import terms as t
from pdp.workbench.proof import values as v
from pdp.workbench.proof.bodies import RuleBody, check_keys
from pdp.workbench.proof.rules import PolicyRule, Rules
from pdp.workbench.proof.terms import NO, UNDEF, Term

Settle = Callable[[str, Term], Term]
"""From a rule's label and a formula to the formula under a name."""


class TranslatedPolicy:
    """The rules of one policy as terms. `data` are the data that they read, by default any data.

    Attributes:
        conflicts: for each rule whose definitions may return different values at once, the formulas for when they do.
    """

    def __init__(self, rules: Rules, settle: Settle = v.define, data: Term = t.DATA) -> None:
        self.rules = rules
        self.data = data
        self.conflicts: dict[str, list[Term]] = {}
        self._settle = settle
        self._values: dict[tuple[str, tuple[Term, ...]], Term | None] = {}

    def rule(self, name: str, args: tuple[Term, ...] = ()) -> Term:
        """Return a rule's value, or a function's value for arguments that are defined."""
        key = name, args
        if key not in self._values:
            self._values[key] = None
            try:
                self._values[key] = self._value(name, args)
            finally:
                if self._values[key] is None:
                    del self._values[key]
        value = self._values[key]
        if value is None:
            raise self.rules[name][0].outside("recursion")
        return value

    def _value(self, name: str, args: tuple[Term, ...]) -> Term:
        rules = self.rules[name]
        heads = [rule.node["head"] for rule in rules]
        if any(len(head["ref"]) > 2 or (len(head["ref"]) == 2 and "key" not in head) for head in heads):  # noqa: PLR2004
            raise rules[0].outside("a rule with a path in its head")
        if any("key" in head for head in heads):
            return self._partial(rules)
        return self._complete(name, rules, args)

    def _partial(self, rules: Sequence[PolicyRule]) -> Term:
        kinds = {"obj" if "value" in rule.node["head"] else "set" for rule in rules}
        if len(kinds) > 1 or any(rule.node.get("default") or "else" in rule.node for rule in rules):
            raise rules[0].outside("a partial rule of several forms")
        body = t.disj(*(RuleBody(self, rule).items() for rule in rules))
        if kinds == {"obj"}:
            check_keys(rules[0], rules[0].node, body)
        return v.collection(kinds.pop(), body)

    def _complete(self, name: str, rules: Sequence[PolicyRule], args: tuple[Term, ...]) -> Term:
        defaults = [
            RuleBody(self, rule).value(rule.node["head"]["value"], {}) for rule in rules if "default" in rule.node
        ]
        cases: list[tuple[Node, Term, Term]] = []
        for rule in rules:
            earlier = NO
            for branch in () if "default" in rule.node else branches(rule.node):
                found = v.cases_of(RuleBody(self, rule).branch(branch, args))
                if any(case.inner & case.value.free for case in found):
                    raise rule.outside("a value that depends on an iteration", branch)
                cases += [(branch, t.conj(t.neg(earlier), case.when), case.value) for case in found]
                earlier = t.disj(earlier, *(case.when for case in found))
        self._note_conflicts(name, cases)
        by_value: dict[Term, Term] = {}
        for _, when, value in cases:
            by_value[value] = t.disj(by_value.get(value, NO), when)
        result = defaults[0] if defaults else UNDEF
        # The keys of terms with variables differ from one translation to the next.
        for value in sorted(by_value, key=lambda value: b"" if value.free else value.key):
            label = f"{name} {digest(canonical([part.key.hex() for part in (*args, value)]))}"
            result = v.ite(self._settle(label, by_value[value]), value, result)
        return result

    def _note_conflicts(self, name: str, cases: Sequence[tuple[Node, Term, Term]]) -> None:
        rule_of = {id(branch): rule for rule in self.rules[name] for branch in branches(rule.node)}
        for (one, when, value), (other, also, instead) in combinations(cases, 2):
            exclusive = one is not other and rule_of[id(one)] is rule_of[id(other)]
            conflict = NO if exclusive else t.conj(when, also, t.neg(v.eq(value, instead)))
            if conflict != NO:
                self.conflicts.setdefault(name, []).append(conflict)
