"""The six contract clauses, for each tool."""

from __future__ import annotations

from typing import Any

from pdp.manifest.effective import effective_manifest
from pdp.manifest.load import load_effective
from pdp.manifest.model import Manifest
from pdp.manifest.rules.lint import Clause, lint
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
        "typed": ("`result_schema`",),
        "versioned": ("`version`", "`agents` that pin it"),
        "idempotent": ("`idempotency`, or an effect class without side effects",),
        "permissioned": ("`scopes`", "`markings`", "`purposes`", NOBODY),
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
