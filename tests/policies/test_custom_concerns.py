"""A custom concern can only add reasons: it makes no decision more permissive.

There is one exception: the concern's `allow` may satisfy the clause "policy", which a commit needs. Its test is
`test_allow_finding_of_a_custom_concern_satisfies_only_the_clause_policy`.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pdp.decision import Decision, Reason, Verdict
from pdp.engine.bundle.file import Bundle, read_bundle
from pdp.engine.opa.engine import SidecarEngine
from pdp.engine.protocol import Engine
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import UsageError
from pdp.json import canonical, digest
from pdp.opa.build import compile_bundle
from pdp.opa.local import local_opa
from pdp.opa.modules import baseline_policies_path
from tests.support.generated_requests import manifests, requests

pytestmark = pytest.mark.opa

# The probe is a custom concern that returns the findings in its settings, even invalid findings.
PROBE = """\
# METADATA
# title: Probe
# description: Findings from the settings.
package custom.concerns.probe
""" + "".join(
    f"""
# METADATA
# title: Findings of the part {part}
# description: Findings from the settings.
# custom:
#   code: probe.{part}
{part} contains item if some item in data.settings.probe.{part}
"""
    for part in ("deny", "step_up", "allow", "obligations")
)

OPENNESS = {Verdict.DENY: 0, Verdict.STEP_UP: 1, Verdict.ALLOW: 2}
WITHIN = 600


# Complete calls of one tool per risk tier, effect class and pattern, so that all verdicts and obligations occur

TOOLS: dict[str, Any] = {
    f"{tier}_{effect}_{pattern}": {
        "name": f"{tier}_{effect}_{pattern}",
        "pdp_action": f"{tier}_{effect}_{pattern}",
        "version": "1.0.0",
        "risk_tier": tier,
        "scopes": ["a"],
        "limits": [],
        "idempotency": {"required": False},
        "provenance": {"required": []},
        "approval": {"approvers": ["approver"], "quorum": 1, "expires_seconds": 60, "unless_within_limits": False},
        **({"effect_class": effect} if effect else {}),
        **({"pattern": pattern} if pattern else {}),
    }
    for tier in ("low", "high", "extreme")
    for effect, pattern in (
        (None, None), ("pure", "composition"), ("read-internal", "aggregation"), ("read-internal", "search"),
        ("stage", None), ("commit-low", None), ("commit-high", None),
    )
}  # fmt: skip
MANIFEST: dict[str, Any] = {"manifest_version": "1", "tools": TOOLS}
MANIFEST_DIGEST = digest(canonical(MANIFEST))
APPROVAL = {
    "id": "apr-1",
    "call_digest": "sha256:call",
    "age_seconds": 1,
    "grants": [{"sub": "ann", "iss": None, "roles": ["approver"]}],
}


def call(tool: str, approval: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a call of a tool in `TOOLS` by a person with all scopes, clearances and entitlements."""
    return {
        "subject": {
            "type": "user",
            "id": "u",
            "properties": {"scopes": ["a"], "clearances": ["pii"], "entitlements": {"corpora": ["c"]}},
        },
        "action": {
            "name": tool,
            "properties": {"tool": tool, "manifest_version": "1", "manifest_digest": MANIFEST_DIGEST},
        },
        "resource": {"type": "corpus", "id": "c", "properties": {"markings": []}},
        "context": {"arguments": {}, "purpose": "care", "call_digest": "sha256:call", "approval": approval},
    }


def bodies() -> list[bytes]:
    """Return calls of all tools, with and without an approval, and generated requests, both valid and invalid."""
    ours = [call(tool, approval) for tool in TOOLS for approval in (None, APPROVAL)]
    return [canonical(request) for request in (*ours, *requests(WITHIN))]


ALL = bodies()


def of_manifests() -> dict[str, Any]:
    return {**manifests(), MANIFEST_DIGEST: MANIFEST}


# Findings that the probe may return


class Engines:
    """The decision of the baseline for each request, and the bundle that includes the probe.

    A dataclass has a long repr, which hypothesis would print for each failing example, so this is an ordinary class.
    """

    def __init__(self, plain: dict[bytes, Decision], probing: Bundle) -> None:
        self.plain = plain
        self.probing = probing

    def with_probe(self, findings: Any) -> EmbeddedEngine:
        return EmbeddedEngine(self.probing, manifests=of_manifests(), data={"settings": {"probe": findings}})


@pytest.fixture(scope="session")
def engines(opa: Path, tmp_path_factory: pytest.TempPathFactory) -> Engines:
    folder = tmp_path_factory.mktemp("probe")
    rego = folder / "custom/concerns/probe/probe.rego"
    rego.parent.mkdir(parents=True)
    rego.write_text(PROBE)
    baseline = baseline_policies_path()
    without = read_bundle(compile_bundle(policies=[baseline], release=1, opa=opa))
    probing = read_bundle(compile_bundle(policies=[baseline, folder], release=1, opa=opa))
    with EmbeddedEngine(without, manifests=of_manifests()) as engine:
        return Engines({body: engine.decide_body(body) for body in ALL}, probing)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e6, 1e6) | texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=6,
)
codes = texts.map("probe.{}".format)
foreign = st.sampled_from(
    ["effects.gate_satisfied", "risk.acceptable", "decision.x", "probes.x", "probe", "custom.concerns.probe.x", ""]
)
details: st.SearchStrategy[Any] = (
    st.dictionaries(texts, anything, max_size=2) | st.just({"clauses": []}) | st.just({"clauses": ["policy"]})
)
good_reasons = st.fixed_dictionaries({"code": codes, "message": texts, "details": details})
bad_reasons = st.one_of(
    st.fixed_dictionaries({"code": foreign, "message": texts, "details": details}),
    st.fixed_dictionaries({"code": codes}, optional={"message": texts, "details": details}).filter(
        lambda reason: len(reason) < 3
    ),
    st.fixed_dictionaries({"code": codes, "message": texts, "details": details, "hint": anything}),
    st.fixed_dictionaries({"code": anything, "message": anything, "details": anything}),
)
good_obligations = st.fixed_dictionaries(
    {"id": texts, "on": st.sampled_from(["ALLOW", "STEP_UP", "DENY"]), "parameters": details}
)
bad_obligations = st.one_of(
    st.fixed_dictionaries({"id": texts, "on": st.sampled_from(["allow", "PERMIT", ""]), "parameters": details}),
    st.fixed_dictionaries({"id": anything, "on": anything, "parameters": anything}),
    st.fixed_dictionaries({"id": texts, "on": st.just("ALLOW"), "parameters": details, "unless": anything}),
)


def lists(good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return lists of valid items, lists that also have invalid items, and values that are not lists."""
    return st.one_of(st.just([]), st.lists(good, max_size=2), st.lists(good | bad | anything, max_size=3), anything)


known_parts: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "deny": lists(good_reasons, bad_reasons),
        "step_up": lists(good_reasons, bad_reasons),
        "allow": lists(good_reasons, bad_reasons),
        "obligations": lists(good_obligations, bad_obligations),
    },
)
findings = known_parts | anything


# Comparison of decisions with and without the probe


def lacks_only_policy_clause(body: bytes, plain: Decision) -> bool:
    """Return whether the call is a commit of the tier `extreme` that is denied only because it lacks the clause
    "policy".
    """
    return plain.codes == ("decision.nothing_allows",) and b'"extreme_commit-' in body


def satisfies_policy_clause(findings: Any) -> bool:
    """Return whether the findings contain a valid `allow` reason, in a list or in an object's values, as in Rego."""
    allow = findings.get("allow") if isinstance(findings, dict) else None
    items = allow if isinstance(allow, list) else allow.values() if isinstance(allow, dict) else ()
    return any(
        isinstance(item, dict)
        and item.keys() == {"code", "message", "details"}
        and isinstance(item["code"], str)
        and item["code"].startswith("probe.")
        and isinstance(item["message"], str)
        and isinstance(item["details"], dict)
        for item in items
    )


def check(plain: Decision, probed: Decision, *, opened: bool) -> None:
    """Check that the probe only added reasons. With `opened`, the probe's `allow` may make the decision an ALLOW."""
    ours = {key(reason) for reason in plain.reasons}
    theirs = {key(reason) for reason in probed.reasons}
    assert opened or OPENNESS[probed.verdict] <= OPENNESS[plain.verdict]
    if probed.verdict == plain.verdict:
        if plain.codes == ("decision.nothing_allows",):
            # If only the probe denies, its denials replace the reason `decision.nothing_allows`.
            assert theirs == ours or all(is_probes(reason) for reason in probed.reasons)
        else:
            assert ours <= theirs
            assert all(is_probes(reason) for reason in probed.reasons if key(reason) not in ours)
        assert set(map(repr, plain.obligations)) <= set(map(repr, probed.obligations))
    elif not opened:
        assert all(is_probes(reason) for reason in probed.reasons)


def key(reason: Reason) -> bytes:
    return canonical([reason.code, reason.message, reason.details])


def is_probes(reason: Reason) -> bool:
    return reason.code.startswith("probe.") or (
        reason.code == "decision.reason_malformed" and reason.details == {"concern": "probe"}
    )


def compare(engines: Engines, engine: Engine, findings: Any, chosen: list[int]) -> Counter[str]:
    seen: Counter[str] = Counter()
    for body in (ALL[number] for number in chosen):
        plain, probed = engines.plain[body], engine.decide_body(body)
        check(plain, probed, opened=lacks_only_policy_clause(body, plain) and satisfies_policy_clause(findings))
        seen[f"{plain.verdict} to {probed.verdict}"] += 1
    return seen


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(findings=findings, chosen=st.lists(st.integers(0, len(ALL) - 1), min_size=1, max_size=12))
def test_custom_concern_makes_no_decision_more_permissive(engines: Engines, findings: Any, chosen: list[int]) -> None:
    with engines.with_probe(findings) as engine:
        compare(engines, engine, findings, chosen)


@settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(findings=findings, chosen=st.lists(st.integers(0, len(ALL) - 1), min_size=20, max_size=40))
def test_custom_concern_makes_no_sidecar_decision_more_permissive(
    engines: Engines, opa: Path, findings: Any, chosen: list[int]
) -> None:
    with (
        local_opa(
            opa, bundle=engines.probing, manifests=of_manifests(), data={"settings": {"probe": findings}}
        ) as local,
        SidecarEngine(local.url, token=local.token) as sidecar,
        engines.with_probe(findings) as embedded,
    ):
        compare(engines, sidecar, findings, chosen)
        for number in chosen:
            assert whole(sidecar.decide_body(ALL[number])) == whole(embedded.decide_body(ALL[number]))


def whole(decision: Decision) -> dict[str, Any]:
    return {name: value for name, value in decision.as_json().items() if name != "decision_id"}


def test_compared_requests_of_custom_concern_tests_cover_every_verdict(engines: Engines) -> None:
    seen = Counter(decision.verdict for decision in engines.plain.values())
    waiting = sum(lacks_only_policy_clause(body, plain) for body, plain in engines.plain.items())

    assert min(seen[verdict] for verdict in Verdict) >= 20
    assert waiting >= 2


def reason(code: str) -> dict[str, Any]:
    return {"code": code, "message": "", "details": {}}


STEP = {"step_up": [reason("probe.x")]}
ALLOW = {"allow": [reason("probe.x")]}


@pytest.mark.parametrize(
    ("findings", "tool", "approval", "verdict", "codes"),
    [
        ({"deny": [reason("probe.x")]}, "low_stage_None", None, "DENY", ("probe.x",)),
        ({"deny": [1]}, "low_stage_None", None, "DENY", ("decision.reason_malformed",)),
        (STEP, "low_stage_None", None, "STEP_UP", ("probe.x",)),
        (STEP, "low_stage_None", APPROVAL, "ALLOW", ("effects.gate_satisfied", "risk.acceptable")),
        (ALLOW, "low_stage_None", None, "ALLOW", ("effects.gate_satisfied", "probe.x", "risk.acceptable")),
        (ALLOW, "high_stage_None", None, "STEP_UP", ("approvals.required",)),
        ({}, "low_stage_None", None, "ALLOW", ("effects.gate_satisfied", "risk.acceptable")),
    ],
    ids=["deny", "malformed", "step-up", "step-up approved", "allow", "allow beside a step-up", "nothing"],
)
def test_findings_of_a_custom_concern_affect_the_decision(
    engines: Engines, findings: Any, tool: str, approval: Any, verdict: str, codes: tuple[str, ...]
) -> None:
    """The findings of the probe change decisions. Otherwise, the tests above would succeed without testing anything."""
    with engines.with_probe(findings) as engine:
        decided = engine.decide_body(canonical(call(tool, approval)))

    assert (decided.verdict, decided.codes) == (verdict, codes)


@pytest.mark.parametrize("effect", ["commit-low", "commit-high"])
def test_allow_finding_of_a_custom_concern_satisfies_only_the_clause_policy(engines: Engines, effect: str) -> None:
    body = canonical(call(f"extreme_{effect}_None"))
    foreign_code = {"allow": [{**reason("effects.gate_satisfied"), "details": {"clauses": []}}]}
    with engines.with_probe(ALLOW) as allowing, engines.with_probe(foreign_code) as other:
        without, allowed, refused = engines.plain[body], allowing.decide_body(body), other.decide_body(body)

    assert (without.verdict, without.codes) == ("DENY", ("decision.nothing_allows",))
    assert (allowed.verdict, allowed.codes) == ("STEP_UP", ("approvals.required",))
    assert (refused.verdict, refused.codes) == ("DENY", ("decision.nothing_allows",))


@pytest.mark.parametrize("root", ["authz", "custom", "config", "manifests"])
def test_data_given_to_a_local_opa_cannot_replace_policies(engines: Engines, opa: Path, root: str) -> None:
    data = {root: {"concerns": {"zz": {"allow": ["x"]}}}}
    with pytest.raises(UsageError) as caught, local_opa(opa, bundle=engines.probing, data=data):
        pass

    assert str(caught.value) == f"data: the root `{root}` is not allowed (use only directory and settings)"
