"""Ask the prover whether changed rules can change a decision, and give each changed rule the answer.

A changed rule matters only through the findings of concerns that reach it, so it gets their most dangerous answer.
A rule that the decision uses in another way is not proved.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from pdp.errors import MissingExtraError
from pdp.opa.evaluation import Evaluator
from pdp.opa.syntax import package_of
from pdp.workbench.diff.causes.changes import BundleChange
from pdp.workbench.diff.comparison import ComparedCall, DecisionChange, Difference, change_of, parsed_decision
from pdp.workbench.diff.groups import NEEDED, call_words
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.diff.structure import Proof
from pdp.workbench.neighbours.bases import tool_of
from pdp.workbench.proof.answers import HeadAnswer
from pdp.workbench.proof.compare import PolicyPair

_ORDER: Final = ("wider", "not proved", "bounded", "narrower", "equal")
_SECONDS: Final = 30.0
_NOWHERE: Final = Proof("not proved", "no finding of a concern uses it")


@dataclass(frozen=True, slots=True)
class RuleProofs:
    """The prover's answers about the changed rules of two bundles. `missing` names the extra that is not installed.

    `calls` describes the calls that are wider on other data than the bundles', or without another verdict.
    """

    policies: PolicyPair
    rules: Mapping[str, set[str]]
    heads: tuple[HeadAnswer, ...] = ()
    missing: str = ""
    calls: Mapping[HeadAnswer, str] = field(default_factory=dict)

    @property
    def answers(self) -> dict[str, Proof]:
        """The answers by the name of the change."""
        if self.missing or not self.rules:
            return {}
        known = {f"{answer.concern}.{answer.head}": answer for answer in self.heads}
        return {change: self._proof(names, known) for change, names in self.rules.items()}

    def _proof(self, names: set[str], known: Mapping[str, HeadAnswer]) -> Proof:
        # A rule without an answer uses the same rules in both versions.
        found = [
            Proof(answer.word, answer.term, answer.request, self.calls.get(answer, ""))
            if (answer := known.get(name))
            else Proof("equal")
            for name, reach in self.policies.reaches.items()
            if names & reach
        ]
        return min(found, key=lambda proof: _ORDER.index(proof.word), default=_NOWHERE)

    def searched(
        self, pair: BundlePair, known: Sequence[bytes], data: Mapping[str, Any], engine_timeout: float
    ) -> "RuleProofs":
        """Return the answers, with calls where nothing is proved; see `PolicyPair.searched`."""
        if not self.heads:
            return self
        heads = self.policies.searched(self.heads, known, data, engine_timeout)
        hidden = [answer for answer in heads if answer.request is not None and not (answer.verdict and not answer.data)]
        return replace(self, heads=heads, calls={answer: _words(pair, answer, data) for answer in hidden})


def proofs_of(pair: BundlePair, changes: Sequence[BundleChange]) -> RuleProofs:
    """Return the prover's answer for each changed rule, if the extra `proof` is installed."""
    policies = PolicyPair(pair.new.opa, pair.old.modules, pair.new.modules)
    rules = {change.name: names for change in changes if (names := _names(pair, change))}
    if not rules:
        return RuleProofs(policies, rules)
    try:
        return RuleProofs(policies, rules, policies.answers())
    except MissingExtraError as error:
        return RuleProofs(policies, rules, missing=error.message)


def wider_calls(pair: BundlePair, proofs: RuleProofs) -> Iterator[ComparedCall]:
    """Yield the calls by which the prover shows that a changed rule admits more."""
    for body in dict.fromkeys(answer.request for answer in proofs.heads if answer.request is not None):
        request = orjson.loads(body)
        old, new = pair.manifests.requests(request)
        known = any(tool_of(request) in document.get("tools", {}) for document in pair.manifests.new.values())
        yield ComparedCall(tool_of(request) or "unknown", old, new, known_tool=known, request=request)


def _words(pair: BundlePair, answer: HeadAnswer, data: Mapping[str, Any]) -> str:
    """Return the call of a wider answer with both decisions, as text."""
    body = answer.request or b""
    given = data if answer.data is None else orjson.loads(answer.data)
    decisions = []
    for side in (pair.old, pair.new):
        with Evaluator(side.opa, side.bundle.modules, given, timeout=_SECONDS) as evaluator:
            answers = evaluator.evaluate([body], document="data.authz.decision").answers
        decisions.append(parsed_decision(answers.get(body), body, plan=False))
    old, new = decisions
    call = ComparedCall(tool_of(orjson.loads(body)) or "any tool", body, body)
    change = change_of(old, new) or DecisionChange(old.verdict, new.verdict)
    other = "" if answer.data is None else " (with other data than the bundles have)"
    return f"{call_words(Difference(call, change, old, new), NEEDED)}{other}"


def _names(pair: BundlePair, change: BundleChange) -> set[str]:
    """Return the full names of changed rules. A changed import concerns all rules of its package."""
    names = set()
    for side, rules in zip((pair.old, pair.new), change.rules, strict=True):
        for rule in rules:
            tree = side.trees[rule.module]
            nodes = [rule.node] if "head" in rule.node else tree.get("rules") or ()
            names |= {f"{package_of(tree)}.{node['head']['ref'][0]['value']}" for node in nodes}
    return names
