"""`ToolGuard`, which all adapters use, is tested without a framework."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pdp import Approvals, Pep, Registry
from pdp.adapters.guard.guard import CallOutcome, FrameworkCall, OutcomeKind, ToolGuard
from pdp.documents import read_document
from pdp.errors import UsageError
from pdp.json import thawed
from pdp.manifest.load import load_effective, load_manifest
from pdp.testing.conformance.cases import CASES
from pdp.testing.conformance.run import run
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World, run_body
from tests.adapters.client import AdapterClient
from tests.support.scripted import Scripted, answer, duty

MANIFEST = "pdp/testing/conformance/manifest.yaml"
SESSION = World.session


class GuardClient(AdapterClient):
    async def turn(self, tool: str, arguments: dict[str, Any], call_id: str) -> Observed:
        async def body(decided: dict[str, Any]) -> str:
            return run_body(self.world.record, tool, decided)

        outcome = await ToolGuard(self.pep, SESSION).acall(FrameworkCall(tool, arguments, call_id), body)
        return Observed(outcome.text, outcome.is_error, outcome.approval.id if outcome.approval else None)

    async def alisted(self) -> Sequence[str]:
        return sorted(await ToolGuard(self.pep, SESSION).avisible([*self.pep.manifest.tools, "open_shell"]))


class GuardTarget:
    name = "guard"
    versions: Mapping[str, str] = {}
    spelling = "{}"
    impossible: Mapping[str, str] = {"positional arguments": "An adapter's calls have names."}

    @contextmanager
    def open(self, world: World) -> Iterator[GuardClient]:
        with GuardClient.opened(world) as client:
            yield client


@pytest.mark.process
def test_tool_guard_passes_the_conformance_suite(tmp_path: Path) -> None:
    cells = run(GuardTarget(), tmp_path)

    assert {case: cell for case, cell in cells.items() if cell != "pass"} == {
        "positional arguments": "impossible: An adapter's calls have names."
    }
    assert cells.keys() == CASES.keys()


def test_guard_outcome_contains_the_unchanged_result_object_of_the_tool(pep: Pep) -> None:
    own = object()

    outcome = ToolGuard(pep, SESSION).call(
        FrameworkCall("read_note", '{"note": "a"}', "c1"), lambda _: own, lambda _: 7
    )

    assert (outcome.kind, outcome.text, outcome.own, outcome.value) == (OutcomeKind.RAN, "7", own, 7)


def test_guard_method_aask_opens_an_approval_without_running_the_call(pep: Pep) -> None:
    guard = ToolGuard(pep, SESSION)
    bill = FrameworkCall("pay_bill", {"payee": "a", "amount": 5})

    asked = [asyncio.run(guard.aask(bill)), asyncio.run(guard.aask(FrameworkCall("read_note", {"note": "a"})))]
    assert pep.approvals is not None
    pep.approvals.grant(asked[0].approval.id if asked[0].approval else "", World.approver)
    ran = guard.call(bill, lambda decided: decided)

    assert [each.kind for each in asked] == [OutcomeKind.HELD, OutcomeKind.RAN]
    assert (ran.kind, ran.value) == (OutcomeKind.RAN, {"payee": "a", "amount": 5})


def test_equivalent_schema_of_an_older_draft_matches_the_manifest(pep: Pep) -> None:
    declared = thawed(pep.manifest.tools["read_note"].schema_)
    draft = {**declared, "$schema": "http://json-schema.org/draft-07/schema#", "definitions": {}, "odd": 1}

    ToolGuard(pep, SESSION).check({"read_note": draft})
    with pytest.raises(UsageError, match="draft-03"):
        ToolGuard(pep, SESSION).check({"read_note": {"$schema": "http://json-schema.org/draft-03/schema#"}})


def test_call_is_denied_if_the_session_function_fails(pep: Pep) -> None:
    def session(context: Any) -> dict[str, Any]:
        raise KeyError(context)

    outcome = ToolGuard(pep, session).call(FrameworkCall("read_note", {"note": "a"}), lambda _: 1)

    assert outcome.kind is OutcomeKind.DENIED
    assert outcome.text == "pep.internal_error: the call could not be decided, so the tool did not run"


def test_error_after_the_run_still_reports_that_the_tool_ran(pep: Pep) -> None:
    class Faulty(Pep):
        def call(self, *asked: Any, **ids: Any) -> Any:
            super().call(*asked, **ids)
            raise RuntimeError("a fault of the enforcement point")

    with Faulty.from_files(MANIFEST) as faulty:
        outcome = ToolGuard(faulty, SESSION).call(FrameworkCall("read_note", {"note": "a"}), lambda _: 1)

    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.text == "pep.internal_error: the tool ran, but its result could not be delivered"


def test_session_combines_the_session_function_result_with_framework_values(pep: Pep) -> None:
    guard = ToolGuard(pep, lambda context: {**SESSION, "purpose": context, "run_id": None})
    call = FrameworkCall("read_note", {"note": "a"}, "c1", context="kit", agent="agent:kit", run_id="r1")

    guard.call(call, lambda _: 1)

    dispatched = pep.audit.events[0]  # type: ignore[attr-defined]
    assert (dispatched["agent"], dispatched["run_id"], dispatched["tool_call_id"]) == ("agent:kit", "r1", "c1")


def test_calls_with_the_same_arguments_in_a_run_that_cannot_pause_have_the_same_key() -> None:
    wire = {"beneficiary_id": "bene-acme-441", "amount": 30_000, "source_account": "a", "reference": "r"}
    with Pep.from_project("examples/payments/pdp.yaml", approvals=Approvals()) as pep:
        session = read_document(Path("examples/payments/session.json")).value
        guard = ToolGuard(pep, {**session, "idempotency_key": None})
        calls = [FrameworkCall("initiate_wire", wire, number, run_id="r1", pauses=False) for number in "123"]
        held = guard.call(calls[0], lambda _: 1).approval
        assert pep.approvals is not None
        assert held is not None
        pep.approvals.grant(held.id, {"sub": "supervisor-9", "roles": ["payments.approver"]})
        ran: list[int] = []

        outcomes = [guard.call(call, lambda _: ran.append(1)) for call in calls[1:]]

    assert ([each.kind for each in outcomes], ran) == ([OutcomeKind.RAN] * 2, [1])


@pytest.mark.parametrize("arguments", [{"note": "a"}, '{"note": "a"}'], ids=["object", "text"])
def test_policy_sees_default_arguments_of_a_tool(pep: Pep, arguments: Any, caplog: pytest.LogCaptureFixture) -> None:
    declared = load_effective(Path(MANIFEST), None).tools["read_note"].schema_
    guard, ran = ToolGuard(pep, SESSION), list[Any]()
    for _ in range(2):
        guard.check({"read_note": _laid_over(declared, {"properties": {"page": {"default": 1000}}})})

    guard.call(FrameworkCall("read_note", arguments), ran.append)
    asyncio.run(guard.acall(FrameworkCall("read_note", {"note": "a", "page": 1}), _appending(ran)))

    assert ran == [{"note": "a", "page": 1000}, {"note": "a", "page": 1}]
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == ["read_note"]


def _appending(ran: list[Any]) -> Any:
    async def run(decided: Any) -> None:
        ran.append(decided)

    return run


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"page": {"type": "number", "default": "all"}}, "page: `default` none became 'all'"),
        (
            {"filter": {"properties": {"range": {"properties": {"to": {"default": 9}}}}}},
            "filter.range.to: `default` none became 9",
        ),
        ({"page": {"type": "number", "default": None}, "note": {"default": "x"}}, None),
    ],
    ids=["a default", "one in an object", "null, and one that is never used"],
)
def test_guard_rejects_invalid_default_arguments_of_a_tool(pep: Pep, own: Any, said: str | None) -> None:
    declared = load_effective(Path(MANIFEST), None).tools["read_note"].schema_
    real = _laid_over(declared, {"properties": own})
    if said is None:
        ToolGuard(pep, SESSION).check({"read_note": real})
        return
    with pytest.raises(UsageError) as refused:
        ToolGuard(pep, SESSION).check({"read_note": real})
    assert refused.value.message == f"tools differ from manifest 1.0.0: read_note: {said}"


def _laid_over(schema: Any, changes: Any) -> Any:
    if not isinstance(changes, dict):
        return changes
    return {**schema, **{name: _laid_over(schema.get(name, {}), change) for name, change in changes.items()}}


def test_error_lists_every_difference_from_the_manifest(pep: Pep) -> None:
    guard = ToolGuard(pep, SESSION)
    as_declared = {"type": "object", "properties": {"disk": {"type": "string"}}, "required": ["disk"]}
    guard.check({"wipe_disk": as_declared, "open_shell": {"type": "object"}})

    with pytest.raises(UsageError) as caught:
        guard.check({"wipe_disk": {"type": "object", "properties": {"disk": {"type": "integer"}, "all": {}}}})

    assert "wipe_disk: disk: type string became integer" in caught.value.message
    assert "wipe_disk: all: is new" in caught.value.message


def test_guard_rejects_a_pep_with_a_registry() -> None:
    with Pep.from_registry(Registry(load_manifest(Path(MANIFEST)))) as own, pytest.raises(UsageError):
        ToolGuard(own, SESSION)


def test_idempotency_key_is_derived_from_run_and_call_id() -> None:
    claims = {"sub": "officer-123", "emts": {"payments.wire.initiate": True}, "limits": {"wire.auto_approved": 25000}}
    session = {"claims": claims, "facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}}
    wire = {"beneficiary_id": "bene-acme-441", "amount": 47_500, "source_account": "ops-main", "reference": "inv-1"}

    def key(call_id: str, stated: str | None, known: str | None) -> str | None:
        call = FrameworkCall("initiate_wire", wire, call_id, run_id=known)
        held = asyncio.run(
            ToolGuard(payments, lambda _: {**session, "run_id": stated} if stated else session).aask(call)
        )
        return held.approval.idempotency_key if held.approval else None

    with Pep.from_project("examples/payments/pdp.yaml", approvals=Approvals()) as payments:
        first, again, stronger = key("c1", None, "r1"), key("c1", "r1", None), key("c1", "r1", "r2")
        others = [key("c2", "r1", None), key("c1", "r2", None), key("c1", None, None)]

    assert first is not None
    assert (first == again == stronger, others.count(first), others[-1]) == (True, 0, None)


def test_neither_the_called_nor_the_new_tool_runs_if_the_policy_replaces_the_tool() -> None:
    def respond(request: dict[str, Any]) -> dict[str, Any]:
        return answer(
            "ALLOW", *([duty("transform", tool="post_note")] if request["action"]["name"] == "read_note" else [])
        )

    ran: list[Any] = []
    with Pep(load_effective(Path(MANIFEST), None), Scripted(respond)) as pep:
        outcome = ToolGuard(pep, SESSION).call(FrameworkCall("read_note", {"note": "a"}), ran.append)

    assert (outcome.kind, outcome.text, ran) == (
        OutcomeKind.FAILED,
        "TOOL_UNAVAILABLE: the policy replaced read_note with post_note, but the framework can only run read_note",
        [],
    )


@pytest.mark.parametrize("granted", [False, True], ids=["waiting", "granted"])
def test_approval_of_a_rejected_call_is_withdrawn(pep: Pep, granted: bool) -> None:
    guard, bill = ToolGuard(pep, SESSION), FrameworkCall("pay_bill", {"payee": "a", "amount": 5})
    assert pep.approvals is not None
    held = asyncio.run(guard.aask(bill)).approval
    assert held is not None
    if granted:
        pep.approvals.grant(held.id, World.approver)

    answers = ["go on", {"type": "reject"}, {"type": "reject", "approval_id": held.id, "message": "not today"}]
    others = [guard.reject(FrameworkCall("read_note", {"note": "a"}), answers), guard.reject(bill, answers[:2])]
    rejected = guard.reject(bill, answers)

    assert (others, rejected) == (
        [None, None],
        CallOutcome(OutcomeKind.DENIED, "rejected, so the tool did not run: not today"),
    )
    assert [each.state.value for each in pep.approvals.list()] == ["withdrawn"]
    assert guard.call(bill, lambda decided: decided).kind is OutcomeKind.HELD
