import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdp.decision import GRANT, Decision, Reason, Verdict
from pdp.engine.bundle.file import Bundle, pack_bundle, read_bundle
from pdp.engine.data import merged_data, read_data
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import (
    BundleError,
    FileFaultsError,
    UsageError,
)
from pdp.json import canonical, digest
from pdp.request import Entity, Request, RequestedAction
from tests.support.probe_policy import body, by_hand, compile_probes

NAMED, WITH_TOOLS = digest(canonical({})), digest(canonical({"tools": {}}))


def bundle_of(wasm: bytes, **data: Any) -> Bundle:
    return read_bundle(pack_bundle(release=7, wasm=wasm, data=data, modules={}))


@pytest.fixture(scope="module")
def bundle(opa: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_of(compile_probes(opa, tmp_path_factory.mktemp("probes")), settings={"verdict": "ALLOW"})


@pytest.fixture(scope="module")
def shared(bundle: Bundle) -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine(bundle) as made:
        yield made


@pytest.fixture
def engine(bundle: Bundle) -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine(bundle, memory_limit=16 * 1024 * 1024) as made:
        yield made


def request(action: str, **context: Any) -> Request:
    return Request(
        subject=Entity(type="user", id="ada", properties={}),
        action=RequestedAction(name=action, properties={}),
        resource=Entity(type="tool", id="t", properties={}),
        context=context,
    )


def echoed(bundle: Bundle, decision: Decision, verdict: Verdict = Verdict.ALLOW, **seen: Any) -> Decision:
    """Return the expected decision on the action `echo`. It has the id of the actual decision."""
    return Decision(
        verdict=verdict,
        reasons=(
            Reason(code=GRANT if verdict is Verdict.ALLOW else "probe.echo", message="seen", details={"seen": seen}),
        ),
        obligations=(),
        decision_id=decision.decision_id,
        bundle_revision=bundle.revision,
        release=7,
    )


def refused(decision: Decision, code: str, message: str) -> Decision:
    return Decision(
        verdict=Verdict.DENY,
        reasons=(Reason(code=code, message=message, details={}),),
        obligations=(),
        decision_id=decision.decision_id,
        bundle_revision=None,
        release=None,
    )


# Decisions


@pytest.mark.opa
def test_decision_has_the_revision_and_release_of_its_bundle(engine: EmbeddedEngine, bundle: Bundle) -> None:
    decided = engine.decide(request("echo", amount=1))

    assert decided == echoed(bundle, decided, amount=1)
    assert engine.name == "embedded"


@pytest.mark.opa
def test_engine_evaluate_returns_the_policy_document_unchanged(engine: EmbeddedEngine) -> None:
    text = engine.evaluate(body("echo", tricky='},{"result":', nested=[{"result": [{}]}]))

    assert json.loads(text)["reasons"][0]["details"]["seen"] == {
        "tricky": '},{"result":',
        "nested": [{"result": [{}]}],
    }


@pytest.mark.opa
def test_request_above_one_mebibyte_is_rejected(engine: EmbeddedEngine) -> None:
    largest = "x" * (1024 * 1024 - len(body("echo", text="")))

    assert engine.decide_body(body("echo", text=largest)).codes == (GRANT,)
    assert engine.decide(request("echo", text=largest + "x")).codes == ("decision.request_invalid",)
    beyond = engine.decide_body(body("echo", text=largest + "x"))
    message = "the request has 1048577 bytes, but at most 1048576 are allowed"
    assert beyond == refused(beyond, "decision.request_invalid", message)


@pytest.mark.opa
@settings(max_examples=100)
@given(text=st.binary(max_size=200))
def test_arbitrary_bytes_are_never_allowed(shared: EmbeddedEngine, text: bytes) -> None:
    decided = shared.decide_body(text)

    assert decided.verdict is Verdict.DENY
    assert decided.codes == ("engine.answer_invalid",)


@pytest.mark.opa
def test_closed_engine_denies(bundle: Bundle) -> None:
    with EmbeddedEngine(bundle) as engine:
        pass

    decided = engine.decide(request("echo"))

    assert decided == refused(decided, "engine.unavailable", "the engine is closed")


NO_DECISION = "the policy engine's answer is not a decision"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param("[]", "the policy leaves its decision undefined", id="undefined"),
        pytest.param('[{"result":1},{"result":2}]', f"{NO_DECISION}: not JSON", id="two results"),
        pytest.param("nope", "the policy's answer is not a result set of OPA", id="no JSON"),
        pytest.param('[{"result":NaN}]', f"{NO_DECISION}: not JSON", id="NaN"),
        pytest.param('{"result":1}', "the policy's answer is not a result set of OPA", id="no list"),
        pytest.param('[{"other":1}]', "the policy's answer is not a result set of OPA", id="no result"),
        pytest.param('[{"result":1,"x":2}]', f"{NO_DECISION}: not JSON", id="more than a result"),
        pytest.param('[{"result":{},"result":{}}]', f"{NO_DECISION}: not JSON", id="a result twice"),
        pytest.param('[ {"result":1}]', "the policy's answer is not a result set of OPA", id="spaces"),
        pytest.param("[1]", "the policy's answer is not a result set of OPA", id="no object"),
    ],
)
def test_request_is_denied_if_the_answer_is_not_a_result_set(answer: str, message: str) -> None:
    text = answer.replace('"', r"\22")
    bundle = bundle_of(by_hand(answer=rf'(data (i32.const 100) "{text}\00")'))

    with EmbeddedEngine(bundle) as engine:
        decided = engine.decide_body(b"{}")

    assert decided == refused(decided, "engine.answer_invalid", message)


def test_policy_without_entrypoint_is_rejected() -> None:
    bundle = bundle_of(by_hand(names=r'(data (i32.const 300) "{\22authz/other\22:0}\00")'))

    with pytest.raises(BundleError) as caught:
        EmbeddedEngine(bundle)

    assert str(caught.value) == (
        "the bundle's policy has no entrypoint authz/decision (build the bundle with `pdp bundle build`)"
    )


# Data


@pytest.mark.opa
def test_data_set_at_run_time_changes_decision(bundle: Bundle) -> None:
    with EmbeddedEngine(bundle, data={"settings": {"verdict": "STEP_UP"}}) as engine:
        decided = engine.decide(request("echo"))

    assert decided == echoed(bundle, decided, Verdict.STEP_UP)


@pytest.mark.opa
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"authz": {"concerns": {"zz": {"allow": ["x"]}}}},
            "data: the root `authz` is not allowed (use only directory and settings)"),
        ({"custom": {}}, "data: the root `custom` is not allowed (use only directory and settings)"),
        ({"config": {}}, "data: the root `config` is not allowed (use only directory and settings)"),
        ({"manifests": {}}, "data: the root `manifests` is not allowed (use only directory and settings)"),
        ({"settings": []}, "data: settings must be a mapping"),
        ({"settings": {"x": float("nan")}}, "data: settings.x: nan is not a number of JSON"),
        ([1], "data: must be a mapping (write the keys directory and settings)"),
    ],
)  # fmt: skip
def test_invalid_data_is_rejected(bundle: Bundle, data: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        EmbeddedEngine(bundle, data=data)

    assert str(caught.value) == message


def test_policy_data_set_at_run_time_is_merged_key_by_key() -> None:
    base = {"config": {"a": 1}, "settings": {"kept": 1, "deep": {"kept": 2, "over": [1, 2]}}, "manifests": {NAMED: {}}}

    merged = merged_data(
        base,
        manifests={WITH_TOOLS: {"tools": {}}},
        data={"settings": {"deep": {"over": [3]}, "new": None}, "directory": {}},
    )

    assert merged == {
        "config": {"a": 1},
        "settings": {"kept": 1, "deep": {"kept": 2, "over": [3]}, "new": None},
        "manifests": {NAMED: {}, WITH_TOOLS: {"tools": {}}},
        "directory": {},
    }
    assert base["manifests"] == {NAMED: {}}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"tools": {"x": {}}}, "manifest m1: the document does not have this digest"),
        ([], "manifest m1: must be a JSON object"),
        ({"limit": 2**53}, "manifest m1: limit: number beyond 2^53-1"),
    ],
)
def test_invalid_manifests_are_rejected(document: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        merged_data({"manifests": {"m1": {"tools": {}}}}, manifests={"m1": document})

    assert caught.value.message == message


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"tool": "pay_bil", "at_most": 1},
         "planning rule `ONCE`: tool: `pay_bil` is not a tool of the manifests (did you mean `pay_bill`?)"),
        ({"requires": ["pay_bill", "read"]},
         ("planning rule `ONCE`: requires: `read` is not a tool of the manifests "
         "(add its manifest, or remove the rule)")),
        ({"tool": "pay_bill", "only_after": ["pay_bil"]},
         "planning rule `ONCE`: only_after: `pay_bil` is not a tool of the manifests (did you mean `pay_bill`?)"),
    ],
)  # fmt: skip
def test_planning_rules_with_unknown_tools_are_rejected(rule: Any, message: str) -> None:
    document: dict[str, Any] = {"tools": {"pay_bill": {}}}
    data = {"directory": {"planning": {"ONCE": rule, "TORN": ["pay_bil"], "MISTYPED": {"tool": 7, "requires": [7]}}}}

    with pytest.raises(UsageError) as caught:
        merged_data({}, manifests={digest(canonical(document)): document}, data=data)

    assert str(caught.value) == f"data: {message}"
    # Without a manifest, no tools are known, so planning rules may name any tool.
    assert merged_data({}, data=data) == data


def test_later_data_files_override_earlier_data_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"settings": {"a": 1, "b": {"x": 1}}}')
    (tmp_path / "b.yaml").write_text("settings: {b: {y: 2}}\ndirectory: {c: 3}\n")

    assert read_data([tmp_path / "a.json", tmp_path / "b.yaml"]) == {
        "settings": {"a": 1, "b": {"x": 1, "y": 2}},
        "directory": {"c": 3},
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\xff\xfe\x00", "not text: byte 0xff is not UTF-8"),
        (b"[" * 100_000, "nested deeper than 64 levels"),
        (b'{"settings": {"a": 1, "a": 2}}', "key `a` is a duplicate, first on line 1"),
        (b'{"other": {}}', "the root `other` is not allowed"),
        (b'{"settings": []}', "settings must be a mapping"),
        (b'{"settings": {"a": 9007199254740993}}', "number `9007199254740993` is beyond 2^53-1"),
    ],
)
def test_faulty_data_files_are_rejected_with_location(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "data.json"
    file.write_bytes(content)

    with pytest.raises(FileFaultsError) as caught:
        read_data([file])

    assert [(fault.place.file, fault.message) for fault in caught.value.faults] == [(str(file), message)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b" " * (32 * 1024 * 1024 + 1), "larger than 32 MiB (check that this is the right file, or split it)"),
        (None, "no such file (check the path)"),
    ],
)
def test_unreadable_data_files_are_named_in_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "data.json"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(UsageError) as caught:
        read_data([file])

    assert str(caught.value) == f"{file}: {message}"


# Limits


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"deadline": 0}, "deadline: 0 is not a number of seconds (give a number above 0, at most 3600)"),
        ({"deadline": float("nan")}, "deadline: nan is not a number of seconds (give a number above 0, at most 3600)"),
        ({"deadline": 1e9}, "deadline: 1000000000.0 is not a number of seconds (give a number above 0, at most 3600)"),
        ({"memory_limit": 0}, "memory_limit: 0 bytes are out of range (give 1048576 to 2147483648)"),
        ({"memory_limit": 2**40}, "memory_limit: 1099511627776 bytes are out of range (give 1048576 to 2147483648)"),
    ],
)
def test_engine_limits_out_of_range_are_rejected(limits: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        EmbeddedEngine(bundle_of(by_hand()), **limits)

    assert str(caught.value) == message


@pytest.mark.opa
def test_manifest_size_does_not_count_towards_the_memory_limit_of_the_engine(bundle: Bundle) -> None:
    tools = {f"tool_{count}": {"scopes": [f"scope.{count}"], "limits": [{"limit": "x"}]} for count in range(10_000)}

    document = {"tools": tools}

    with EmbeddedEngine(bundle, manifests={digest(canonical(document)): document}, memory_limit=1024 * 1024) as engine:
        decided = engine.decide(request("echo"))

    assert decided == echoed(bundle, decided)


EXIT = """
import builtins, sys
from pdp.engine.bundle.file import pack_bundle, read_bundle
from pdp.engine.wasm.engine import EmbeddedEngine
from tests.support.probe_policy import by_hand

builtins.kept = EmbeddedEngine(read_bundle(pack_bundle(release=1, wasm=by_hand(), data={}, modules={})))
print(builtins.kept.evaluate(b"{}"))
"""


@pytest.mark.process
def test_program_that_does_not_close_its_engine_ends_without_error_output() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, check=False, env=environment)

    assert (done.returncode, done.stdout, done.stderr) == (0, "b'1'\n", "")
