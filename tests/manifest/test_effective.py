"""Tests of the effective manifest, which merges manifest and governance file, and of the digest of this manifest."""

import json
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pdp.errors import UsageError
from pdp.json import canonical, digest
from pdp.manifest.diff import Direction, entry_changes
from pdp.manifest.effective import effective_manifest, effective_tool, merged_fields
from pdp.manifest.fields import (
    ArgumentRole,
    EffectClass,
    FlowProfile,
    FlowRule,
    Integrity,
    Otherwise,
    RiskTier,
    Writes,
)
from pdp.manifest.load import load_effective, load_manifest
from pdp.manifest.model import ActionRules, DeclaredTool, Governance, Manifest
from tests.support import ROOT

EXAMPLES = ROOT / "examples"
SCHEMA = {"type": "object", "properties": {"amount": {"type": "number"}, "sum": {"type": "number"}}}


def declared(**fields: Any) -> DeclaredTool:
    return DeclaredTool.model_validate({"name": "pay_bill", "schema": SCHEMA, **fields})


def merged(manifest: dict[str, Any], governance: dict[str, Any] | None) -> dict[str, Any]:
    actions = {} if governance is None else {"pay_bill": ActionRules.model_validate(governance)}
    whole = effective_manifest(
        Manifest(manifest_version="1", tools=(declared(**manifest),)), Governance(actions=actions)
    )
    entry: dict[str, Any] = whole.document["tools"]["pay_bill"]
    return {name: value for name, value in entry.items() if name not in ("name", "id", "pdp_action", "contract")}


# An entry has the expiry as a text and also in seconds, because policies compare numbers.
IN: dict[str, dict[str, Any]] = {
    text: {"expires": text, "expires_seconds": seconds}
    for text, seconds in (("PT1H", 3600), ("PT2H", 7200), ("PT5M", 300))
}
DEFAULTS: dict[str, Any] = {
    "risk_tier": "high",
    "scopes": [],
    "limits": [],
    "idempotency": {"required": False},
    "approval": {"quorum": 1, "expires": "PT1H", "expires_seconds": 3600, "unless_within_limits": True},
    "provenance": {"required": []},
    "writes": "none",
}


def test_manifest_and_governance_file_of_the_payments_example_merge_as_documented() -> None:
    effective = load_effective(EXAMPLES / "payments" / "manifest.json", EXAMPLES / "payments" / "governance.yaml")
    wire = dict(effective.document["tools"]["initiate_wire"])

    assert wire.pop("contract").startswith("sha256:")
    assert wire == {
        "name": "initiate_wire",
        "id": "tool.initiate_wire",
        "pdp_action": "initiate_wire",
        "risk_tier": "high",
        "scopes": ["payments.wire.initiate"],
        "limits": [{"limit": "wire.auto_approved", "argument": "amount"}],
        "idempotency": {"required": True},
        "approval": {
            "approvers": ["payments.approver"], "quorum": 1, "expires": "PT1H", "expires_seconds": 3600,
            "unless_within_limits": True,
        },
        "provenance": {"required": []},
        "writes": "none",
    }  # fmt: skip
    assert effective.version == effective.document["manifest_version"] == "2026.07.1"
    assert list(effective.tools) == ["lookup_beneficiary", "validate_payment", "initiate_wire"]
    assert effective.tools["initiate_wire"].resource == {"type": "wire_payment", "id": "$arguments.beneficiary_id"}
    assert effective.digest == digest(canonical(effective.document))
    assert "agents" not in effective.document


def test_manifest_merge_adds_only_fields_that_have_defaults() -> None:
    assert merged({}, None) == DEFAULTS
    assert merged({}, {}) == DEFAULTS


@pytest.mark.parametrize(
    ("effect_class", "tier"),
    [
        (None, "high"), ("pure", "low"), ("read-internal", "low"), ("read-external", "medium"), ("stage", "medium"),
        ("commit-low", "medium"), ("commit-high", "high"),
    ],
)  # fmt: skip
def test_default_risk_tier_depends_on_the_effect_class(effect_class: str | None, tier: str) -> None:
    fields = {} if effect_class is None else {"effect_class": effect_class}

    assert merged(fields, None)["risk_tier"] == merged({}, fields)["risk_tier"] == tier
    assert merged({**fields, "risk_tier": "low"}, None)["risk_tier"] == "low"


@pytest.mark.parametrize(
    ("manifest", "governance", "entry"),
    [
        ({}, {"risk_tier": "low"}, {"risk_tier": "low"}),
        ({"risk_tier": "low"}, {"risk_tier": "medium"}, {"risk_tier": "medium"}),
        ({"risk_tier": "high"}, {"risk_tier": "low"}, {"risk_tier": "high"}),
        ({"scopes": ["b"]}, {"scopes": ["a", "b"]}, {"scopes": ["a", "b"]}),
        ({"markings": ["b", "a"]}, {"markings": ["b", "c"]}, {"markings": ["b"]}),
        ({"markings": ["a"]}, {"markings": ["b"]}, {"markings": []}),
        ({"markings": []}, {}, {"markings": []}),
        ({"purposes": ["a"]}, {"purposes": ["b"]}, {"purposes": []}),
        ({}, {"purposes": ["b", "a"]}, {"purposes": ["a", "b"]}),
        ({"writes": "proposal"}, {"writes": "none"}, {"writes": "proposal"}),
        ({"provenance": {"required": ["sum"]}}, {"provenance": {"required": ["amount"]}},
         {"provenance": {"required": ["amount", "sum"]}}),
        ({"limits": [{"limit": "b", "argument": "sum"}]},
         {"limits": [{"limit": "a", "argument": "sum"}, {"limit": "b", "argument": "sum"}]},
         {"limits": [{"limit": "a", "argument": "sum"}, {"limit": "b", "argument": "sum"}]}),
        ({"idempotency": {"required": False, "ttl": "PT2H"}}, {"idempotency": {"required": True, "ttl": "PT1H"}},
         {"idempotency": {"required": True, "ttl": "PT2H"}}),
        ({"idempotency": {"key": "derive(args)"}}, {"idempotency": {}},
         {"idempotency": {"required": True, "key": "derive(args)"}}),
        ({"effect_class": "stage"}, {"effect_class": "read-external"},
         {"effect_class": "stage", "risk_tier": "medium",
          "approval": {"quorum": 1, **IN["PT1H"], "unless_within_limits": False}}),
        ({}, {"effect_class": "commit-high", "approval": {"unless_within_limits": True}},
         {"effect_class": "commit-high", "approval": {"quorum": 1, **IN["PT1H"], "unless_within_limits": True}}),
        ({"approval": {"approvers": ["a", "b"], "quorum": 1, "expires": "P1D", "unless_within_limits": True}},
         {"approval": {"approvers": ["b"], "quorum": 2, "expires": "PT2H", "unless_within_limits": False}},
         {"approval": {"approvers": ["b"], "quorum": 2, **IN["PT2H"], "unless_within_limits": False}}),
        ({"approval": {"approvers": ["a"]}}, {"approval": {"approvers": ["b"]}},
         {"approval": {"approvers": [], "quorum": 1, **IN["PT1H"], "unless_within_limits": True}}),
        ({"approval": {"quorum": 3}}, {"approval": {"expires": "PT5M"}},
         {"approval": {"quorum": 3, **IN["PT5M"], "unless_within_limits": True}}),
        ({"version": "1.0.0", "pattern": "lookup", "release": {"gate": "passed", "drift": "ok"}}, {},
         {"version": "1.0.0", "pattern": "lookup", "release": {"gate": "passed", "drift": "ok"}}),
        ({"destructive": False}, {"destructive": True}, {"destructive": True}),
        ({"destructive": True}, {}, {"destructive": True}),
    ],
)  # fmt: skip
def test_merged_field_has_the_stricter_value_of_manifest_and_governance_file(
    manifest: dict[str, Any], governance: dict[str, Any], entry: dict[str, Any]
) -> None:
    assert merged(manifest, governance) == DEFAULTS | entry


BALANCED = {"flow": {"profile": "balanced"}}


@pytest.mark.parametrize(
    ("manifest", "governance", "labels"),
    [
        ({"result": {}}, {}, {"result": {}, **BALANCED}),
        ({"result": {"integrity": "trusted", "trusted": ["/b", "/a"]}}, {"result": {"markings": ["m"]}},
         {"result": {"integrity": "trusted", "trusted": ["/a", "/b"], "markings": ["m"]}, **BALANCED}),
        ({"result": {"integrity": "trusted", "trusted": ["/a", "/b"], "parties": ["/c"], "names": ["/d"],
                     "created": ["/e"], "markings": ["n"]}},
         {"result": {"integrity": "untrusted", "trusted": ["/b", ""], "parties": [], "names": ["/d", "/*/d"],
                     "created": ["/f"], "markings": ["m"]}},
         {"result": {"integrity": "untrusted", "trusted": ["/b"], "parties": [], "names": ["/d"], "created": [],
                     "markings": ["m", "n"]}, **BALANCED}),
        ({"roles": {"amount": "value", "sum": "body"}}, {"roles": {"sum": "destination"}},
         {"roles": {"amount": "value", "sum": "destination"}, **BALANCED}),
        ({"admits": ["b", "a"]}, {"admits": ["b", "c"]}, {"admits": ["b"], **BALANCED}),
        ({}, {"admits": []}, {"admits": [], **BALANCED}),
        ({"flow": {"profile": "balanced"}}, {"flow": {"profile": "watch"}}, BALANCED),
        ({"flow": {"rules": ["not_anchored"], "otherwise": "step_up"}},
         {"flow": {"profile": "strict", "rules": ["egress"], "otherwise": "deny"}},
         {"flow": {"profile": "strict", "rules": ["egress", "not_anchored"], "otherwise": "deny"}}),
        ({}, {"flow": {"rules": ["off_plan", "egress"]}},
         {"flow": {"profile": "balanced", "rules": ["egress", "off_plan"]}}),
    ],
)  # fmt: skip
def test_merged_tool_has_the_stricter_labels_of_manifest_and_governance_file(
    manifest: dict[str, Any], governance: dict[str, Any], labels: dict[str, Any]
) -> None:
    assert merged(manifest, governance) == DEFAULTS | labels


def test_every_tool_gets_a_flow_profile_if_one_tool_has_labels() -> None:
    others = (declared(name="pay_tax"), declared(name="pay_fee", destructive=True))
    plain = effective_manifest(Manifest(manifest_version="1", tools=others))
    labelled = effective_manifest(Manifest(manifest_version="1", tools=(declared(roles={"sum": "value"}), *others)))

    assert (plain.tracks_flow, [tool.flow for tool in plain.tools.values()]) == (False, [None, None])
    assert labelled.tracks_flow
    assert [entry["flow"] for entry in labelled.document["tools"].values()] == [{"profile": "balanced"}] * 3


def test_top_level_flow_of_the_governance_file_is_the_default_of_all_tools() -> None:
    tools = (declared(), declared(name="pay_tax"), declared(name="pay_fee", flow={"profile": "strict"}))
    flow = {"profile": "balanced", "rules": ["egress"], "otherwise": "deny"}
    actions = {"pay_tax": {"scopes": ["tax"], "flow": {"profile": "watch", "rules": []}}}

    whole = effective_manifest(
        Manifest(manifest_version="1", tools=tools), Governance.model_validate({"actions": actions, "flow": flow})
    )

    assert {name: entry["flow"] for name, entry in whole.document["tools"].items()} == {
        "pay_bill": flow,
        "pay_tax": {"profile": "watch", "rules": [], "otherwise": "deny"},
        "pay_fee": {**flow, "profile": "strict"},
    }
    assert whole.tools["pay_tax"].scopes == ("tax",)


def test_governance_file_overrides_single_keys_of_a_mapping_in_the_manifest() -> None:
    tool = effective_tool(
        declared(resource={"type": "bill", "id": "x"}, context={"amount": "$arguments.amount", "region": "eu"}),
        ActionRules(resource={"id": "$arguments.bill"}, context={"amount": "$arguments.sum"}),
    )

    assert tool.resource == {"type": "bill", "id": "$arguments.bill"}
    assert tool.context == {"amount": "$arguments.sum", "region": "eu"}


def test_governance_rules_apply_to_every_tool_with_the_named_action() -> None:
    manifest = Manifest(
        manifest_version="1", tools=(declared(pdp_action="pay"), declared(name="pay_tax", pdp_action="pay"))
    )
    rules = Governance(actions={"pay": ActionRules(scopes=("pay",)), "pay_bill": ActionRules(scopes=("never",))})

    tools = effective_manifest(manifest, rules).tools

    assert [(tool.name, tool.pdp_action, tool.scopes) for tool in tools.values()] == [
        ("pay_bill", "pay", ("pay",)),
        ("pay_tax", "pay", ("pay",)),
    ]


def test_effective_manifest_lists_pinned_versions_by_agent() -> None:
    agents = [{"id": "agent:b", "tools": {"pay_bill": "1.0.0"}}, {"id": "agent:a", "tools": {}}]
    pinned = Manifest.model_validate({"manifest_version": "1", "agents": agents, "tools": [declared(version="1.0.0")]})
    nobody = Manifest.model_validate({"manifest_version": "1", "agents": [], "tools": []})

    assert effective_manifest(pinned).document["agents"] == {"agent:a": {}, "agent:b": {"pay_bill": "1.0.0"}}
    assert effective_manifest(nobody).document == {"manifest_version": "1", "agents": {}, "tools": {}}


def test_duplicate_tool_name_is_an_error() -> None:
    with pytest.raises(UsageError, match="tool pay_bill is declared twice"):
        effective_manifest(Manifest(manifest_version="1", tools=(declared(), declared())))


def test_effective_manifest_is_immutable() -> None:
    effective = effective_manifest(Manifest(manifest_version="1", tools=(declared(),)))

    with pytest.raises(AttributeError):
        effective.version = "2"  # type: ignore[misc]
    with pytest.raises(TypeError):
        effective.tools["x"] = effective.tools["pay_bill"]  # type: ignore[index]
    with pytest.raises(ValueError, match="frozen"):
        effective.tools["pay_bill"].scopes = ()  # type: ignore[misc]


# The digest of an effective manifest


def digest_of(tool: dict[str, Any], **fields: Any) -> str:
    return effective_manifest(Manifest.model_validate({"manifest_version": "1", "tools": [tool], **fields})).digest


FULL: dict[str, Any] = {
    "name": "pay_bill", "id": "tool.pay_bill", "pdp_action": "pay_bill", "schema": SCHEMA, "scopes": ["b", "a"],
    "markings": ["y", "x"], "purposes": ["q", "p"], "risk_tier": "high", "idempotency": {"required": False},
    "limits": [{"limit": "b", "argument": "amount"}, {"limit": "a", "argument": "amount"}],
    "approval": {"approvers": ["n", "m"], "quorum": 1, "expires": "PT60M"},
    "provenance": {"required": ["sum", "amount"]}, "sensitive": ["sum", "amount"], "safety": {"requires": ["b", "a"]},
    "state": {"reads": ["b", "a"]}, "timeout": "PT60S", "context": {"a": 1.0, "b": "x"},
}  # fmt: skip


def test_manifest_digest_ignores_order_repetition_and_notation_of_values() -> None:
    other = {
        "context": {"b": "x", "a": 1}, "timeout": "PT1M", "state": {"reads": ["a", "b"]},
        "safety": {"requires": ["a", "b"]}, "sensitive": ["amount", "sum", "sum"],
        "provenance": {"required": ["amount", "sum"]},
        "approval": {"approvers": ["m", "n"], "expires": "PT1H", "unless_within_limits": True},
        "limits": [{"argument": "amount", "limit": "a"}, {"argument": "amount", "limit": "b"}],
        "purposes": ["p", "q"], "markings": ["x", "y", "x"], "scopes": ["a", "b", "a"], "name": "pay_bill",
        "schema": {"properties": {"sum": {"type": "number"}, "amount": {"type": "number"}}, "type": "object"},
    }  # fmt: skip

    assert digest_of(FULL) == digest_of(other)
    assert len({digest_of(FULL), digest_of(FULL, manifest_version="2"), digest_of(FULL, agents=[])}) == 3
    manifest = load_manifest(EXAMPLES / "payments" / "manifest.json")
    turned = manifest.model_copy(update={"tools": tuple(reversed(manifest.tools))})
    assert effective_manifest(manifest).digest == effective_manifest(turned).digest


def test_yaml_json_and_camel_case_have_the_same_digest() -> None:
    content = json.loads((EXAMPLES / "payments" / "manifest.json").read_text())
    as_yaml = yaml.safe_dump(content).encode()
    for entry in content["tools"]:
        entry["riskTier"], entry["pdpAction"] = entry.pop("risk_tier"), entry.pop("pdp_action")
    content["manifestVersion"] = content.pop("manifest_version")

    digests = {
        load_effective(EXAMPLES / "payments" / "manifest.json").digest,
        load_effective("m.yaml", manifest_text=as_yaml).digest,
        load_effective("m.json", manifest_text=json.dumps(content).encode()).digest,
    }

    assert len(digests) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scopes", ["a"]), ("scopes", []), ("risk_tier", "low"), ("schema", {"type": "object"}), ("description", "x"),
        ("context", {"a": 2, "b": "x"}), ("context", None), ("resource", {"type": "t", "id": "i"}),
        ("timeout", "PT61S"), ("sensitive", ["sum"]), ("purposes", None), ("purposes", []), ("version", "1.0.0"),
        ("effect_class", "pure"), ("retries", 1), ("result_schema", {"type": "object"}), ("compensation", "x"),
        ("idempotency", {"required": True}), ("invariants", [{"id": "A", "rule": "r", "check": "true"}]),
        ("writes", "proposal"), ("type", "cli"), ("max_bytes", 100), ("result", {}), ("roles", {"sum": "value"}),
        ("admits", []), ("destructive", False), ("flow", {"profile": "watch"}),
    ],
)  # fmt: skip
def test_manifest_digest_changes_with_every_field(field: str, value: Any) -> None:
    changed = {name: one for name, one in {**FULL, field: value}.items() if one is not None}

    assert digest_of(changed) != digest_of(FULL)


# Properties of the merge


def _terms() -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from("abcd"), max_size=4)


_DURATIONS = st.sampled_from(["PT1M", "PT60M", "PT1H", "P1D", "P1W", "PT0.5S"])
_APPROVALS = st.fixed_dictionaries(
    {},
    optional={
        "approvers": _terms(), "quorum": st.integers(1, 4), "expires": _DURATIONS,
        "unless_within_limits": st.booleans(),
    },
)  # fmt: skip
_IDEMPOTENCY = st.fixed_dictionaries(
    {}, optional={"required": st.booleans(), "key": st.just("derive(args)"), "ttl": _DURATIONS}
)
_LIMIT = st.fixed_dictionaries({"limit": st.sampled_from("ab"), "argument": st.sampled_from("cd")})
_PATHS = st.lists(st.sampled_from(["", "/a", "/b", "/*"]), max_size=3)
_LABELS = st.fixed_dictionaries(
    {},
    optional={
        "integrity": st.sampled_from([*map(str, Integrity)]),
        **dict.fromkeys(("trusted", "parties", "names", "created"), _PATHS),
        "markings": _terms(),
    },
)
_FLOW = st.fixed_dictionaries(
    {},
    optional={
        "profile": st.sampled_from([*map(str, FlowProfile)]),
        "rules": st.lists(st.sampled_from(get_args(FlowRule)), max_size=3),
        "otherwise": st.sampled_from([*map(str, Otherwise)]),
    },
)
_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "effect_class": st.sampled_from([*map(str, EffectClass)]),
        "risk_tier": st.sampled_from([*map(str, RiskTier)]),
        "scopes": _terms(), "markings": _terms(), "purposes": _terms(), "sensitive": _terms(),
        "max_bytes": st.integers(1, 2**20),
        "idempotency": _IDEMPOTENCY,
        "limits": st.lists(_LIMIT, max_size=3),
        "resource": st.dictionaries(st.sampled_from(["type", "id", "owner"]), st.sampled_from("ab"), min_size=1),
        "context": st.dictionaries(st.sampled_from("ab"), st.sampled_from("cd")),
        "approval": _APPROVALS,
        "provenance": st.fixed_dictionaries({}, optional={"required": _terms()}),
        "writes": st.sampled_from([*map(str, Writes)]),
        "result": _LABELS,
        "roles": st.dictionaries(st.sampled_from(["amount", "sum"]), st.sampled_from([*map(str, ArgumentRole)])),
        "admits": _terms(), "destructive": st.booleans(),
        "flow": _FLOW,
    },
)  # fmt: skip


# A merge may loosen the policy in these fields: a marking both allows and restricts, the governance file overrides
# mappings and roles, and the effect of `parties` depends on the other labels. A tool without scopes or limits gets
# those of the governance file, with which people may call it.
_EITHER_WAY = ("context", "idempotency.key", "limits", "markings", "resource", "result.parties", "roles", "scopes")


def _states(fields: dict[str, Any], name: str) -> bool:
    field, _, inner = name.partition(".")
    return field in fields and (not inner or not isinstance(fields[field], dict) or inner in fields[field])


@given(_FIELDS, _FIELDS)
@settings(max_examples=60)
def test_merge_with_a_governance_file_never_loosens_a_tool_and_can_be_repeated(
    manifest: dict[str, Any], governance: dict[str, Any]
) -> None:
    tool, rules = declared(**manifest), ActionRules.model_validate(governance)
    effective = effective_tool(tool, rules)
    for stated, side in ((manifest, effective_tool(tool, None)), (governance, effective_tool(declared(), rules))):
        before, after = (one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in (side, effective))
        changes = entry_changes("pay_bill", before, after)
        loosened = {change.name for change in changes if change.direction is Direction.LOOSENS}
        assert [name for name in loosened if _states(stated, name) and not name.startswith(_EITHER_WAY)] == []
    assert effective_tool(effective, rules) == effective


@given(_FIELDS, _FIELDS)
@settings(max_examples=20)
def test_swapping_manifest_and_governance_values_changes_only_merged_mappings_and_roles(
    manifest: dict[str, Any], governance: dict[str, Any]
) -> None:
    for fields in (manifest, governance):
        for name in ("resource", "context", "roles"):
            fields.pop(name, None)

    one = merged_fields(declared(**manifest), ActionRules.model_validate(governance))
    other = merged_fields(declared(**governance), ActionRules.model_validate(manifest))

    assert one == other
