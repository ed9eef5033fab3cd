"""Forty rules are renamed, and one of these rules gets an exemption. The bundle diff shows only the exemption."""

from pathlib import Path

import pytest

from pdp.opa.build import compile_bundle
from pdp.opa.modules import baseline_policies_path
from pdp.workbench.diff.bundle_diff import bundle_diff
from pdp.workbench.diff.result import BundleDiff
from pdp.workbench.scenarios.files.suite import load_suite
from tests.support.payments import EXAMPLE, effective

pytestmark = [pytest.mark.opa, pytest.mark.process]

CALLS = 300
RULES = 40
EXEMPT = 17
CONCERN = Path(__file__).with_name("accounts.rego").read_text()


def built(folder: Path, opa: Path, prefix: str, exemption: str = "") -> Path:
    """Build a bundle of the payments example in which forty accounts are closed. Each account has a separate rule."""
    rules = [
        f"_closed if {prefix}{number:02}\n\n{prefix}{number:02} if {{\n"
        f'\tinput.context.arguments.source_account == "acct-{number}"\n{exemption if number == EXEMPT else ""}}}\n'
        for number in range(RULES)
    ]
    rego = folder / f"own{prefix}/custom/concerns/accounts/accounts.rego"
    rego.parent.mkdir(parents=True)
    rego.write_text("\n".join((CONCERN, *rules)))
    file = folder / f"bundle{prefix}.tar.gz"
    policies = [baseline_policies_path(), EXAMPLE / "policies", folder / f"own{prefix}"]
    manifests = {effective().digest: effective().document}
    file.write_bytes(compile_bundle(policies=policies, release=1, opa=opa, manifests=manifests))
    return file


def compared(folder: Path, opa: Path, exemption: str = "") -> BundleDiff:
    old, new = built(folder, opa, "_account_"), built(folder, opa, "_closed_", exemption)
    return bundle_diff(old, new, suites=[load_suite(EXAMPLE / "scenarios.yaml")], most=CALLS)


def test_bundle_diff_of_renamed_rules_shows_no_difference(tmp_path: Path, opa: Path) -> None:
    diff = compared(tmp_path, opa)

    assert (diff.structure.rules, diff.groups, diff.loosenings()) == ((), (), {})


def test_bundle_diff_reports_an_exemption_among_renamed_rules(tmp_path: Path, opa: Path) -> None:
    diff = compared(tmp_path, opa, '\tinput.subject.id != "clerk-7"\n')

    exempt = {f"custom.concerns.accounts {prefix}{EXEMPT}" for prefix in ("_account_", "_closed_")}
    changed = {change.name for change in diff.structure.rules}
    assert changed & exempt
    assert diff.loosenings() or any(f"_closed_{EXEMPT}" in place for place in diff.unseen().values())
