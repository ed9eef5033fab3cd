"""Calls that show what a new version admits, confirmed by the engine, and what is said where there is none."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from pdp.workbench.mutation.trial import record
from pdp.workbench.proof.answers import HeadAnswer
from pdp.workbench.proof.compare import compare
from pdp.workbench.scenarios.files.suite import load_suite, policy_modules
from pdp.workbench.scenarios.running.engines import whole_data
from tests.support import ROOT
from tests.workbench.proof.oracle import modules_of

pytestmark = pytest.mark.opa

SMALL = "package custom.concerns.small\n\nimport rego.v2\n\n"


def small(opa: Path, old: str, new: str) -> HeadAnswer:
    """Return the answer about the only head of a small concern."""
    versions = (modules_of({"custom/small.rego": SMALL + text}) for text in (old, new))
    (answer,) = compare(*versions, opa=opa, seconds=10)
    return answer


def payments(opa: Path, file: str, old: str, new: str) -> HeadAnswer:
    """Return the answer about the head that a change of the example `payments` affects."""
    suite = load_suite(ROOT / "examples/payments/scenarios.yaml")
    (ran,) = record([suite])
    known = {answer.body: None for result in ran.results for step in result.steps for answer in step.answers}
    before = policy_modules(suite)
    (path,) = (path for path in before if path.endswith(file))
    after = {**before, **modules_of({path: before[path].text.replace(old, new)})}
    (answer,) = compare(before, after, opa=opa, known=list(known), data=whole_data(suite))
    return answer


@pytest.mark.parametrize(
    ("file", "old", "new", "path", "value"),
    [
        (
            "sanctions/sanctions.rego", 'sanctions_status == "clear"', 'sanctions_status in {"clear", "pending"}',
            ("context", "sanctions_status"), "pending",
        ),
        (
            "beneficiary/beneficiary.rego", "_looked_up if {",
            '_looked_up if input.subject.id == "clerk-7"\n\n_looked_up if {', ("subject", "id"), "clerk-7",
        ),
    ],
)  # fmt: skip
def test_wider_rule_is_shown_with_a_call_whose_verdict_it_changes(
    opa: Path, file: str, old: str, new: str, path: tuple[str, str], value: Any
) -> None:
    answer = payments(opa, file, old, new)

    assert (answer.word, answer.verdict, answer.data) == ("wider", True, None)
    assert answer.request is not None
    assert orjson.loads(answer.request)[path[0]][path[1]] == value


def test_call_on_another_manifest_entry_comes_with_its_data(opa: Path) -> None:
    file = "concerns/manifest/manifest.rego"

    answer = payments(opa, file, 'release.gate == "passed"', 'release.gate in {"passed", "waived"}')

    assert (answer.word, answer.verdict) == ("wider", True)
    assert answer.data is not None
    assert b'"waived"' in answer.data


@pytest.mark.parametrize(
    ("old", "new", "word", "request_"),
    [
        ("deny contains 1 if input.a > 5", "deny contains 1 if input.a > 7", "wider", True),
        (
            "deny contains 1 if count([x | some x in input.a; x > 0]) > 2",
            "deny contains 1 if count([x | some x in input.a; x > 1]) > 2", "bounded", False,
        ),
        (
            "deny contains 1 if regex.match(`^a+b$`, input.a)", "deny contains 1 if regex.match(`^a+bc$`, input.a)",
            "not proved", False,
        ),
    ],
)  # fmt: skip
def test_difference_of_small_rules_is_shown_or_named(opa: Path, old: str, new: str, word: str, request_: bool) -> None:
    answer = small(opa, old, new)

    assert (answer.word, answer.request is not None) == (word, request_)
    assert ("regex.match" in answer.term) == (word == "not proved")


def test_a_number_beyond_64_bits_is_no_call_and_no_error(opa: Path) -> None:
    rule = "deny contains 1 if {\n\tis_number(input.x)\n\tinput.x > 18446744073709551615\n}\n"

    answer = small(opa, rule, rule.replace("}", "\tinput.y\n}"))

    assert (answer.head, answer.word) == ("deny", "not proved")
