"""With the extra `proof`, a bundle diff is silent about refactorings, and shows the proof of other changes."""

import sys
from pathlib import Path

import pytest

from pdp.engine.bundle.file import pack_bundle, read_bundle
from pdp.workbench.diff.bundle_diff import bundle_diff
from pdp.workbench.diff.reports import markdown, text_lines, verdict
from pdp.workbench.diff.result import BundleDiff
from pdp.workbench.diff.structure import Proof
from pdp.workbench.gate.gate import NAMES, Gate, release_check
from pdp.workbench.scenarios.files.suite import load_suite
from pdp.workbench.shown_file import markdown_text
from tests.support.payments import BUNDLE, EXAMPLE
from tests.workbench.diff.test_bundle_diff import CLEAR, SANCTIONS, compiled
from tests.workbench.diff.test_causes import NIGHT

pytest.importorskip("z3")

pytestmark = pytest.mark.opa

OWN = f"own/{SANCTIONS}"
SCOPES = "policies/authz/concerns/scopes/scopes.rego"
RISK = "policies/authz/concerns/risk/risk.rego"
IDEMPOTENCY = "policies/authz/concerns/idempotency/idempotency.rego"
KEY = "\tnot _keyed\n"
CALLS = 300
APPROVAL = "policies/authz/lib/approval/approval.rego"
PARTS = "\tshape.named(approval.id)\n\tshape.named(approval.call_digest)\n"
NAMED = '_levels := {"high", "low", "medium"}'
LEVELS = 'manifest.entry.risk_tier in {"low", "medium", "high"}\n}'


def test_refactorings_are_silent_and_pass_the_gate(tmp_path: Path, opa: Path) -> None:
    new = compiled(
        tmp_path, opa,
        (SCOPES, "\tcount(missing) > 0\n}", "\t_any(missing)\n}\n\n_any(list) if count(list) > 0"),
        (RISK, LEVELS, f"some level in _levels\n\tlevel == manifest.entry.risk_tier\n}}\n\n{NAMED}"),
        (APPROVAL, PARTS, "\t_named(approval)\n"),
        (APPROVAL, "_issuer(null)\n", f"_named(approval) if {{\n{PARTS}}}\n\n_issuer(null)\n"),
        (OWN, CLEAR, 'default _clear := false\n\n_clear if "clear" == input.context.sanctions_status'),
    )  # fmt: skip

    diff = bundle_diff(BUNDLE, new, most=CALLS)

    assert set(diff.structure.proofs.values()) == {Proof("equal")}
    assert len(diff.structure.rules) >= 7
    assert (diff.differs, diff.review, diff.unseen(), diff.groups) == (False, (), {}, ())
    assert verdict(diff) == "no difference that can change a decision"
    assert [diff.fails(when) for when in ("wider", "loosening", "not-proved", "any")] == [False] * 4
    said = f"{len(diff.structure.rules)} equal (proved); for all data and for requests that shape.valid admits"
    assert f"proofs of changed rules: {said}" in text_lines(diff)
    skip = [name for name in NAMES if name != "loosening"]
    suite = load_suite(EXAMPLE / "scenarios.yaml")
    checked = release_check(Gate(new, [suite], last=older(tmp_path), skip=skip, generate=CALLS))
    assert [check.reasons for check in checked.checks if check.name == "loosening"] == [()]


def older(folder: Path) -> Path:
    """Return the example's bundle as release 1."""
    bundle = read_bundle(BUNDLE)
    file = folder / "older.tar.gz"
    file.write_bytes(pack_bundle(release=1, wasm=bundle.wasm, data=bundle.data, modules=bundle.modules))
    return file


HELPER = "custom.concerns.sanctions _clear"
MARKINGS = "policies/authz/concerns/markings/markings.rego"


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory, opa: Path) -> BundleDiff:
    """Return the diff of a bundle with a stricter helper and two weaker denials. The prover can break one of them."""
    new = compiled(
        tmp_path_factory.mktemp("others"), opa,
        (OWN, CLEAR, f'_clear if {{\n\t{CLEAR.removeprefix("_clear if ")}\n\tinput.subject.id != "mallory"\n}}'),
        (SCOPES, "count(missing) > 0", 'count(missing) > 0\n\tstrings.reverse(input.subject.id) != "yrollam"'),
        (IDEMPOTENCY, KEY, f'{KEY}\tnot substring(input.subject.id, 3, 4) == "lary"\n'),
    )  # fmt: skip
    return bundle_diff(BUNDLE, new, most=CALLS)


def test_each_rule_is_shown_with_the_answer_of_the_prover(others: BundleDiff) -> None:
    items = {item.sentence.partition(" was changed")[0]: item for item in others.review}

    helper, wider, denial = (
        items[what] for what in ("The helper _clear of sanctions", "A rule of scopes", "A rule of idempotency")
    )
    assert (helper.direction, helper.proof, helper.ids) == ("tightens", "narrower (proved)", ())
    assert "DENY sanctions.not_clear" in helper.call
    # No generated call has this subject. The prover asks the engine what the function returns.
    assert (wider.direction, wider.proof.partition(" ")[0]) == ("loosens", "wider:")
    assert "subject.id mallory" in wider.proof
    assert (denial.direction, denial.call) == ("unseen", "no call shows its effect")
    assert denial.proof.startswith("not proved: `substring`")
    assert set(denial.ids) <= set(others.unseen())
    assert f"\n\n{markdown_text(wider.proof)}\n" in markdown(others)
    assert [others.fails(when) for when in ("wider", "loosening", "not-proved", "any")] == [True] * 4


def test_diff_without_the_extra_says_what_it_cannot_prove(others: BundleDiff, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pdp.workbench.proof.solver", raising=False)
    monkeypatch.setitem(sys.modules, "z3", None)

    diff = bundle_diff(BUNDLE, Path(others.names[1]), most=60)

    assert "proofs: none of 3 changed rules; this needs the extra \"proof\": pip install 'tool-pdp[proof]'" in (
        text_lines(diff)
    )
    assert [item.proof for item in diff.review] == [""] * len(diff.review)
    assert set(others.unseen()) <= set(diff.unseen())
    assert diff.fails("not-proved")


def test_a_new_denial_tightens_beside_a_change_that_admits_more(tmp_path: Path, opa: Path) -> None:
    weaker = CLEAR.replace('== "clear"', 'in {"clear", "not_screened"}')
    new = compiled(tmp_path, opa, (OWN, CLEAR, f"{weaker}\n{NIGHT}"))

    diff = bundle_diff(BUNDLE, new, suites=[load_suite(EXAMPLE / "scenarios.yaml")], most=CALLS)

    helper, denial = diff.review
    assert (helper.direction, helper.proof) == ("loosens", f"wider: {helper.call}")
    assert "DENY sanctions.not_clear -> ALLOW" in helper.call
    assert (denial.direction, denial.proof, denial.ids) == ("tightens", "", ())
    assert "purpose taxes" in denial.call


def test_wider_call_on_other_data_is_shown_and_needs_an_explanation(tmp_path: Path, opa: Path) -> None:
    # No tool of the example touches marked data.
    missing = "\tcount(missing) > 0\n"
    new = compiled(tmp_path, opa, (MARKINGS, missing, f'{missing}\tinput.subject.id != "mallory"\n'))

    diff = bundle_diff(BUNDLE, new, suites=[load_suite(EXAMPLE / "scenarios.yaml")], most=CALLS)

    (item,) = diff.review
    assert item.direction == "loosens"
    assert item.proof.startswith("wider: ")
    assert "subject.id mallory" in item.proof
    assert item.proof.endswith("DENY markings.not_cleared -> ALLOW (with other data than the bundles have)")
    assert set(item.ids) == set(diff.loosenings())
    assert (len(item.ids), diff.unseen(), diff.fails("wider")) == (1, {}, True)
