"""The steps of a scenario run through the enforcement point, and the results are compared with the expectations."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from pdp.workbench.scenarios.files.suite import load_suite
from pdp.workbench.scenarios.reports.text import summary_text
from pdp.workbench.scenarios.results import Golden, Mismatch, RunResult, Score, SuiteResult
from pdp.workbench.scenarios.running.engines import open_suite_engine
from pdp.workbench.scenarios.running.expectation import equal, mismatches
from pdp.workbench.scenarios.running.runner import Runner, agreed
from tests.support.scenario_files import BIG, BOB, MANIFEST, READ, differing, loaded, one, project, ran, ran_one

ALLOWED = {"status": "accepted", "verdict": "ALLOW", "codes": ["effects.gate_satisfied", "risk.acceptable"]}


def test_scenario_decides_and_executes_a_proposal(tmp_path: Path) -> None:
    expect = {
        **ALLOWED, "rejection": None, "obligations": [], "arguments": {"id": "n-1"}, "pruned": False, "executed": True,
        "result": None, "failure": None, "approval": None, "markings": [],
        "trace": {"manifest_version": "7", "in_manifest": True, "risk_tier": "low", "pdp_action": "read_note"},
    }  # fmt: skip

    result = ran_one(tmp_path, one(propose=READ, expect=expect, why="because", golden=True))

    assert (result.error, differing(result), result.passed) == (None, [], True)
    assert (result.name, result.why, result.golden, result.engine) == ("it", "because", True, "embedded")
    step = result.steps[0]
    assert (step.action, step.tool) == ("propose", "read_note")
    assert step.expected == {**expect, "codes": ["effects.gate_satisfied", "risk.acceptable"]}
    assert step.actual == step.expected


def test_mismatches_of_a_scenario_are_listed_by_expectation_key(tmp_path: Path) -> None:
    expect = {
        "verdict": "DENY", "status": "rejected", "codes": ["scopes.missing"], "executed": False,
        "rejection": "POLICY_VIOLATION", "arguments": {"id": "n-2"}, "pruned": True, "failure": "TOOL_TIMEOUT",
        "result": 5, "approval": "pending", "markings": ["pii"], "obligations": ["redact"],
        "trace": {"in_manifest": False, "risk_tier": "low"},
    }  # fmt: skip

    result = ran_one(tmp_path, one(propose=READ, expect=expect))

    assert not result.passed
    assert {key: (wanted, found) for key, wanted, found in differing(result)} == {
        "status": ("rejected", "accepted"),
        "rejection": ("POLICY_VIOLATION", None),
        "verdict": ("DENY", "ALLOW"),
        "codes": (["scopes.missing"], ["effects.gate_satisfied", "risk.acceptable"]),
        "obligations": (["redact"], []),
        "trace": ({"in_manifest": False, "risk_tier": "low"}, {"in_manifest": True, "risk_tier": "low"}),
        "arguments": ({"id": "n-2"}, {"id": "n-1"}),
        "pruned": (True, False),
        "executed": (False, True),
        "result": (5, None),
        "failure": ("TOOL_TIMEOUT", None),
        "approval": ("pending", None),
        "markings": (["pii"], []),
    }


def test_scenario_uses_an_approval_only_once(tmp_path: Path) -> None:
    result = ran_one(
        tmp_path,
        one(
            session={"time": "2026-07-01T10:00:00Z"},
            steps=[
                {"propose": BIG, "expect": {"verdict": "STEP_UP", "approval": "pending", "executed": False}},
                {
                    "approve": {"claims": {"sub": "ann", "roles": ["wires.approver"]}},
                    "expect": {"refused": "requester", "approval": "pending"},
                },
                {"approve": BOB, "at": "2026-07-01T10:05:00Z", "expect": {"approval": "granted", "refused": None}},
                {"propose": BIG, "expect": {"verdict": "ALLOW", "executed": True, "approval": "consumed"}},
                {"propose": BIG, "expect": {"verdict": "ALLOW", "executed": False, "approval": "consumed"}},
                {
                    "propose": BIG,
                    "session": {"idempotency_key": "key-2"},
                    "expect": {"verdict": "STEP_UP", "approval": "pending"},
                },
                {"deny": BOB, "expect": {"approval": "denied"}},
                {
                    "propose": BIG,
                    "session": {"idempotency_key": "key-2"},
                    "expect": {"verdict": "STEP_UP", "approval": "pending"},
                },
            ],
        ),
    )

    assert (result.error, differing(result)) == (None, [])
    contexts = [orjson.loads(answer.body)["context"] for step in result.steps for answer in step.answers]
    assert [context["time"] for context in contexts] == ["2026-07-01T10:00:00Z", *["2026-07-01T10:05:00Z"] * 4]
    assert [context["approval"] and context["approval"]["id"] for context in contexts] == [
        None, "approval-1", "approval-1", None, None,
    ]  # fmt: skip


def test_scenario_stops_at_the_first_failed_step(tmp_path: Path) -> None:
    steps = [{"propose": READ, "expect": {"verdict": verdict}} for verdict in ("ALLOW", "DENY", "ALLOW")]

    result = ran_one(tmp_path, one(steps=steps))

    assert [[each.key for each in step.mismatches] for step in result.steps] == [[], ["verdict"]]


def test_scenario_step_that_approves_without_an_open_approval_is_an_error(tmp_path: Path) -> None:
    result = ran_one(tmp_path, one(steps=[{"approve": BOB, "expect": {"approval": "granted"}}]))

    assert not result.passed
    assert result.error == (
        "no STEP_UP in this scenario has opened an approval (add an earlier step that proposes the call)"
    )


def test_scenarios_of_a_suite_share_no_state(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("seen = []\ndef read_note(id):\n    seen.append(id)\n    return len(seen)\n")
    steps = [{"propose": BIG, "expect": {"approval": "pending"}}, {"approve": BOB, "expect": {"approval": "granted"}}]
    file = project(
        tmp_path,
        one(name="granted", steps=steps),
        one(name="not granted", propose=BIG, expect={"verdict": "STEP_UP"}),
        one(name="first", propose=READ, expect={"result": 1}),
        one(name="and first", steps=[{"propose": READ, "expect": {"result": count}} for count in (1, 2)]),
        tools="tools.py",
    )

    assert [(result.name, result.error, differing(result)) for result in ran(file)] == [
        ("granted", None, []), ("not granted", None, []), ("first", None, []), ("and first", None, []),
    ]  # fmt: skip


def test_scenario_field_returns_replaces_the_tool_function_only_in_its_step(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def tools():\n    return {'read_note': lambda id: 'real'}\n")
    result = ran_one(
        tmp_path,
        one(
            steps=[
                {"propose": READ, "returns": {"a": [1]}, "expect": {"result": {"a": [1]}}},
                {"propose": READ, "expect": {"result": "real"}},
                {"propose": READ, "returns": None, "expect": {"result": None}},
            ]
        ),
        tools="tools.py",
    )

    assert (result.error, differing(result)) == (None, [])


def test_returned_value_is_copied_for_each_run(tmp_path: Path) -> None:
    suite = loaded(tmp_path, one(propose=READ, returns={"a": [1]}, expect={"executed": True}))
    with open_suite_engine(suite, "embedded") as engine:
        runner = Runner(suite, engine)
        runner.run(0).steps[0].evaluations[0].result["a"].append(2)
        again = runner.run(0).steps[0].evaluations[0].result

    assert again == {"a": [1]}


def test_scenario_with_a_plan_runs_its_proposals_in_order(tmp_path: Path) -> None:
    result = ran_one(
        tmp_path,
        one(
            plan=[READ, {"tool": "shell", "arguments": {}}],
            returns=["text", None],
            expect=[{"result": "text"}, {"rejection": "INVALID_TOOL_NAME", "verdict": "ALLOW"}],
        ),
    )

    assert differing(result) == [("plan[1].verdict", "ALLOW", None)]
    sessions = load_suite(tmp_path / "scenarios.json").sessions
    assert [session.plan for session in sessions[0] if session] == [[READ, {"tool": "shell", "arguments": {}}]]
    assert [answer["context"]["request_id"] for answer in _bodies(result)] == ["it/1.1"]


def test_raw_request_of_a_scenario_is_decided_without_contract_checks(tmp_path: Path) -> None:
    request: dict[str, Any] = {
        "subject": {"type": "user", "id": "ann", "properties": {"scopes": ["wires.send"], "limits": {"wires": 1}}},
        "action": {
            "name": "send_wire",
            "properties": {
                "tool": "send_wire", "manifest_version": "$manifest_version", "manifest_digest": "$manifest_digest",
            },
        },
        "resource": {"type": "tool", "id": "send_wire", "properties": {}},
        "context": {
            "arguments": {"amount": -1}, "idempotency_key": "k", "call_digest": "$call_digest", "approval": None,
            "time": "2026-07-01T10:00:00Z", "run_id": None, "request_id": "r", "purpose": None,
        },
    }  # fmt: skip
    result = ran_one(
        tmp_path,
        one(
            steps=[
                {"request": request, "expect": {"verdict": "DENY", "codes": ["limits.invalid"], "obligations": []}},
                {"request": ["no", "request"], "expect": {"verdict": "DENY", "codes": ["decision.request_invalid"]}},
            ]
        ),
    )

    assert (result.error, differing(result)) == (None, [])
    assert [step.tool for step in result.steps] == ["send_wire", None]
    sent = _bodies(result)[0]
    assert sent["action"]["properties"]["manifest_version"] == "7"
    assert sent["action"]["properties"]["manifest_digest"] == load_suite(tmp_path / "scenarios.json").manifest.digest
    assert sent["context"]["call_digest"].startswith("sha256:")


def test_too_deeply_nested_raw_request_is_rejected(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]

    result = ran_one(tmp_path, one(request=deep, expect={"verdict": "DENY", "codes": ["decision.request_invalid"]}))

    assert (result.error, differing(result), result.steps[0].answers) == (None, [], ())


def test_repeated_scenario_run_sends_the_same_requests(tmp_path: Path) -> None:
    steps = [
        {"propose": BIG, "expect": {"approval": "pending"}},
        {"approve": BOB, "expect": {"approval": "granted"}},
        {"propose": BIG, "expect": {"executed": True}},
    ]
    suite = loaded(tmp_path, one(name="before", propose=READ, expect={"verdict": "ALLOW"}), one(steps=steps))
    with open_suite_engine(suite, "embedded") as engine:
        runner = Runner(suite, engine)
        first, second = runner.run(1), runner.run_all()[1]

    assert [step.answers[0].body for step in first.steps if step.answers] == [
        step.answers[0].body for step in second.steps if step.answers
    ]
    assert orjson.loads(first.steps[0].answers[0].body)["context"] == {
        "approval": None,
        "arguments": {"amount": 500},
        "call_digest": orjson.loads(first.steps[0].answers[0].body)["context"]["call_digest"],
        "idempotency_key": orjson.loads(first.steps[0].answers[0].body)["context"]["idempotency_key"],
        "purpose": "notes",
        "request_id": "it/1",
        "run_id": "it",
        "time": "2026-01-01T00:00:00Z",
    }


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise RuntimeError('not today')", "tools.py:1: RuntimeError: not today"),
        ("def tools():\n    return 1 / 0", "tools.py:2: ZeroDivisionError: division by zero"),
        ("def tools():\n    return [1]", "tools.py: tools() must return functions by name, as a dict"),
        ("import sys\nsys.exit(3)", "tools.py:2: SystemExit: 3"),
        (
            "import sys\ndef read_note(id):\n    sys.exit(0)",
            "a tool tried to end the process: sys.exit(0)",
        ),
        ("import pytest\npytest.fail('x')", "tools.py:2: Failed: x"),
        ("import pytest\n\ndef read_note(id):\n    pytest.fail('x')", "tools.py:4: Failed: x"),
        ("class Own(BaseException): ...\nraise Own", "tools.py:2: Own"),
        ("class Own(BaseException): ...\ndef read_note(id):\n    raise Own('why')", "tools.py:3: Own: why"),
        ("class Own(BaseException): ...\nasync def read_note(id):\n    raise Own", "tools.py:3: Own"),
        ("def read_note(id):\n    raise GeneratorExit", "tools.py:2: GeneratorExit"),
        ("import asyncio\ndef read_note(id):\n    raise asyncio.CancelledError", "tools.py:3: CancelledError"),
        ("def tools():\n    raise GeneratorExit", "tools.py:2: GeneratorExit"),
        ("import nothing_of_that_name", "tools.py:1: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
    ],
)
def test_scenario_reports_an_error_if_its_tools_file_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools.py").write_text(source)

    result = ran_one(Path(), one(propose=READ, expect={"verdict": "ALLOW"}), tools="tools.py")

    assert (result.passed, result.error, result.steps) == (False, error, ())


@pytest.mark.parametrize("source", ["raise KeyboardInterrupt", "def read_note(id):\n    raise KeyboardInterrupt"])
def test_interrupt_ends_the_scenario_run(tmp_path: Path, source: str) -> None:
    (tmp_path / "tools.py").write_text(source)

    with pytest.raises(KeyboardInterrupt):
        ran_one(tmp_path, one(propose=READ, expect={"verdict": "ALLOW"}), tools="tools.py")


def test_tools_file_may_use_dataclasses_and_read_other_files(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello")
    (tmp_path / "tools.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import asdict, dataclass\nfrom pathlib import Path\n"
        "@dataclass\nclass Note:\n    text: str\n"
        "def read_note(id):\n    return asdict(Note(Path(__file__).with_name('note.txt').read_text()))\n"
    )

    result = ran_one(tmp_path, one(propose=READ, expect={"result": {"text": "hello"}}), tools="tools.py")

    assert (result.error, differing(result)) == (None, [])


def test_scenario_can_expect_the_failure_of_a_tool(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def read_note(id):\n    raise ValueError('no such note')\n")

    result = ran_one(
        tmp_path,
        one(propose=READ, expect={"failure": "TOOL_EXECUTION_FAILED", "executed": True, "result": None}),
        tools="tools.py",
    )

    assert (result.error, differing(result)) == (None, [])


def test_mismatch_says_that_a_tool_result_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def read_note(id):\n    return {1, 2}\n")

    result = ran_one(tmp_path, one(propose=READ, expect={"result": [1, 2]}), tools="tools.py")

    assert differing(result) == [("result", [1, 2], "<not JSON: set>")]


def test_scenario_fails_if_engines_decide_differently(tmp_path: Path) -> None:
    file = project(tmp_path, one(propose=READ, expect={"executed": True}))
    allowed = ran(file)[0]
    tools = [{**MANIFEST["tools"][0], "risk_tier": "medium"}, MANIFEST["tools"][1]]
    (tmp_path / "manifest.json").write_text(orjson.dumps({**MANIFEST, "tools": tools}).decode())
    suite = load_suite(file)
    with open_suite_engine(suite, "embedded") as engine:
        other = Runner(suite, engine).run(0)

    assert agreed(allowed, allowed) == allowed
    differs = agreed(allowed, other)
    assert [each.key for step in differs.steps for each in step.mismatches] == ["decision, embedded against embedded"]
    assert not differs.passed


def _run_of(tmp_path: Path, *scenarios: dict[str, Any]) -> RunResult:
    suite = loaded(tmp_path, *scenarios)
    with open_suite_engine(suite, "embedded") as engine:
        return RunResult((SuiteResult(suite, "embedded", tuple(Runner(suite, engine).run_all()), 0.0),))


def test_golden_scenarios_are_counted(tmp_path: Path) -> None:
    run = _run_of(
        tmp_path,
        one(name="a", golden=True, propose=READ, expect={"verdict": "ALLOW"}),
        one(name="b", golden=True, propose={"tool": "read_note"}, expect={"rejection": "INVALID_PAYLOAD"}),
        one(name="c", golden=True, propose={"tool": "x"}, expect={"rejection": "INVALID_TOOL_NAME"}),
        one(name="d", golden=True, propose=READ, expect={"trace": None, "verdict": "ALLOW"}),
        one(name="e", propose=READ, expect={"verdict": "ALLOW"}),
    )

    assert run.golden == Golden(total=4, in_manifest=3, schema_valid=2, tools=Score(0, 0), arguments=Score(0, 0))


def test_recorded_agent_calls_are_scored_by_tool_and_arguments(tmp_path: Path) -> None:
    wanted = {"trace": {"tool_name": "read_note", "in_manifest": True}, "arguments": {"id": "n-1"}}
    function = {"name": "read_note", "arguments": '{"id": "n-1"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    run = _run_of(
        tmp_path,
        one(name="right, as its API spelled it", golden=True, propose=call, expect=wanted),
        one(name="another tool", golden=True, propose=BIG, expect={"trace": {"tool_name": "read_note"}}),
        one(name="a plan", golden=True, plan=[READ, READ], expect=[wanted, {**wanted, "arguments": {"id": "n-2"}}]),
        one(name="not golden", propose=READ, expect=wanted),
    )

    assert run.golden == Golden(total=3, in_manifest=3, schema_valid=3, tools=Score(3, 4), arguments=Score(2, 3))
    assert summary_text(run).splitlines()[1] == (
        "golden: 3, of which 3 schema-valid and 3 in the manifest; 3 of 4 have the expected tool; "
        "2 of 3 have the expected arguments"
    )


@pytest.mark.parametrize(
    ("wanted", "found", "same"),
    [
        ({"codes": ["b", "a"]}, {"codes": ["a", "b"]}, True),
        ({"codes": ["a"]}, {"codes": ["a", "b"]}, False),
        ({"markings": []}, {"markings": ["a"]}, False),
        ({"result": 1}, {"result": 1.0}, True),
        ({"result": True}, {"result": 1}, False),
        ({"result": [1, 2]}, {"result": [2, 1]}, False),
        ({"arguments": {"a": {"b": 1}}}, {"arguments": {"a": {"b": 1.0}}}, True),
        ({"obligations": ["a", "a"]}, {"obligations": [{"id": "a", "parameters": {"n": n}} for n in (1, 2)]}, True),
        ({"obligations": [{"id": "a", "parameters": {}}]}, {"obligations": []}, False),
        ({"obligations": ["a"]}, {"obligations": [{"id": "a", "parameters": {"n": n}} for n in (1, 2)]}, False),
        (
            {"obligations": ["a", {"id": "a", "parameters": {"n": 1}}]},
            {"obligations": [{"id": "a", "parameters": {"n": n}} for n in (1, 2)]},
            True,
        ),
        (
            {"obligations": [{"id": "a", "parameters": {"n": 1}}] * 2},
            {"obligations": [{"id": "a", "parameters": {"n": n}} for n in (1, 2)]},
            False,
        ),
    ],
)
def test_expected_values_of_a_scenario_are_compared_by_type_and_value(
    wanted: dict[str, Any], found: dict[str, Any], same: bool
) -> None:
    key = next(iter(wanted))

    assert mismatches(wanted, found) == (() if same else (Mismatch(key, wanted[key], found[key]),))


def test_expected_null_equals_only_null() -> None:
    values: list[Any] = [None, False, 0, "", [], {}]

    assert [equal(None, value) for value in values] == [True, False, False, False, False, False]


def _bodies(result: Any) -> list[Any]:
    return [orjson.loads(answer.body) for step in result.steps for answer in step.answers]
