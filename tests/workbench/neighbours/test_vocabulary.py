"""Attributes and constants of policies are extracted from the syntax trees of their Rego modules."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdp.engine.bundle.file import read_bundle
from pdp.opa.modules import Module
from pdp.opa.syntax import parse_modules
from pdp.workbench.diff.policies import BundlePair, BundleRules
from pdp.workbench.neighbours.vocabulary import Policy, Vocabulary, vocabulary
from tests.support.payments import BUNDLE

pytestmark = pytest.mark.opa


def policy(opa: Path, *texts: str, **data: Any) -> Policy:
    modules = {
        f"custom/{number}.rego": Module(Path(f"{number}.rego"), text, custom=True) for number, text in enumerate(texts)
    }
    return Policy(parse_modules(opa, modules), data)


def named(words: Vocabulary) -> set[str]:
    return {".".join(map(str, name)) if isinstance(name, tuple) else f"~{name}" for name in words.named}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        pytest.param('input.context.purpose == "care"', {"context.purpose"}, id="by name"),
        pytest.param('input.context["purpose"] == "care"', {"context.purpose"}, id="by a text"),
        pytest.param('object.get(input.context, "a", 1) == 2', {"context", "context.a"}, id="with a default"),
        pytest.param('object.get(input, ["context", "b"], 1) == 2', {"context.b"}, id="by a path"),
        pytest.param("held := input.context.c\n\theld.d == 1", {"context.c", "context.c.d"}, id="through a variable"),
        pytest.param("some x in input.xs\n\tx.y == 1", {"xs", "~y"}, id="element by element"),
        pytest.param("every x in input.xs { x == 1 }", {"xs"}, id="of every element"),
        pytest.param("some k\n\tinput.context.arguments[k] == 1", {"context.arguments.[]"}, id="by an open step"),
        pytest.param('ctx.approval.id == "x"', {"context", "context.approval.id"}, id="through an import"),
        pytest.param('object.get(ctx, "e", 1) == 2', {"context", "context.e"}, id="with a default through an import"),
        pytest.param("data.settings.x == 1", {"~settings", "~x"}, id="not from the request"),
    ],
)  # fmt: skip
def test_attributes_of_a_policy_are_found_by_path_or_last_name(opa: Path, body: str, names: set[str]) -> None:
    text = f"package custom.concerns.a\n\nimport input.context as ctx\n\ndeny contains 1 if {{\n\t{body}\n}}\n"
    operators = {"~equal", "~eq", "~assign", "~object", "~get", "~internal", "~member_2"}

    assert named(vocabulary(policy(opa, text))) - operators == names


def test_last_name_of_a_path_matches_every_attribute_that_ends_with_that_name(opa: Path) -> None:
    before, after = (
        sided(opa, f"package custom.a\n\nx if {{\n\tsome held in input.context.approvals\n\theld.id == {text}\n}}\n")
        for text in ('"a"', '"b"')
    )
    words = compared(before, after)

    found = words.attribute(("context", "approvals", 0, "id"))
    assert (found.rank, found.strings) == (0, ("a", "b"))
    assert words.attribute(("context", "approvals", 0, "age")).rank == 2


def test_constants_are_assigned_to_the_attributes_in_the_same_rule(opa: Path) -> None:
    text = (
        "package custom.concerns.a\n\n_other := 7\n\n"
        'deny contains reason.new(rego.metadata.rule(), {"detail": "not tried"}) if {\n'
        '\tinput.context.purpose in {"care", "study"}\n\tinput.context.amount > data.settings.most\n}\n'
    )
    words = vocabulary(policy(opa, text, settings={"most": 50, "of": "x"}, manifests={"sha256:1": {"tool": "t"}}))
    purpose = words.named["context", "purpose"]

    assert (purpose.strings, purpose.numbers) == (("care", "study", "most", "of", "x"), (7, 50))
    assert set(words.strings) == {"care", "study", "settings", "most", "of", "manifests", "sha256:1", "tool", "t", "x"}


def sided(opa: Path, *texts: str) -> BundleRules:
    modules = {f"custom/{number}.rego": text for number, text in enumerate(texts)}
    return BundleRules(replace(read_bundle(BUNDLE), modules=modules), "X", opa)


def compared(*sides: BundleRules) -> Vocabulary:
    policies = [Policy(side.trees, {}) for side in sides]
    return vocabulary(*policies, differing=BundlePair(*sides).differing.values())


def test_attributes_and_constants_of_changed_rules_come_first_in_the_vocabulary_of_a_diff(opa: Path) -> None:
    rules = ['deny contains 1 if input.subject.id == "b"\n', "deny contains 2 if input.context.amount > 5\n"]
    beside = "package custom.b\n\nx if input.other == 1\n"
    added = 'deny contains 3 if {\n\tinput.context.amount == 13.37\n\tinput.context.run_id == "zz"\n}\n'
    before = sided(opa, "package custom.a\n\n" + "\n".join(rules), beside)
    after = sided(opa, "package custom.a\n\n" + "\n".join([*rules, added]), beside)

    for words in (compared(before, after), compared(after, before)):
        assert {".".join(map(str, path)): words.named[path].rank for path in words.paths} == {
            "context.amount": 0, "context.run_id": 0, "subject.id": 1, "other": 2,
        }  # fmt: skip
        assert (set(words.new), words.strings[0], words.numbers[0]) == ({13.37, "zz", 3}, "zz", 13.37)


def test_reformatting_a_policy_adds_no_new_constants_to_its_vocabulary(opa: Path) -> None:
    before = sided(opa, "package custom.a\n\nx if {\n\tinput.a == 1\n\tinput.b == 2\n}\n")
    after = sided(opa, "package custom.a\n\n# A remark.\nx if {\n\tinput.b == 2\n\n\tinput.a == 1\n}\n")
    words = compared(before, after)

    assert not words.new
    assert {each.rank for each in words.named.values()} == {2}
