"""Properties of the baseline that hold for every call of the small universe, in which unrelated fields share names."""

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import chain, product
from typing import Any

from pdp.decision import Decision, Verdict, parse_findings
from pdp.engine.bundle.file import Bundle, read_bundle
from pdp.engine.protocol import FINDINGS, PLAN, parse_answer
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.json import canonical
from tests.policies.oracle import Call, Findings
from tests.policies.small_universe import Case, Universe
from tests.support.payments import BUNDLE

UNIVERSES = 150
SEED = 28
SEEN = 2
"""The number of calls that each finding must decide alone. Without such calls, an exemption could stay unnoticed."""


@dataclass(frozen=True)
class Decided:
    """A call with the findings and the decision of the policies, and with the findings that the oracle expects."""

    case: Case
    decision: Decision
    codes: dict[str, frozenset[str]]
    expected: Findings


def decided(universe: Universe, bundle: Bundle) -> list[Decided]:
    results = []
    data = {"directory": universe.directory}
    with EmbeddedEngine(bundle, manifests=universe.manifests, data=data) as engine:
        for case in universe.cases:
            reasons, obligations = parse_findings(engine.evaluate(case.body, FINDINGS))
            codes = {kind: frozenset(reason.code for reason in each) for kind, each in reasons.items()}
            codes["obligations"] = frozenset(obligation.id for obligation in obligations)
            expected = Call(case.request, case.manifest, universe.directory).findings()
            results.append(Decided(case, engine.decide_body(case.body), codes, expected))
    return results


@cache
def universes() -> tuple[Universe, ...]:
    return tuple(Universe(SEED * UNIVERSES + number) for number in range(UNIVERSES))


@cache
def everything() -> list[Decided]:
    bundle = read_bundle(BUNDLE)
    return list(chain.from_iterable(decided(universe, bundle) for universe in universes()))


def test_policies_return_the_findings_that_the_reference_model_expects() -> None:
    for each in everything():
        denied = each.codes["deny"] - {"decision.nothing_allows"}
        found = (denied, each.codes["step_up"], each.codes["obligations"])

        assert found == (each.expected.deny, each.expected.step_up, each.expected.obligations), each.case


def test_verdict_codes_and_obligations_follow_from_the_findings() -> None:
    for each in everything():
        assert each.decision.verdict == each.expected.verdict, each.case
        if each.expected.codes is not None:
            assert frozenset(each.decision.codes) == each.expected.codes, each.case
        delivered = frozenset(obligation.id for obligation in each.decision.obligations)
        assert delivered == (each.expected.obligations if each.expected.verdict == "ALLOW" else frozenset()), each.case


def test_every_finding_is_the_only_finding_of_some_generated_calls() -> None:
    """For each finding, some calls have no other finding. Only such calls show an exemption from the finding."""
    alone: Counter[str] = Counter()
    for each in everything():
        others = each.expected.deny or each.expected.step_up
        if len(others) == 1 and each.expected.granted:
            alone.update(others)
        if each.expected.verdict == "ALLOW" and len(each.expected.obligations) == 1:
            alone.update(each.expected.obligations)

    every = {code for each in everything() for code in (*each.expected.deny, *each.expected.step_up)}
    every |= {name for each in everything() for name in each.expected.obligations}
    assert {name: alone[name] for name in every if alone[name] < SEEN} == {}
    assert min(Counter(each.decision.verdict for each in everything())[verdict] for verdict in Verdict) > UNIVERSES


def without_own_grant(case: Case) -> Case | None:
    """Return the call without the subject's own grants. None if there are no such grants or such grants count."""
    request = deepcopy(case.request)
    entry = case.manifest["tools"][request["action"]["properties"]["tool"]]
    approval, me = request["context"].get("approval"), request["subject"]
    if approval is None or "$subject" in entry["approval"]["approvers"]:
        return None
    issuer = me["properties"].get("iss")
    others = [grant for grant in approval["grants"] if (grant["sub"], grant.get("iss")) != (me["id"], issuer)]
    if len(others) == len(approval["grants"]):
        return None
    approval["grants"] = others
    return Case(request, case.manifest)


def test_grant_by_the_subject_of_a_call_does_not_count_as_approval() -> None:
    changed = 0
    for universe in universes():
        pairs = [(case, other) for case in universe.cases if (other := without_own_grant(case))]
        changed += len(pairs)
        with EmbeddedEngine(
            read_bundle(BUNDLE), manifests=universe.manifests, data={"directory": universe.directory}
        ) as engine:
            for case, other in pairs:
                with_it, without = engine.decide_body(case.body), engine.decide_body(other.body)
                assert (with_it.verdict, with_it.reasons) == (without.verdict, without.reasons), case
    assert changed > UNIVERSES


PLANNING: dict[str, Any] = {
    "A": {"requires": ["a", "b"], "purposes": ["a"]},
    "B": {"tool": "a", "at_most": 1},
    "C": {"tool": "c", "only_after": ["a"], "purposes": ["b", "c"]},
}
PLANS = [plan for length in range(4) for plan in product("abc", repeat=length)]
IDS: tuple[dict[str, str], ...] = (
    {},
    {"A": "a", "B": "_B"},
    {"A": "drill.x", "B": "A", "C": "B"},
    {"A": "requires", "B": "", "C": "planning"},
)


def test_id_of_a_planning_rule_does_not_affect_the_decision() -> None:
    answers = []
    for ids in IDS:
        rules = {ids.get(name, name): rule for name, rule in PLANNING.items()}
        names = {new: old for old, new in ids.items()}
        with EmbeddedEngine(read_bundle(BUNDLE), data={"directory": {"planning": rules}}) as engine:
            found = []
            for plan, purpose in product(PLANS, (None, "", "a", "b", "a.drill")):
                body = canonical({"steps": [{"tool": tool} for tool in plan], "context": {"purpose": purpose}})
                decision = parse_answer(engine.evaluate(body, PLAN), body, PLAN)
                of_rules = [(each.code, names.get(str(each.details.get("rule")), each.details.get("rule")))
                            for each in decision.reasons]  # fmt: skip
                found.append((plan, purpose, decision.verdict, sorted(map(str, of_rules))))
        answers.append(found)

    assert len({verdict for _, _, verdict, _ in answers[0]}) > 1
    assert all(found == answers[0] for found in answers[1:])
