"""Many requests in one run of OPA: the answers equal the engine's answers, and a failure affects only one request."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from pdp.decision import parse_decision
from pdp.engine.bundle.file import baseline_bundle_path, read_bundle
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import EngineTimeoutError, UsageError
from pdp.json import canonical
from pdp.opa.evaluation import Batch, Evaluator, Lines, canonical_answer
from tests.support import generated_requests

pytestmark = pytest.mark.opa

MODULE = Path(__file__).with_name("decision.rego").read_text()
ANSWER = b'{"reasons":["a","b"],"verdict":"DENY"}'
DENY, BOTH, UNDEFINED = b'{"a":2,"b":0,"defined":true}', b'{"a":2,"b":2,"defined":true}', b"{}"


def evaluate_batch(
    opa: Path, modules: Mapping[str, str], data: Mapping[str, Any], inputs: Sequence[bytes], *, coverage: bool = False
) -> Batch:
    with Evaluator(opa, modules, data) as evaluator:
        return evaluator.evaluate(inputs, coverage=coverage)


def test_opa_evaluation_gives_the_same_answers_as_the_embedded_engine(opa: Path) -> None:
    """The requests are generated, and some of them are malformed."""
    bundle = read_bundle(baseline_bundle_path())
    bodies = [canonical(request) for request in generated_requests.requests(400)]
    manifests = generated_requests.manifests()
    data = {**bundle.data, "manifests": manifests}
    batch = evaluate_batch(opa, bundle.modules, data, bodies)
    with EmbeddedEngine(bundle, manifests=manifests) as engine:
        assert batch.answers == {body: canonical_answer(orjson.loads(engine.evaluate(body))) for body in bodies}
    assert len({parse_decision(answer).verdict for answer in batch.answers.values() if answer is not None}) == 3


def test_failing_input_does_not_affect_other_inputs(opa: Path) -> None:
    batch = evaluate_batch(opa, {"a.rego": MODULE}, {}, [DENY, BOTH, UNDEFINED, DENY, BOTH])
    assert batch == Batch({DENY: ANSWER, BOTH: None, UNDEFINED: None})


def test_remaining_inputs_are_skipped_after_many_failures(opa: Path) -> None:
    bodies = [canonical({"a": 2, "b": number, "defined": True}) for number in (0, *range(2, 30))]
    batch = evaluate_batch(opa, {"a.rego": MODULE}, {}, bodies)
    assert batch.answers == {bodies[0]: ANSWER, **dict.fromkeys(bodies[1:17])}


def test_rego_line_is_covered_only_if_fully_evaluated(opa: Path) -> None:
    batch = evaluate_batch(opa, {"a.rego": MODULE}, {}, [DENY, BOTH], coverage=True)
    assert batch.lines == {"a.rego": Lines(frozenset({3, 5}), frozenset({7, 9, 10, 11}))}


def test_opa_evaluation_of_no_inputs_returns_no_answers(opa: Path) -> None:
    assert evaluate_batch(opa, {"a.rego": MODULE}, {}, []) == Batch({})


def test_changed_rego_modules_apply_only_to_the_evaluation_that_gets_them(opa: Path) -> None:
    changed = {"a.rego": MODULE.replace('"DENY"', '"STEP_UP"')}
    with Evaluator(opa, {"a.rego": MODULE}, {"n": 1}) as evaluator:
        assert evaluator.evaluate([DENY]).answers == {DENY: ANSWER}
        assert evaluator.evaluate([DENY], changed=changed).answers == {DENY: ANSWER.replace(b"DENY", b"STEP_UP")}
        assert evaluator.evaluate([DENY]).answers == {DENY: ANSWER}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("package a\nx if {", "rego_parse_error: unexpected eof token (a.rego:2)"),
        ("package a\nx if y", "rego_unsafe_var_error: var y is unsafe (a.rego:2)"),
        ("package a\nx if x", "rego_recursion_error: rule data.a.x is recursive: data.a.x -> data.a.x (a.rego:2)"),
    ],
)
@pytest.mark.parametrize("changed", [False, True])
def test_invalid_rego_is_reported_with_location(opa: Path, text: str, message: str, changed: bool) -> None:
    modules = {"a.rego": MODULE} if changed else {"a.rego": text}
    with Evaluator(opa, modules, {}) as evaluator, pytest.raises(UsageError) as caught:
        evaluator.evaluate([DENY], changed={"a.rego": text} if changed else {})
    assert str(caught.value) == f"OPA rejected the policies: {message}"


def test_call_of_a_builtin_that_fails_is_undefined(opa: Path) -> None:
    text = 'package authz\ndecision := {"reasons": [x | x := 1 / input.n]}'
    batch = evaluate_batch(opa, {"a.rego": text}, {}, [b'{"n":0}', b'{"n":1}'])
    assert batch == Batch({b'{"n":0}': b'{"reasons":[]}', b'{"n":1}': b'{"reasons":[1]}'})


def test_endless_evaluation_times_out(opa: Path) -> None:
    text = "package authz\ndecision := count([1 | some a in r; some b in r; a + b == 0])\nr := numbers.range(1, 90000)"
    with (
        Evaluator(opa, {"a.rego": text}, {}, timeout=0.5) as evaluator,
        pytest.raises(EngineTimeoutError, match=r"^OPA did not finish within 0\.5 s$"),
    ):
        evaluator.evaluate([DENY])


def test_evaluation_with_a_missing_program_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="OPA cannot be run: No such file or directory"):
        evaluate_batch(tmp_path / "opa", {"a.rego": MODULE}, {}, [DENY])


def test_options_of_opa_in_the_environment_are_ignored(opa: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPA_EVAL_FORMAT", "pretty")
    assert evaluate_batch(opa, {"a.rego": MODULE}, {}, [DENY]).answers == {DENY: ANSWER}


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (b'{"reasons":[{"a":1},{"a":0}]}', {"reasons": [{"a": 0}, {"a": 1.0}]}, True),
        (b'{"reasons":[{"a":[1,2]}]}', {"reasons": [{"a": [2, 1]}]}, False),
        (b'"x"', "x", True),
    ],
)
def test_equal_policy_answers_have_the_same_canonical_json(one: bytes, other: Any, equal: bool) -> None:
    assert (canonical_answer(orjson.loads(one)) == canonical_answer(other)) is equal
