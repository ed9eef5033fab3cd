"""For each way to weaken a rule, the weakened rule decides at least one generated variant of a request differently."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pdp.decision import Verdict
from pdp.engine.bundle.file import Bundle, read_bundle
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.json import canonical
from pdp.opa.evaluation import Evaluator
from pdp.opa.modules import Module
from pdp.opa.syntax import parse_modules
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.neighbours.bases import allowed_call, approved_call, called_tools, complete_call, tool_of
from pdp.workbench.neighbours.entries import DIRECTORY, synthetic_manifests
from pdp.workbench.neighbours.values import GONE, at, edited
from pdp.workbench.neighbours.variants import changes, pairs
from pdp.workbench.neighbours.vocabulary import Policy, vocabulary
from tests.support import ROOT
from tests.support.payments import BUNDLE

REQUEST: dict[str, Any] = {
    "subject": {"type": "user", "id": "u1", "properties": {"scopes": ["pay.send", "pay.see"], "limits": {"pay": 100}}},
    "action": {"name": "pay", "properties": {"tool": "p", "manifest_version": "1.2.0", "manifest_digest": "sha256:0"}},
    "resource": {"type": "account", "id": "a-77", "properties": {"markings": ["pii"]}},
    "context": {
        "arguments": {"amount": 50, "to": "b-1"}, "purpose": "care", "agent": "agent:one", "call_digest": "sha256:abc",
        "approval": {"id": "p", "call_digest": "sha256:abc", "age_seconds": 5,
                     "grants": [{"sub": f"p{number}", "roles": ["boss"]} for number in range(5)]},
    },
}  # fmt: skip
LIMIT = "input.context.arguments.amount <= input.subject.properties.limits.pay"
PEOPLE = "count({grant.sub | some grant in input.context.approval.grants})"


@pytest.mark.opa
@pytest.mark.parametrize(
    ("original", "weakened"),
    [
        ('input.context.purpose == "care"', 'startswith(input.context.purpose, "care")'),
        ('input.context.purpose == "care"', 'contains(input.context.purpose, "care")'),
        ('input.context.purpose == "care"', 'lower(input.context.purpose) == "care"'),
        ('input.context.purpose == "care"', 'trim_space(input.context.purpose) == "care"'),
        ('input.context.purpose == "care"', 'input.context.purpose in {"care", "resale"}'),
        ('"pay.send" in input.subject.properties.scopes', 'startswith(input.subject.properties.scopes[_], "pay.send")'),
        ('"pay.send" in input.subject.properties.scopes', 'lower(input.subject.properties.scopes[_]) == "pay.send"'),
        ('input.action.properties.manifest_version == "1.2.0"',
         'startswith(input.action.properties.manifest_version, "1.2")'),
        ("input.context.approval.call_digest == input.context.call_digest",
         "startswith(input.context.approval.call_digest, input.context.call_digest)"),
        ('"boss" in input.context.approval.grants[0].roles',
         'startswith(input.context.approval.grants[0].roles[_], "boss")'),
        (LIMIT, LIMIT.replace("<=", "<")),
        (LIMIT, f"{LIMIT} + 0.004"),
        (f"{PEOPLE} >= 5", f"{PEOPLE} >= 4"),
        (f"{PEOPLE} >= 5", f"{PEOPLE} >= min({{5, 3}})"),
        ("true", 'not input.subject.id == "mallory"'),
        ("true", 'not object.get(input.context, "run_id", "") == "r-77"'),
        ("true", "not input.context.arguments.amount == 13.37"),
        ("true", "not input.context.agent == input.resource.id"),
        ("true", "not bypass"),
        (LIMIT, "exempt"),
    ],
)  # fmt: skip
def test_weakened_rule_decides_some_generated_variant_of_a_request_differently(
    opa: Path, original: str, weakened: str
) -> None:
    helpers = (
        'bypass if {\n\tinput.subject.id == "mallory"\n\tinput.context.purpose == "resale"\n}\n\n'
        f"exempt if {LIMIT}\n\n"
        'exempt if {\n\tinput.subject.id == "eve"\n\tinput.context.arguments.amount <= 1000\n}\n'
    )
    texts = [f"package authz\n\ndecision := 1 if {{\n\t{each}\n}}\n\n" for each in (original, weakened)]
    texts[1] += helpers if weakened in ("not bypass", "exempt") else ""
    bundle = read_bundle(BUNDLE)
    pair = BundlePair.of(opa, *(replace(bundle, modules={"authz.rego": text}) for text in texts))
    policies = [Policy(each.trees, {}) for each in (pair.old, pair.new)]
    singles = changes(REQUEST, vocabulary(*policies, differing=pair.differing.values()))
    several = [(change,) for change in singles] + list(islice(pairs(singles), 3000))
    bodies = [
        canonical(edited(REQUEST, *(edit for change in tried for edit in change.edits))) for tried in several[:3000]
    ]
    answers = []
    for text in texts:
        with Evaluator(opa, {"authz.rego": text}, {}) as evaluator:
            answers.append(evaluator.evaluate(bodies).answers)

    assert answers[0] != answers[1]


@pytest.mark.opa
def test_generated_changes_of_a_request_have_a_fixed_order(opa: Path) -> None:
    text = 'package authz\n\ndecision := 1 if input.context.purpose == "care"\n'
    words = vocabulary(Policy(parse_modules(opa, {"a.rego": Module(Path("a.rego"), text, custom=False)}), {}))
    singles, again = (changes(REQUEST, words, DIRECTORY) for _ in range(2))
    two, two_again = (list(islice(pairs(each), 3000)) for each in (singles, again))

    assert (singles, two) == (again, two_again)
    assert singles[0].dimension == "context.purpose"
    assert all(first.dimension != second.dimension for first, second in two)
    assert not [path for change in singles for path, _ in change.edits if path[-1] == "manifest_digest"]


def test_generated_pairs_of_request_changes_are_complete_and_start_with_new_constants() -> None:
    words = vocabulary(Policy({}, {}))
    singles = [each for each in changes({"context": {"a": "x", "b": True}}, words) if each.paired]
    dimensions = {str(each.edits): each.dimension for each in singles}
    tried = [frozenset((str(item.edits), str(other.edits))) for item, other in pairs(singles)]

    assert len(tried) == len(set(tried))
    assert set(tried) == {
        frozenset((item, other)) for item in dimensions for other in dimensions if dimensions[item] < dimensions[other]
    }


def test_request_edit_adds_replaces_or_removes_a_value_at_its_path() -> None:
    request = {"a": {"b": [1, {"c": 2}]}}

    assert edited(request, (("a", "b", 1, "c"), 3), (("x", "y"), 4)) == {"a": {"b": [1, {"c": 3}]}, "x": {"y": 4}}
    assert edited(request, (("a", "b", 0), GONE)) == {"a": {"b": [{"c": 2}]}}
    assert edited(request, (("a", "z", "q"), GONE), (("a", "b", 9), 1)) == request
    assert at(request, ("a", "b", 1, "c")) == 2
    assert at(request, ("a", "b", "c")) is GONE


@pytest.fixture
def payments() -> Bundle:
    return read_bundle((ROOT / "bundles/payments.tar.gz").read_bytes())


@pytest.mark.opa
def test_request_generator_finds_an_allowed_call_for_every_tool(opa: Path, payments: Bundle) -> None:
    modules = {path: Module(Path(path), text, custom=False) for path, text in payments.modules.items()}
    words = vocabulary(Policy(parse_modules(opa, modules), payments.data))
    documents = synthetic_manifests()
    every: Mapping[str, Any] = {**payments.data["manifests"], **documents}
    with EmbeddedEngine(payments, manifests=documents, data={"directory": DIRECTORY}) as engine:

        def denials(request: Any) -> set[str]:
            decision = engine.decide_body(canonical(request))
            return set(decision.codes) if decision.verdict is Verdict.DENY else set()

        denied = []
        for digest, document in every.items():
            for tool in called_tools(document, digest):
                markings = [*tool.names("markings"), "made.marking"]
                call = allowed_call(complete_call(tool, words, markings, DIRECTORY), words, denials, DIRECTORY)
                approved = approved_call(call, tool)
                assert tool_of(approved) == tool.name
                if denials(call) and denials(approved):
                    denied.append(tool.name)

    # The policy denies calls without scopes or purpose, and calls with effects but without a risk tier.
    assert denied == ["made_commit_low_unstated", "made_commit_high_unstated", "made_bare", "made_for_nobody"]
