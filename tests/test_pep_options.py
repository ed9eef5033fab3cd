"""`Pep` rejects invalid arguments when it is created, with a one-line message that says what to pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdp import Pep, Registry
from pdp.adapters.guard.guard import ToolGuard
from pdp.client.client import Client
from pdp.errors import UsageError
from pdp.manifest.load import load_effective
from pdp.stores.memory import MemoryApprovals
from tests.support import payments
from tests.support.payments import EXAMPLE
from tests.support.scripted import Scripted, answer

SESSION = {"claims": {"sub": "officer-123"}}


def from_files(**options: Any) -> Pep:
    return Pep.from_files(str(EXAMPLE / "manifest.json"), governance=str(EXAMPLE / "governance.yaml"), **options)


def from_registry(**options: Any) -> Pep:
    registry = Registry.from_files(EXAMPLE / "manifest.json", governance=EXAMPLE / "governance.yaml")
    return Pep.from_registry(registry, **options)


def changed(**options: Any) -> Pep:
    with payments.engine() as engine:
        return Pep(payments.effective(), engine).with_changes(**options)


MAKERS = [from_files, from_registry, changed]


def wire(**arguments: Any) -> Any:
    return arguments


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("initiate_wirre", "did you mean `initiate_wire`?"),
        ("shell", "give each function the name of its tool"),
    ],
)
def test_pep_rejects_a_function_for_an_unknown_tool(make: Callable[..., Pep], name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(tools={"initiate_wire": wire, name: wire})

    assert caught.value.message == f"tools: `{name}` is not a tool of manifest 2026.07.1"
    assert caught.value.hint == hint


def from_project(**options: Any) -> Pep:
    return Pep.from_project(EXAMPLE / "pdp.yaml", **options)


def remote(**options: Any) -> Any:
    return Pep.remote(**{"url": "https://localhost", **options})


def client(**options: Any) -> Client:
    return Client("https://localhost", **options)


def guard(**options: Any) -> ToolGuard:
    return ToolGuard(**{"session": {"claims": {"sub": "a"}}, **options})


def short(payee: str) -> str:
    return payee


def with_more(beneficiary_id: str, amount: float, source_account: str, reference: str, key: str) -> str:
    return key


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            from_project,
            {"audit": "a.jsonl"},
            "Pep.from_project: audit is 'a.jsonl', not AuditLog or None (pass FileAudit",
        ),
        (
            from_project,
            {"approvals": True},
            "Pep.from_project: approvals is True, not Approvals or None (pass Approvals())",
        ),
        (from_project, {"tools": [wire]}, "Pep.from_project: tools is [<function wire"),
        (from_project, {"watch": 1}, "Pep.from_project: watch is 1, not bool"),
        (from_project, {"engine": 5}, "Pep.from_project: engine is 5, not EngineName or Engine or None"),
        (from_project, {"budgets": "b"}, "Pep.from_project: budgets is 'b', not BudgetStore or None"),
        (from_project, {"approvals": print}, "Pep.from_project: approvals is <built-in function print>"),
        (from_files, {"polices": ["p"]}, "Pep.from_files has no argument `polices` (did you mean `policies`?)"),
        (
            from_files,
            {"policies": "policies"},
            "Pep.from_files: policies is 'policies', not Sequence[str | Path] (pass [",
        ),
        (
            from_registry,
            {"obligation": {}},
            "Pep.from_registry has no argument `obligation` (did you mean `obligations`?)",
        ),
        (changed, {"ledger": 1}, "Pep.with_changes: ledger is 1, not LedgerStore or None"),
        (remote, {"url": 5}, "Pep.remote: url is 5, not str"),
        (remote, {"tokn": "a"}, "Pep.remote has no argument `tokn` (did you mean `token`?)"),
        (client, {"timeout": True}, "Client: timeout is True, not float"),
        (from_files, {"policies": [7]}, "Pep.from_files: policies is [7], not Sequence[str | Path] (pass ["),
        (from_files, {"data": [7]}, "Pep.from_files: data is [7], not Mapping[str, Any] or Sequence[str | Path] or"),
        (from_files, {"tools": {7: wire}}, "Pep.from_files: tools is {7: <function wire"),
        (from_project, {"keyless": [[]]}, "Pep.from_project: keyless is [[]], not Iterable[str]"),
        (from_files, {"keys": MemoryApprovals()}, "Pep.from_files: keys is <pdp.stores.memory.MemoryApprovals"),
        (from_files, {"ledger": MemoryApprovals}, "Pep.from_files: ledger is <class"),
        (guard, {"pep": "pdp.yaml"}, "ToolGuard: pep is 'pdp.yaml', not Pep (pass Pep.from_project("),
        (guard, {}, "ToolGuard: missing a required argument: 'pep'"),
    ],
)
def test_pep_rejects_an_option_of_the_wrong_type(make: Callable[..., Any], options: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(**options)

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (5, "the function for tool initiate_wire: 5 is not a callable object"),
        (short, "the function for tool initiate_wire: missing a required argument: 'payee'"),
        (dict, "the function for tool initiate_wire: no signature found for builtin type <class 'dict'>"),
        (with_more, "the function for tool initiate_wire: missing a required argument: 'key'"),
    ],
)
def test_pep_rejects_a_function_whose_signature_differs_from_its_tool(
    make: Callable[..., Pep], function: Any, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make(tools={"initiate_wire": function})

    assert caught.value.message == message
    assert caught.value.hint == "add a parameter for each argument of the manifest's schema"


MANIFEST = """
manifest_version: 2026.1.0
tools:
  - {name: tail, risk_tier: low, effect_class: read-internal, scopes: [], schema: {type: object, required: [file],
     properties: {file: {type: string, maxLength: 9}, lines: {type: integer, maximum: 50}}}}
"""


def ten(file: str, lines: int = 10) -> str:
    return f"{lines} of {file}"


def hundred(file: str, lines: int = 100) -> str:
    return f"{lines} of {file}"


def no_json(file: str, lines: Any = Path("a")) -> str:
    return f"{lines} of {file}"


def test_policy_sees_default_arguments_of_a_guarded_function(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "manifest.yaml").write_text(MANIFEST)
    manifest = load_effective(tmp_path / "manifest.yaml")
    pep = Pep(manifest, Scripted(lambda _: answer("ALLOW")), tools={"tail": ten})
    guarded = Pep(manifest, Scripted(lambda _: answer("ALLOW")))
    tail = guarded.tool(named("tail", ten))

    evaluations = [
        pep.call({"tool": "tail", "arguments": arguments}, SESSION)
        for arguments in ({"file": "a"}, {"file": "a", "lines": 5})
    ]
    planned = pep.plan([{"tool": "tail", "arguments": {"file": "a"}}], SESSION).plan
    with guarded.using(SESSION):
        assert tail("b") == "10 of b"

    assert [each.request["context"]["arguments"]["lines"] for each in evaluations if each.request] == [10, 5]
    assert [each.result for each in evaluations] == ["10 of a", "5 of a"]
    assert planned == [{"tool": "tail", "arguments": {"file": "a", "lines": 10}}]
    assert "tail: argument lines defaults to 10" in caplog.records[0].getMessage()


def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def made(file: str, lines: int = 10) -> Any:
        return function(file, lines)

    made.__name__ = name
    return made


@pytest.mark.parametrize("function", [hundred, no_json])
def test_pep_rejects_a_default_argument_that_violates_the_schema(tmp_path: Path, function: Any) -> None:
    (tmp_path / "manifest.yaml").write_text(MANIFEST)

    with pytest.raises(UsageError, match="has a default that the manifest does not allow: lines: "):
        Pep.from_files(tmp_path / "manifest.yaml", tools={"tail": function})


@pytest.mark.parametrize("make", MAKERS)
def test_pep_accepts_functions_whose_signature_matches_the_tool(make: Callable[..., Pep]) -> None:
    pep = make(tools={"initiate_wire": wire, "validate_payment": wire})

    assert {name: name in pep._parts.tools for name in pep.manifest.tools} == {
        "lookup_beneficiary": False,
        "validate_payment": True,
        "initiate_wire": True,
    }


def failing(file: str, lines: int | None = None) -> str:
    raise RuntimeError(file)


def test_repr_of_an_evaluation_says_why_it_has_no_result(tmp_path: Path) -> None:
    (tmp_path / "manifest.yaml").write_text(MANIFEST)
    manifest = load_effective(tmp_path / "manifest.yaml")
    pep = Pep(manifest, Scripted(lambda _: answer("ALLOW")), tools={"tail": failing})
    proposals = [{"tool": "tail", "arguments": {"file": name}} for name in ("a", "longer than nine")]

    failed, rejected = [repr(pep.call(each, SESSION)) for each in proposals]
    unread = repr(pep.call("no JSON", SESSION))

    assert (
        failed
        == "Evaluation(ALLOW, tool='tail', codes=('effects.gate_satisfied',), 'TOOL_EXECUTION_FAILED: RuntimeError')"
    )
    assert rejected.startswith("Evaluation(rejected, tool='tail', codes=(), 'INVALID_PAYLOAD: arguments.file: ")
    assert unread.startswith("Evaluation(rejected, tool='', codes=(), 'INVALID_PAYLOAD: ")
