"""What policies read of a request, from their syntax trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdp.workbench.neighbours.vocabulary import Policy, Vocabulary, vocabulary
from pdp.workbench.opa.modules import Module
from pdp.workbench.opa.syntax import parse_modules

pytestmark = pytest.mark.opa

LIB = "package authz.lib.amounts\n\nbelow(most, value) if value.amount < most\n\nplace := input.resource\n"


def policy(opa: Path, *texts: str, **data: Any) -> Policy:
    modules = {
        f"custom/{number}.rego": Module(Path(f"{number}.rego"), text, custom=True) for number, text in enumerate(texts)
    }
    return Policy(parse_modules(opa, modules), data)


def read(words: Vocabulary) -> set[str]:
    return {".".join(map(str, each.path)) for each in words.attributes}


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        pytest.param('input.context.purpose == "care"', {"context.purpose"}, id="by name"),
        pytest.param('input.context["purpose"] == "care"', {"context.purpose"}, id="by a text"),
        pytest.param('object.get(input.context, "a", 1) == 2', {"context", "context.a"}, id="with a default"),
        pytest.param('object.get(input, ["context", "b"], 1) == 2', {"context.b"}, id="by a path"),
        pytest.param("held := input.context.c\n\theld.d == 1", {"context.c", "context.c.d"}, id="through a variable"),
        pytest.param("some x in input.xs\n\tx.y == 1", {"xs", "xs.[].y"}, id="element by element"),
        pytest.param("every x in input.xs { x == 1 }", {"xs"}, id="of every element"),
        pytest.param("some k\n\tinput.context.arguments[k] == 1", {"context.arguments.[]"}, id="by any name"),
        pytest.param('ctx.approval.id == "x"', {"context.approval.id"}, id="through an import"),
        pytest.param("amounts.below(3, input.context.arguments)",
                     {"context.arguments", "context.arguments.amount", "resource"}, id="through a function"),
        pytest.param('amounts.place.id == "x"', {"resource", "resource.id"}, id="through a rule"),
        pytest.param("_own.z == 1", {"deep", "deep.z"}, id="through a rule of the module"),
        pytest.param("data.settings.x == 1", set(), id="not from the request"),
    ],
)  # fmt: skip
def test_attributes_are_found_by_whatever_name_they_are_read(opa: Path, body: str, paths: set[str]) -> None:
    own = "_own := input.deep\n" if "_own" in body else ""
    text = (
        "package custom.concerns.a\n\nimport data.authz.lib.amounts\nimport input.context as ctx\n\n"
        f"deny contains 1 if {{\n\t{body}\n}}\n\n{own}"
    )
    texts = [text, *([LIB] if "amounts." in body else [])]

    assert read(vocabulary(policy(opa, *texts))) - {"resource"} == paths - {"resource"}


def test_constants_stand_with_what_is_compared_with_them(opa: Path) -> None:
    text = (
        "package custom.concerns.a\n\n_other := 7\n\n"
        'deny contains reason.new(rego.metadata.rule(), {"detail": "not tried"}) if {\n'
        '\tinput.context.purpose in {"care", "study"}\n\tinput.context.amount > data.settings.most\n}\n'
    )
    words = vocabulary(policy(opa, text, settings={"most": 50, "of": "x"}, manifests={"sha256:1": {"tool": "t"}}))
    (purpose,) = (each for each in words.attributes if each.path == ("context", "purpose"))

    assert (purpose.strings, purpose.numbers) == (("care", "study", "most", "of", "x"), (7, 50))
    assert set(words.strings) == {"care", "study", "settings", "most", "of", "manifests", "sha256:1", "tool", "t", "x"}


def test_what_only_one_policy_has_comes_first(opa: Path) -> None:
    rules = ['deny contains 1 if input.subject.id == "b"\n', "deny contains 2 if input.context.amount > 5\n"]
    before = policy(opa, "package custom.a\n\n" + "\n".join(rules), "package custom.b\n\nx if input.other == 1\n")
    added = 'deny contains 3 if {\n\tinput.context.amount == 13.37\n\tinput.context.run_id == "zz"\n}\n'
    after = policy(
        opa, "package custom.a\n\n" + "\n".join([*rules, added]), "package custom.b\n\nx if input.other == 1\n"
    )

    for words in (vocabulary(before, after), vocabulary(after, before)):
        assert {".".join(map(str, each.path)): each.rank for each in words.attributes} == {
            "context.amount": 0, "context.run_id": 0, "subject.id": 1, "other": 2,
        }  # fmt: skip
        assert (set(words.new), words.strings[0], words.numbers[0]) == ({13.37, "zz", 3}, "zz", 13.37)


def test_the_same_policy_written_otherwise_has_nothing_new(opa: Path) -> None:
    before = policy(opa, "package custom.a\n\nx if {\n\tinput.a == 1\n\tinput.b == 2\n}\n")
    after = policy(opa, "package custom.a\n\n# A remark.\nx if {\n\tinput.b == 2\n\n\tinput.a == 1\n}\n")
    words = vocabulary(before, after)

    assert not words.new
    assert {each.rank for each in words.attributes} == {2}
