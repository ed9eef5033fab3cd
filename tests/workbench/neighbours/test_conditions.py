"""Conditions of rules are computed up to a size of the rules, so that they are the same on every machine."""

from pathlib import Path

import pytest

from pdp.engine.bundle.file import baseline_bundle_path, read_bundle
from pdp.workbench.diff.policies import BundleRules
from pdp.workbench.neighbours.conditions import RuleSizes, alternatives
from pdp.workbench.neighbours.vocabulary import Policy

pytestmark = pytest.mark.opa

APPROVALS = "authz/concerns/approvals/approvals.rego"


def test_conditions_of_rules_with_too_many_alternatives_are_left_out_and_named(opa: Path) -> None:
    bundle = read_bundle(baseline_bundle_path())
    policy = Policy(BundleRules(bundle, "baseline", opa).trees, {})

    found = alternatives(opa, policy, bundle.modules, [APPROVALS], timeout=60)

    assert found.left_out == ("authz.concerns.approvals.deny", "authz.concerns.approvals.step_up")
    assert len(found.alternatives) > 30
    sizes = RuleSizes(policy.trees)
    # Both rules use an approval, which is valid in many ways.
    assert sizes.of("authz.lib.approval.valid") > 20_000
    assert sizes.of("authz.concerns.scopes.deny") < 10


def test_conditions_that_opa_does_not_compute_in_time_are_named(opa: Path) -> None:
    bundle = read_bundle(baseline_bundle_path())
    policy = Policy(BundleRules(bundle, "baseline", opa).trees, {})

    found = alternatives(opa, policy, bundle.modules, ["authz/concerns/scopes/scopes.rego"], timeout=0.001)

    assert (found.alternatives, found.left_out) == ({}, ("authz.concerns.scopes.deny",))
