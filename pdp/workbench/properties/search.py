"""Search calls that violate a property, and confirm them on the engine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from pdp.json import canonical
from pdp.opa.modules import Module
from pdp.workbench.proof import terms as t
from pdp.workbench.proof.terms import Term
from pdp.workbench.proof.witness import CallOnData, Claim, EnginePair, SideAnswer, WitnessSearch
from pdp.workbench.properties.file import HOLDING, Properties


class PropertyEngine(EnginePair):
    """A policy on OPA, compared with one that denies what violates a property. Heads are the rules of properties.

    Attributes:
        codes: the codes of denials and step-ups for calls that met the conditions of a property.
    """

    def __init__(
        self, opa: Path, modules: Mapping[str, Module], data: Mapping[str, Any], properties: Properties
    ) -> None:
        super().__init__(opa, modules, modules, data)
        self._excluded = {
            about.rule: ("ALLOW", "STEP_UP") if about.denied else ("ALLOW",) for about in properties.items
        }
        self.codes = set[str]()

    def answers(self, head: str, trials: Sequence[CallOnData]) -> list[tuple[SideAnswer, SideAnswer]]:
        """Return for each trial a denial and the policy's answer if it violates a property, or else equal answers."""
        found = []
        for _, answer in self._answers(HOLDING, trials):
            now, holds = answer._replace(items=frozenset()), canonical(head) in answer.items
            violated = holds and answer.verdict in self._excluded[head]
            found.append((answer._replace(verdict="DENY") if violated else now, now))
            self.codes.update(map(orjson.loads, answer.items if holds else ()))
        return found

    def violation(
        self, search: WitnessSearch, head: str, when: Term | None, claims: Mapping[str, Term]
    ) -> tuple[Any, str | None] | str:
        """Return a request that violates a property and its verdict, or as `WitnessSearch.find` why there is none.

        `claims` are formulas by the first part of their reasons' codes. Those that stopped earlier calls are negated,
        because the negation of all of them takes the solver too long. Without `when`, only known requests are tried.
        """
        self.codes.clear()
        known: set[str] = set()
        while True:
            stopped = t.disj(*(claims[name] for name in sorted(known)))
            found = search.find(Claim(head, t.YES, () if when is None else ((when, stopped),)))
            if not isinstance(found, str):
                [(_, decided)] = self.answers(head, [found[0]])
                return found[0].given, decided.verdict
            stopping = {code.partition(".")[0] for code in self.codes} & claims.keys()
            if not found or stopping <= known:
                return found
            known |= stopping
