"""What a reviewer reads of a bundle diff: a sentence for each cause, the call that shows it, the text, the ids."""

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
    """The example's manifest with other fields of one entry; a field with dots stands in an object."""

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
    ("scopes", ["wires"], "Whoever holds wires may call initiate_wire; before, it took payments.wire.initiate."),
    ("limits", [], "Limits of initiate_wire: none; before, wire.auto_approved of amount."),
    ("markings", ["pii"], "initiate_wire may touch data marked pii; before, with nothing."),
    ("purposes", ["audit"], "initiate_wire may be called for audit; before, for any purpose."),
    ("purposes", [], "initiate_wire may be called for no purpose; before, for any purpose."),
    ("risk_tier", "low", "initiate_wire is of tier low; before, of tier high."),
    ("effect_class", "pure", "effect_class of initiate_wire is pure; before, it was not stated."),
    ("approval__approvers", ["clerk", "lead"], "clerk and lead may approve initiate_wire; before, payments.approver."),
    ("approval__quorum", 2, "approval.quorum of initiate_wire is 2; before, it was 1."),
    ("idempotency__required", False, "idempotency.required of initiate_wire is false; before, it was true."),
    ("provenance__required", ["source_ids"], "initiate_wire has to name source_ids; before, no source."),
    ("timeout", "PT9S", "timeout of initiate_wire is PT9S; before, it was not stated."),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "sentence"), FIELDS)
def test_a_change_of_an_entry_is_one_sentence(tmp_path: Path, field: str, value: Any, sentence: str) -> None:
    diff = bundle_diff(BUNDLE, made(tmp_path / "new", manifest=changed("initiate_wire", **{field: value})), most=0)

    items = [item for item in diff.review if "initiate_wire" in item.sentence]
    assert [item.sentence for item in items] == [sentence]
    # Both sides of it as they are written, each where it is stated at all.
    assert items[0].text[-1].startswith("+ " + field.replace("__", "."))


@pytest.fixture(scope="module")
def scope(tmp_path_factory: pytest.TempPathFactory) -> BundleDiff:
    """The example, in which whoever looks up may also send."""
    new = made(
        tmp_path_factory.mktemp("scope") / "new.tar.gz", manifest=changed("initiate_wire", scopes=["payments.lookup"])
    )
    return bundle_diff(BUNDLE, new, suites=[load_suite(EXAMPLE / "scenarios.yaml")], most=CALLS)


def test_a_loosening_has_its_call_with_nothing_but_what_decides(scope: BundleDiff) -> None:
    first, *rest = scope.review

    assert (first.direction, first.sentence) == (
        "loosens", "Whoever holds payments.lookup may call initiate_wire; before, it took payments.wire.initiate."
    )  # fmt: skip
    call, _, decisions = first.call.partition(": DENY")
    assert decisions == " scopes.missing -> ALLOW"
    assert "scopes [payments.lookup]" in call
    # Neither who it is nor when, nor names that the generator made up: none of them decides.
    assert not {"sub", "officer", "time", "made", "call_digest"} & set(call.replace(",", " ").split())
    assert first.text == ("- scopes: [payments.wire.initiate]", "+ scopes: [payments.lookup]")
    assert first.where.startswith("examples/payments/governance.yaml:")
    assert set(first.ids) == set(scope.loosenings())
    assert [item for item in rest if item.direction == "loosens"] == []


def test_a_rule_and_a_datum_have_place_and_lines(tmp_path: Path, opa: Path) -> None:
    other = '_clear if input.context.sanctions_status in {"clear", "not_screened"}'
    new = compiled(tmp_path, opa, (f"own/{SANCTIONS}", CLEAR, other))

    diff = bundle_diff(BUNDLE, new, suites=[load_suite(EXAMPLE / "scenarios.yaml")], most=CALLS)

    first = diff.review[0]
    assert (first.direction, first.sentence, first.where, first.text) == (
        "loosens",
        "_clear, which rules of sanctions ask for, was changed.",
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


def test_a_rule_that_came_or_went_says_what_it_finds(tmp_path: Path, opa: Path) -> None:
    """A code is for ever: one that is renamed is a rule removed and another one added."""
    new = compiled(tmp_path, opa, (f"own/{SANCTIONS}", "code: sanctions.not_clear", "code: sanctions.unclear"))

    items = {item.sentence: item for item in bundle_diff(BUNDLE, new, most=CALLS).review if "was" in item.sentence}

    finding = "The beneficiary's sanctions screening is missing or not clear."
    gone = items.pop(f"A rule of sanctions was removed: sanctions.not_clear, which denies. {finding}")
    (added,) = items.items()
    assert added[0] == f"A rule of sanctions was added: sanctions.unclear, which denies. {finding}"
    assert gone.direction == "loosens"
    assert gone.text[0].startswith("- deny contains ")
    assert added[1].text[0].startswith("+ deny contains ")


def test_text_and_markdown_begin_with_the_same(scope: BundleDiff) -> None:
    first = scope.review[0]
    text, page = list(text_lines(scope)), markdown(scope).splitlines()

    assert text[2] == f"loosens   {first.sentence}"
    assert [line.strip() for line in text[4:7]] == [*first.text, f"ids: {', '.join(first.ids)}"]
    assert page[2].startswith("**loosens** Whoever holds payments.lookup may call ")
    assert page[page.index("```diff") + 1 :][:2] == list(first.text)
    # What fits one screen, and the rest folded away.
    assert next(at for at, line in enumerate(page) if line.startswith("<details>")) < 45
    assert page.index("<details><summary>What was compared</summary>") >= next(
        at for at, line in enumerate(page) if line.startswith("<details>")
    )
