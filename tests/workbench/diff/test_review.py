"""For reviewers, a bundle diff shows each change as a sentence, with a call, the changed lines and the ids."""

from pathlib import Path
from typing import Any

import pytest

from pdp.workbench.diff.bundle_diff import bundle_diff
from pdp.workbench.diff.reports import markdown, text_lines
from pdp.workbench.diff.result import BundleDiff
from pdp.workbench.scenarios.files.suite import load_suite
from tests.support.payments import BUNDLE, EXAMPLE
from tests.workbench.diff.test_bundle_diff import CLEAR, SANCTIONS, compiled, line_of, made, manifest

pytestmark = pytest.mark.opa

CALLS = 900


def changed(entry: str, **fields: Any) -> Any:
    """Return the example's manifest with changed fields of one entry. `a__b` stands for the field `b` inside of `a`."""

    def change(document: Any) -> None:
        tool = document["tools"][entry]
        for name, value in fields.items():
            outer, _, inner = name.partition("__")
            if inner:
                tool[outer] = {**tool.get(outer, {}), inner: value}
            else:
                tool[outer] = value

    return manifest(change)


FIELDS: list[tuple[str, Any, str]] = [
    ("scopes", ["wires"], "Calling initiate_wire requires wires; before, payments.wire.initiate."),
    ("limits", [], "Limits of initiate_wire: none; before, wire.auto_approved of amount."),
    ("markings", ["pii"], "Markings that initiate_wire may touch: pii; before, none."),
    ("purposes", ["audit"], "initiate_wire may be called for audit; before, for any purpose."),
    ("purposes", [], "initiate_wire may be called for no purpose; before, for any purpose."),
    ("risk_tier", "low", "The risk tier of initiate_wire is low; before, high."),
    ("effect_class", "pure", "effect_class of initiate_wire is pure; before, it was not stated."),
    ("approval__approvers", ["a", "b"], "Approvers of initiate_wire: a and b; before, payments.approver."),
    ("approval__quorum", 2, "approval.quorum of initiate_wire is 2; before, it was 1."),
    ("idempotency__required", False, "idempotency.required of initiate_wire is false; before, it was true."),
    ("provenance__required", ["source_ids"], "initiate_wire must name sources in source_ids; before, none."),
    ("timeout", "PT9S", "timeout of initiate_wire is PT9S; before, it was not stated."),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "sentence"), FIELDS)
def test_review_describes_a_changed_manifest_field_in_one_sentence(
    tmp_path: Path, field: str, value: Any, sentence: str
) -> None:
    diff = bundle_diff(BUNDLE, made(tmp_path / "new", manifest=changed("initiate_wire", **{field: value})), most=0)

    items = [item for item in diff.review if "initiate_wire" in item.sentence]
    assert [item.sentence for item in items] == [sentence]
    # The last line of the text shows the new value.
    assert items[0].text[-1].startswith("+ " + field.replace("__", "."))


@pytest.fixture(scope="module")
def scope(tmp_path_factory: pytest.TempPathFactory) -> BundleDiff:
    """Return the diff between the example's bundle and a bundle in which the scope for look-ups also allows wires."""
    new = made(
        tmp_path_factory.mktemp("scope") / "new.tar.gz", manifest=changed("initiate_wire", scopes=["payments.lookup"])
    )
    return bundle_diff(BUNDLE, new, suites=[load_suite(EXAMPLE / "scenarios.yaml")], most=CALLS)


def test_review_shows_a_minimal_call_for_each_loosened_decision(scope: BundleDiff) -> None:
    first, *rest = scope.review

    assert (first.direction, first.sentence) == (
        "loosens", "Calling initiate_wire requires payments.lookup; before, payments.wire.initiate."
    )  # fmt: skip
    call, _, decisions = first.call.partition(": DENY")
    assert decisions == " scopes.missing -> ALLOW"
    assert "scopes [payments.lookup]" in call
    # The shown call omits the subject, the time and generated names, because these do not affect the decision.
    assert not {"sub", "officer", "time", "made", "call_digest"} & set(call.replace(",", " ").split())
    assert first.text == ("- scopes: [payments.wire.initiate]", "+ scopes: [payments.lookup]")
    assert first.where.startswith("examples/payments/governance.yaml:")
    assert set(first.ids) == set(scope.loosenings())
    assert [item for item in rest if item.direction == "loosens"] == []


def test_review_shows_location_and_lines_of_changed_rules_and_data(tmp_path: Path, opa: Path) -> None:
    other = '_clear if input.context.sanctions_status in {"clear", "not_screened"}'
    new = compiled(tmp_path, opa, (f"own/{SANCTIONS}", CLEAR, other))

    diff = bundle_diff(BUNDLE, new, suites=[load_suite(EXAMPLE / "scenarios.yaml")], most=CALLS)

    first = diff.review[0]
    assert (first.direction, first.sentence, first.where, first.text) == (
        "loosens",
        "The helper _clear of sanctions was changed.",
        f"{SANCTIONS}:{line_of(CLEAR)}",
        (f"- {CLEAR}", f"+ {other}"),
    )
    assert "sanctions_status not_screened" in first.call
    assert first.call.endswith(": DENY sanctions.not_clear -> ALLOW")
    settings = bundle_diff(
        made(tmp_path / "a", settings={"hours": 8}), made(tmp_path / "b", settings={"hours": 9}), most=0
    )
    assert [(item.sentence, item.text) for item in settings.review if "hours" in item.sentence] == [
        ("settings.hours is 9; before, 8.", ("- settings.hours: 8", "+ settings.hours: 9"))
    ]


def test_review_shows_a_renamed_reason_code_as_removed_and_added_rule(tmp_path: Path, opa: Path) -> None:
    new = compiled(tmp_path, opa, (f"own/{SANCTIONS}", "code: sanctions.not_clear", "code: sanctions.unclear"))

    items = {item.sentence: item for item in bundle_diff(BUNDLE, new, most=CALLS).review if "was" in item.sentence}

    finding = "The beneficiary's sanctions screening is missing or not clear."
    gone = items.pop(f"A rule of sanctions was removed: sanctions.not_clear, which denies. {finding}")
    (added,) = items.items()
    assert added[0] == f"A rule of sanctions was added: sanctions.unclear, which denies. {finding}"
    # The rule with the new code denies the same calls.
    assert (gone.direction, gone.proof) == ("tightens", "narrower (proved)")
    assert gone.text[0].startswith("- deny contains ")
    assert added[1].text[0].startswith("+ deny contains ")


def test_text_and_markdown_reports_start_with_the_same_change(scope: BundleDiff) -> None:
    first = scope.review[0]
    text, page = list(text_lines(scope)), markdown(scope).splitlines()

    assert text[2] == f"loosens   {first.sentence}"
    assert [line.strip() for line in text[4:7]] == [*first.text, f"ids: {', '.join(first.ids)}"]
    assert page[2].startswith("**loosens** Calling initiate\\_wire requires payments.lookup; ")
    assert page[page.index("```diff") + 1 :][:2] == list(first.text)
    # The part above the first folded section must fit on one screen.
    assert next(at for at, line in enumerate(page) if line.startswith("<details>")) < 45
    assert page.index("<details><summary>What was compared</summary>") >= next(
        at for at, line in enumerate(page) if line.startswith("<details>")
    )
