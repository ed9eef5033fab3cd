"""Ask the solver whether a property holds for all requests, with the manifest, policies and data of a project.

A property holds if its conditions imply that some `deny` fires, or that no concern grants the call. If the property
only excludes ALLOW, a `step_up` that no grant clears is enough as well, unless the approval is valid. All answers are
about requests that `shape.valid` admits, because all others are denied.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pdp.errors import Fault, FileFaultsError
from pdp.installed import extra
from pdp.json import canonical
from pdp.opa.modules import baseline_policies_path
from pdp.workbench.neighbours.bases import tool_of
from pdp.workbench.neighbours.values import as_dict
from pdp.workbench.proof import terms as t
from pdp.workbench.proof import values as v
from pdp.workbench.proof.bodies import constant
from pdp.workbench.proof.rules import OutsideError, closure, heads, policy_rules, uses
from pdp.workbench.proof.terms import Term
from pdp.workbench.proof.translate import TranslatedPolicy
from pdp.workbench.properties.file import MODULE, Properties, Property
from pdp.workbench.scenarios.files.suite import Suite, policy_modules
from pdp.workbench.scenarios.running.engines import whole_data

if TYPE_CHECKING:
    from pdp.workbench.proof.witness import WitnessSearch
    from pdp.workbench.properties.search import PropertyEngine

WORK: Final = 10_000_000
SECONDS: Final = 20.0
_QUICK_WORK: Final = 500_000
_DECISION: Final = "authz/decision.rego"
_GRANT: Final = "authz.concerns.effects.allow"


@dataclass(frozen=True, slots=True)
class PropertyAnswer:
    """What is known about a property.

    Attributes:
        word: `proved`; `violated` if `request` is a call that shows it; `bounded` if no call with small collections
            shows it; or `not proved`.
        by: for `proved`, the head that fires; empty if it takes several.
        term: for `not proved`, what cannot be translated, or `time`.
        request: for `violated`, a request for which the engine decides `verdict`, as JSON.

    Examples:
        >>> PropertyAnswer("no-key", "A refund has a key", "proved", by="authz.concerns.idempotency.deny").line
        'proved: A refund has a key'
    """

    id: str
    title: str
    word: Literal["proved", "violated", "bounded", "not proved"]
    by: str = ""
    term: str = ""
    request: Any = None
    verdict: str | None = None

    @property
    def line(self) -> str:
        """The answer as one line of text."""
        if self.word == "violated":
            context, subject = (dict(as_dict(self.request.get(name))) for name in ("context", "subject"))
            call = {"tool": tool_of(self.request), **as_dict(context.pop("arguments", None))}
            who = {"id": subject.get("id"), **as_dict(subject.get("properties")), **context}
            return f"violated: {self.title}: {canonical(call).decode()} by {canonical(who).decode()} is {self.verdict}"
        words = {"bounded": "no counter-example with up to two elements", "not proved": f"not proved: {self.term}"}
        return f"{words.get(self.word, self.word)}: {self.title}"

    def as_json(self) -> dict[str, Any]:
        """Return the answer as plain JSON."""
        return asdict(self)


def prove(
    suite: Suite,
    properties: Properties,
    known: Sequence[bytes],
    opa: Path,
    *,
    work: int = WORK,
    seconds: float = SECONDS,
) -> Iterator[PropertyAnswer]:
    """Yield an answer for each property of a project. `known` are requests of its scenarios.

    A question takes at most `work` steps of the solver, and `seconds` on a slow machine. Raises `MissingExtraError` if
    the solver is not installed, and `FileFaultsError` if the conditions of a property can never hold.
    """
    policy = _PolicyTerms(suite, properties, opa, work, seconds)
    faults = [fault for about in properties.items if (fault := policy.contradiction(about))]
    if faults:
        raise FileFaultsError(faults)
    with extra("proof"):
        from pdp.workbench.proof.witness import WitnessSearch  # noqa: PLC0415 - an optional extra
        from pdp.workbench.properties.search import PropertyEngine  # noqa: PLC0415 - an optional extra
    with PropertyEngine(opa, policy.modules, policy.data, properties) as engine:
        # The formulas have the project's data as constants, so a call is searched with it.
        search = WitnessSearch(engine, known, {}, seconds)
        for about in properties.items:
            yield policy.answer(about, search, engine)


class _PolicyTerms:
    """The rules of a policy as terms, with the data of a project."""

    def __init__(self, suite: Suite, properties: Properties, opa: Path, work: int, seconds: float) -> None:
        with extra("proof"):
            from pdp.workbench.proof.solver import Prover  # noqa: PLC0415 - an optional extra
        self.modules, self.data = {**policy_modules(suite), MODULE: properties.module}, whole_data(suite)
        self._rules = policy_rules(opa, self.modules, self.modules)
        self._terms = TranslatedPolicy(self._rules, data=constant(self.data))
        # The work of a prover is bounded in total, so each property has its own.
        self._provers: dict[str, Prover] = {about.id: Prover(work, seconds) for about in properties.items}
        self._quick: dict[str, Prover] = {about.id: Prover(_QUICK_WORK, seconds) for about in properties.items}
        written = (baseline_policies_path() / _DECISION).read_text(encoding="utf-8")
        # The claims are about the decision as this version writes it.
        self._decides = _DECISION in self.modules and self.modules[_DECISION].text == written
        self._outside = [] if self._decides else ["rules of the decision changed"]

    def contradiction(self, about: Property) -> Fault | None:
        """Return a fault if no request meets the conditions of a property."""
        try:
            when = self._when(about)
        except (OutsideError, RecursionError):
            return None
        prover = self._provers[about.id]
        is_possible = prover.satisfiable(when) or not prover.implies(when[0], when[1], t.NO)
        return None if is_possible else about.fault

    def answer(self, about: Property, search: "WitnessSearch", engine: "PropertyEngine") -> PropertyAnswer:
        """Return what the solver knows about a property, or a call that violates it."""
        try:
            when = self._when(about)
        except (OutsideError, RecursionError) as error:
            found, term = engine.violation(search, about.rule, None, {}), str(error)
        else:
            claims = {**self._denials, **({} if about.denied else self._escalations)} if self._decides else {}
            prover, some = self._provers[about.id], t.disj(*claims.values())
            for head, claim in claims.items():
                if self._quick[about.id].proves(when, claim):
                    return PropertyAnswer(about.id, about.title, "proved", by=head)
            if prover.implies(when[0], when[1], some):
                return PropertyAnswer(about.id, about.title, "proved")
            stops = {"decision": t.NO}
            for name, claim in claims.items():
                code = "decision" if name == _GRANT else name.split(".")[2]
                stops[code] = t.disj(stops.get(code, t.NO), claim)
            found = engine.violation(search, about.rule, t.conj(*when), stops)
            term = next(iter(self._outside), "")
        if isinstance(found, str):
            term = found and (term or found)
            return PropertyAnswer(about.id, about.title, "not proved" if term else "bounded", term=term)
        request, verdict = found
        return PropertyAnswer(about.id, about.title, "violated", request=request, verdict=verdict)

    def _when(self, about: Property) -> list[Term]:
        return [t.holds(self._terms.rule(name)) for name in ("authz.lib.shape.valid", about.rule)]

    @cached_property
    def _denials(self) -> dict[str, Term]:
        """A formula for each head that denies a call, those with few rules first, and for the lack of a grant."""
        every = uses(self._rules)
        deny = sorted(
            (name for name in heads(self._rules) if name.endswith(".deny")), key=lambda name: len(closure(every, name))
        )
        found = {name: formula for name in deny if (formula := self._formula(name, v.nonempty)) is not None}
        granted = self._formula(_GRANT, v.nonempty)
        return found if granted is None else {**found, _GRANT: t.neg(granted)}

    @cached_property
    def _escalations(self) -> dict[str, Term]:
        """A formula for each head that asks a person who has not approved the call."""
        approved = t.holds(self._terms.rule("authz.lib.approval.valid"))

        def remains(_: Term, item: Term) -> Term:
            return t.neg(t.holds(self._terms.rule("authz.lib.grant.clears", (item,))))

        names = sorted(name for name in heads(self._rules) if name.endswith(".step_up"))
        found = {name: self._formula(name, lambda items: v.over(items, remains)) for name in names}
        return {name: t.conj(t.neg(approved), formula) for name, formula in found.items() if formula is not None}

    def _formula(self, name: str, about: Callable[[Term], Term]) -> Term | None:
        try:
            return about(self._terms.rule(name))
        except (OutsideError, RecursionError) as error:
            self._outside.append(str(error))
            return None
