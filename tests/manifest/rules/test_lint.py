"""The six contract clauses, for each tool."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from pdp.errors import FileFaultsError
from pdp.manifest.effective import effective_manifest
from pdp.manifest.fields import Clause
from pdp.manifest.load import load_effective
from pdp.manifest.model import Manifest
from pdp.manifest.rules.lint import lint
from tests.support import ROOT

EXAMPLES = ROOT / "examples"

NOBODY = "`approval.approvers`: nobody could grant what it asks for"


def missing(agents: Any = None, **fields: Any) -> dict[str, tuple[str, ...]]:
    """Lint one tool; return what it misses, by clause, where it misses something."""
    tool = {"name": "pay_bill", "schema": {"type": "object"}, **fields}
    manifest = Manifest.model_validate({"manifest_version": "1", "agents": agents, "tools": [tool]})
    (contract,) = lint(effective_manifest(manifest))
    return {clause.value: what for clause, what in contract.missing.items() if what}


def test_a_tool_that_meets_every_clause() -> None:
    assert (
        missing(
            agents=[{"id": "a", "tools": {"pay_bill": "1.0.0"}}],
            result_schema={"type": "object"},
            ontology_pin="2026.1",
            effect_class="stage",
            version="1.0.0",
            idempotency={"required": True},
            scopes=["bills.pay"],
            markings=[],
            purposes=["bills"],
            approval={"approvers": ["bills.approver"]},
            eval_pack="pack",
            release={"gate": "passed", "drift": "ok"},
        )
        == {}
    )


def test_a_tool_that_states_nothing() -> None:
    assert missing() == {
        "typed": ("`result_schema`", "`ontology_pin`"),
        "versioned": ("`version`", "`agents` that pin it"),
        "idempotent": ("`idempotency`, or an effect class without side effects",),
        "permissioned": ("`effect_class`", "`scopes`", "`markings`", "`purposes`", NOBODY),
        "eval-gated": ("`eval_pack`", "`release`"),
    }


def test_what_makes_a_tool_idempotent() -> None:
    for fields in (
        {"idempotency": {"required": True}},
        {"effect_class": "pure"},
        {"effect_class": "read-external"},
        {"safety": {"idempotent": True}},
    ):
        assert "idempotent" not in missing(**fields)
    for fields in ({"effect_class": "stage"}, {"safety": {"idempotent": False}}, {"idempotency": {"required": False}}):
        assert "idempotent" in missing(**fields)


def test_a_tool_that_may_ask_for_approval_names_who_may_grant_it() -> None:
    limit = [{"limit": "bills.auto", "argument": "amount"}]
    for fields in ({}, {"risk_tier": "low", "effect_class": "commit-high"}, {"risk_tier": "low", "limits": limit}):
        assert NOBODY in missing(**fields)["permissioned"]
        assert NOBODY not in missing(**fields, approval={"approvers": ["bills.approver"]})["permissioned"]
    assert NOBODY not in missing(risk_tier="medium", effect_class="commit-low")["permissioned"]


def test_a_version_has_to_be_pinned() -> None:
    assert missing(version="1.0.0", agents=[])["versioned"] == ("an agent that pins it",)


WHOLE: dict[str, Any] = {
    "name": "look_up", "version": "1.0.0", "effect_class": "read-internal", "scopes": ["a"], "markings": [],
    "purposes": ["b"], "schema": {"type": "object"}, "result_schema": {"type": "object"}, "eval_pack": "pack",
    "ontology_pin": "2026.1", "release": {"gate": "passed", "drift": "ok"},
}  # fmt: skip
AGENTS = [{"id": "agent:a", "tools": {"look_up": "1.0.0"}}]


def refused(manifest: dict[str, Any], clauses: list[str]) -> list[str]:
    """Load a manifest under a governance file that demands clauses; return what is wrong."""
    governance = orjson.dumps({"clauses": clauses})
    try:
        load_effective("m.json", "g.json", manifest_text=orjson.dumps(manifest), governance_text=governance)
    except FileFaultsError as error:
        return [fault.message for fault in error.faults]
    return []


@pytest.mark.parametrize(
    ("changes", "clause", "lacks"),
    [
        ({}, "typed", None),
        ({"result_schema": None}, "typed", "`result_schema`"),
        ({"ontology_pin": None}, "typed", "`ontology_pin`"),
        ({"version": None}, "versioned", "`version`"),
        ({"effect_class": None}, "idempotent", "`idempotency`, or an effect class without side effects"),
        ({"effect_class": None, "risk_tier": "low"}, "permissioned", "`effect_class`"),
        ({"scopes": None, "purposes": None}, "permissioned", "`scopes`, no `purposes`"),
        ({"eval_pack": None}, "eval-gated", "`eval_pack`"),
    ],
)
def test_the_governance_file_demands_clauses_and_what_misses_one_does_not_load(
    changes: dict[str, Any], clause: str, lacks: str | None
) -> None:
    stated = {name: value for name, value in {**WHOLE, **changes}.items() if value is not None}
    pinning = {} if "version" in changes else {"agents": AGENTS}
    manifest = {"manifest_version": "1", "ontology": "2026.1", "tools": [stated], **pinning}
    message = f"`look_up` is not {clause}, as the governance file demands: it has no {lacks}"
    pins = ", no `agents` that pin it" if "version" in changes else ""

    assert refused(manifest, [clause]) == ([message + pins] if lacks else [])
    assert refused(manifest, [] if lacks else list(Clause)) == []


def test_signatures_are_typed_by_the_ontology_that_the_manifest_has() -> None:
    """An entry is pinned to its version, and clause typed asks for both."""
    manifest = {"manifest_version": "1", "ontology": "2026.2", "tools": [WHOLE]}
    assert refused(manifest, []) == ["`look_up` is pinned to another ontology than `2026.2`, the manifest's"]
    del manifest["ontology"]
    assert refused(manifest, []) == []
    assert refused(manifest, ["typed"]) == [
        "`look_up` is not typed, as the governance file demands: it has no `ontology` of its manifest"
    ]


def test_the_examples() -> None:
    payments = lint(load_effective(EXAMPLES / "payments" / "manifest.json", EXAMPLES / "payments" / "governance.yaml"))
    (record,) = lint(load_effective(EXAMPLES / "registry" / "manifest.yaml"))

    assert [(one.tool, one.met) for one in payments] == [
        ("lookup_beneficiary", (Clause.AUDITED,)),
        ("validate_payment", (Clause.AUDITED,)),
        ("initiate_wire", (Clause.IDEMPOTENT, Clause.AUDITED)),
    ]
    assert {clause.value: what for clause, what in record.missing.items() if what} == {
        "versioned": ("`agents` that pin it",),
    }
