"""A user's concern can only add reasons: whatever it says, no call is decided more openly than without it.

The one exception is the clause "policy" of a commit's gate, which its `allow` may give; the last test but one pins it.
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

# Says whatever the data tells it to, well-formed or not.
PROBE = """\
# METADATA
# title: Probe
# description: Whatever the settings say.
package custom.concerns.probe
""" + "".join(
    f"""
# METADATA
# title: The part {part}
# description: Whatever the settings say.
# custom:
#   code: probe.{part}
{part} contains item if some item in data.settings.probe.{part}
"""
    for part in ("deny", "step_up", "allow", "obligations")
)

OPENNESS = {Verdict.DENY: 0, Verdict.STEP_UP: 1, Verdict.ALLOW: 2}
WITHIN = 600


# Calls that lack nothing: one for every tier, effect class and pattern, so that all verdicts and obligations are there.

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
    """A call of one of `TOOLS` by somebody who may do everything."""
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
    """The calls above, without and with a person's approval, and generated requests, good and bad."""
    ours = [call(tool, approval) for tool in TOOLS for approval in (None, APPROVAL)]
    return [canonical(request) for request in (*ours, *requests(WITHIN))]


ALL = bodies()


def of_manifests() -> dict[str, Any]:
    return {**manifests(), MANIFEST_DIGEST: MANIFEST}


# What the concern says


class Engines:
    """The baseline's decision on each body, and the bundle that has the probe as well.

    No dataclass: hypothesis would print all of it for every example that fails.
    """

    def __init__(self, plain: dict[bytes, Decision], probing: Bundle) -> None:
        self.plain = plain
        self.probing = probing

    def with_probe(self, says: Any) -> EmbeddedEngine:
        return EmbeddedEngine(self.probing, manifests=of_manifests(), data={"settings": {"probe": says}})


@pytest.fixture(scope="session")
def engines(opa: Path, tmp_path_factory: pytest.TempPathFactory) -> Engines:
    """Both bundles, built once."""
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
    """Mostly well-formed ones, then some that are not, then things that are not even lists."""
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
said = known_parts | anything


# The property


def waits_for_policy(body: bytes, plain: Decision) -> bool:
    """Whether a commit is refused only because nobody gives the clause "policy": its tier is one that nobody knows."""
    return plain.codes == ("decision.nothing_allows",) and b'"extreme_commit-' in body


def gives_policy(says: Any) -> bool:
    """Whether an `allow` is a reason of the probe's own: Rego walks over lists and the values of objects."""
    allow = says.get("allow") if isinstance(says, dict) else None
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
    """Only reasons are added. `opened`: the one exception, in which the clause is given, and may be enough."""
    ours = {key(reason) for reason in plain.reasons}
    theirs = {key(reason) for reason in probed.reasons}
    assert opened or OPENNESS[probed.verdict] <= OPENNESS[plain.verdict]
    if probed.verdict == plain.verdict:
        if plain.codes == ("decision.nothing_allows",):
            # It stands only where nobody denies: the probe's own denials say more.
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


def compare(engines: Engines, engine: Engine, says: Any, chosen: list[int]) -> Counter[str]:
    seen: Counter[str] = Counter()
    for body in (ALL[number] for number in chosen):
        plain, probed = engines.plain[body], engine.decide_body(body)
        check(plain, probed, opened=waits_for_policy(body, plain) and gives_policy(says))
        seen[f"{plain.verdict} to {probed.verdict}"] += 1
    return seen


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(says=said, chosen=st.lists(st.integers(0, len(ALL) - 1), min_size=1, max_size=12))
def test_a_custom_concern_opens_nothing(engines: Engines, says: Any, chosen: list[int]) -> None:
    with engines.with_probe(says) as engine:
        compare(engines, engine, says, chosen)


@settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(says=said, chosen=st.lists(st.integers(0, len(ALL) - 1), min_size=20, max_size=40))
def test_nor_with_the_other_engine(engines: Engines, opa: Path, says: Any, chosen: list[int]) -> None:
    with (
        local_opa(opa, bundle=engines.probing, manifests=of_manifests(), data={"settings": {"probe": says}}) as local,
        SidecarEngine(local.url, token=local.token) as sidecar,
        engines.with_probe(says) as embedded,
    ):
        compare(engines, sidecar, says, chosen)
        for number in chosen:
            assert whole(sidecar.decide_body(ALL[number])) == whole(embedded.decide_body(ALL[number]))


def whole(decision: Decision) -> dict[str, Any]:
    return {name: value for name, value in decision.as_json().items() if name != "decision_id"}


def test_what_is_compared_has_every_verdict(engines: Engines) -> None:
    """Otherwise nothing could have been opened."""
    seen = Counter(decision.verdict for decision in engines.plain.values())
    waiting = sum(waits_for_policy(body, plain) for body, plain in engines.plain.items())

    assert min(seen[verdict] for verdict in Verdict) >= 20
    assert waiting >= 2


def reason(code: str) -> dict[str, Any]:
    return {"code": code, "message": "", "details": {}}


STEP = {"step_up": [reason("probe.x")]}
ALLOW = {"allow": [reason("probe.x")]}


@pytest.mark.parametrize(
    ("says", "tool", "approval", "verdict", "codes"),
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
def test_what_a_concern_says_is_heard(
    engines: Engines, says: Any, tool: str, approval: Any, verdict: str, codes: tuple[str, ...]
) -> None:
    """The property would hold as well if nobody listened."""
    with engines.with_probe(says) as engine:
        decided = engine.decide_body(canonical(call(tool, approval)))

    assert (decided.verdict, decided.codes) == (verdict, codes)


@pytest.mark.parametrize("effect", ["commit-low", "commit-high"])
def test_its_allow_counts_as_the_clause_policy_and_nothing_else(engines: Engines, effect: str) -> None:
    """The one exception: a commit of a tier nobody knows has no allow of the baseline. A person is still asked."""
    body = canonical(call(f"extreme_{effect}_None"))
    posing = {"allow": [{**reason("effects.gate_satisfied"), "details": {"clauses": []}}]}
    with engines.with_probe(ALLOW) as allowing, engines.with_probe(posing) as other:
        without, allowed, refused = engines.plain[body], allowing.decide_body(body), other.decide_body(body)

    assert (without.verdict, without.codes) == ("DENY", ("decision.nothing_allows",))
    assert (allowed.verdict, allowed.codes) == ("STEP_UP", ("approvals.required",))
    assert (refused.verdict, refused.codes) == ("DENY", ("decision.nothing_allows",))


@pytest.mark.parametrize("root", ["authz", "custom", "config", "manifests"])
def test_data_cannot_pose_as_policy_for_opa_either(engines: Engines, opa: Path, root: str) -> None:
    """Trap 18 for the sidecar; the other ways in are tested with bundles and the embedded engine."""
    data = {root: {"concerns": {"zz": {"allow": ["x"]}}}}
    with pytest.raises(UsageError) as caught, local_opa(opa, bundle=engines.probing, data=data):
        pass

    assert str(caught.value) == f"data: the root `{root}` is not admitted (only directory and settings are)"
