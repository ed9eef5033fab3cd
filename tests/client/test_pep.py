"""A call has the same outcome with `Pep.remote` and a running service as with a local engine."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pdp import Approvals, Client, Evaluation, Pep, ToolDeniedError, ToolFailedError, Verdict
from pdp.client.pep import RemotePep
from pdp.errors import EngineError, UsageError
from pdp.execution.failures import ToolError
from pdp.flow.preview import Visibility
from tests.support.payments import EXAMPLE, wire
from tests.support.service import APPROVER, OFFICER, RunningService, running_service

FACTS = {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("served")) as service:
        yield service


@pytest.fixture(scope="module")
def remote(served: RunningService) -> Iterator[RemotePep]:
    with Pep.remote(served.url, token=served.token(), tools={"initiate_wire": initiate_wire}) as pep:
        yield pep


@pytest.fixture(scope="module")
def local(served: RunningService) -> Iterator[Pep]:
    approvals = Approvals(public_url=served.url)
    with Pep.from_project(EXAMPLE / "pdp.yaml", approvals=approvals, tools={"initiate_wire": initiate_wire}) as pep:
        yield pep


@pytest.fixture
def client(served: RunningService) -> Iterator[Client]:
    with Client(served.url, token=served.token(["approve"], APPROVER)) as client:
        yield client


def initiate_wire(**arguments: Any) -> Any:
    if arguments["reference"] == "INV-FAILS":
        raise ToolError("the bank says no", details={"effect": "none", "reason": "closed"})
    if arguments["reference"] == "INV-RAISES":
        raise RuntimeError("password=hunter2")
    return {"wire": arguments["reference"]}


def session(key: str = "k-1", **changes: Any) -> dict[str, Any]:
    return {"claims": OFFICER, "facts": FACTS, "idempotency_key": key, "request_id": "req-1", **changes}


def shown(evaluation: Evaluation) -> dict[str, Any]:
    """Return all public values of an evaluation except ids and times, which differ between two evaluations."""
    approval, action = evaluation.approval, evaluation.action
    return {
        **evaluation.as_json(),
        "decision_id": None,
        "allowed": evaluation.allowed,
        "codes": evaluation.codes,
        "executed": evaluation.executed,
        "result": evaluation.result,
        "markings": evaluation.markings,
        "snapshot": evaluation.retrieval_snapshot,
        "trips": evaluation.trips,
        "failed_check": evaluation.failed_check,
        "pruned": evaluation.pruned,
        "state": evaluation.state,
        "pins": evaluation.pins,
        "error": repr(evaluation.error),
        "answer": evaluation.answer._replace(text=evaluation.answer.text.replace(str(approval and approval.id), "ID")),
        "call": evaluation.call,
        "replayed": evaluation.replayed,
        "approval": approval and replace(
            approval, id="", body=b"", opened_at="", expires_at="", action_id="", decision_id="", token={}
        ),
        "action": action and (action.kind, action.target, action.state, action.payload_digest),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("proposal", "changes"),
    [
        (wire(amount=20000, reference="INV-1"), {}),
        (wire(amount=20000, reference="INV-FAILS"), {}),
        (wire(amount=20000, reference="INV-RAISES"), {}),
        (wire(), {}),
        (wire(amount=20000), {"facts": {}}),
        (wire(amount=20000), {"claims": {"sub": "nobody-1"}}),
        (wire(amount="much"), {}),
        (wire(more=1), {}),
        (wire(amount=20000), {"idempotency_key": None}),
        ({"tool": "rm", "arguments": {}}, {}),
        ({"tool": "lookup_beneficiary", "arguments": {"name": "ACME"}}, {}),
        ({"tool_name": "initiate_wire", "payload": wire(amount=10)["arguments"]}, {}),
        ({"type": "tool_use", "id": "t-1", "name": "initiate_wire", "input": wire(amount=9)["arguments"]}, {}),
        ("{", {}),
        ({"tool": 1}, {}),
        (wire(), {"unknown": 1}),
        (wire(), {"facts": []}),
    ],
)
@pytest.mark.parametrize("step", ["call", "decide", "acall", "adecide"])
def test_remote_call_gives_the_same_evaluation_as_a_local_call(
    step: str, proposal: Any, changes: dict[str, Any], remote: RemotePep, local: Pep, request: pytest.FixtureRequest
) -> None:
    own_session = session(request.node.name[-500:], **changes)

    def evaluated(pep: Pep | RemotePep, own: Any) -> dict[str, Any]:
        answer = getattr(pep, step)(proposal, own, step_name="s-1")
        return shown(asyncio.run(answer) if step[0] == "a" else answer)

    assert evaluated(remote, own_session) == evaluated(local, own_session)


def test_remote_pep_runs_an_approved_wire_transfer_once(remote: RemotePep, client: Client) -> None:
    own_session = session("k-waits")
    waiting = remote.call(wire(), own_session)
    assert (waiting.verdict, waiting.executed, waiting.approval and waiting.approval.state) == (
        Verdict.STEP_UP, False, "pending",
    )  # fmt: skip
    assert waiting.approval is not None
    listed = {each.id: each for each in client.approvals.list(state="pending", tool="initiate_wire")}
    assert listed[waiting.approval.id] == waiting.approval
    assert remote.approvals.get(waiting.approval.id) == waiting.approval

    async def granted() -> Any:
        wait = asyncio.ensure_future(remote.aapprovals.wait(waiting.approval.id))  # type: ignore[union-attr]
        await asyncio.sleep(0)
        record = await client.asynchronous.approvals.grant(waiting.approval.id)  # type: ignore[union-attr]
        return record, await wait

    record, waited = asyncio.run(granted())
    assert record == waited
    assert (waited.state, [grant.sub for grant in waited.grants]) == ("granted", ["approver-7"])
    ran, again = remote.call(wire(), own_session), remote.call(wire(), own_session)
    assert [(each.executed, each.replayed, each.result) for each in (ran, again)] == [
        (True, False, {"wire": "INV-8842"}), (False, True, {"wire": "INV-8842"}),
    ]  # fmt: skip
    assert ran.approval is not None
    assert (ran.approval.id, ran.approval.state) == (waiting.approval.id, "consumed")


def test_remote_call_with_a_running_key_does_not_run_and_has_an_unknown_effect(
    served: RunningService, remote: RemotePep
) -> None:
    own_session = session("k-runs")
    with Client(served.url, token=served.token()) as other:
        assert other.propose({"proposal": wire(amount=20), "session": own_session, "run": True})["begun"]
    made = remote.call(wire(amount=20), own_session)
    assert (made.verdict, made.executed, made.replayed) == (Verdict.ALLOW, False, False)
    assert made.outcome.failure is not None
    assert made.outcome.failure.details == {"effect": "unknown"}
    assert "still running" in made.answer.text


def test_approvals_can_be_denied_and_withdrawn(remote: RemotePep, client: Client) -> None:
    asked = [remote.call(wire(), session(key)).approval for key in ("k-denied", "k-withdrawn")]
    assert all(asked)
    denied = client.approvals.deny(asked[0].id, "not today")  # type: ignore[union-attr]
    assert (denied.state, denied.why) == ("denied", "not today")
    with pytest.raises(EngineError) as caught:
        client.approvals.grant(asked[0].id)  # type: ignore[union-attr]
    assert (caught.value.status, caught.value.error_code) == (409, "approvals.not_pending")  # type: ignore[attr-defined]
    assert remote.approvals.wait(asked[0].id, 0).state == "denied"  # type: ignore[union-attr]


def test_subject_comes_from_the_token_if_claims_are_not_allowed(served: RunningService) -> None:
    token = served.token(["propose"], OFFICER)
    with Pep.remote(served.url, token=token, tools={"initiate_wire": initiate_wire}) as pep:
        own = pep.decide(wire(amount=20000), {"idempotency_key": "k-own"})
        foreign = pep.call(wire(amount=20000), session("k-foreign"))

    assert (own.codes, own.trace.idempotency_key) == (("beneficiary.not_looked_up", "sanctions.not_clear"), "k-own")
    assert foreign.codes == ("engine.unavailable",)
    assert "service.forbidden: session: 'claims' needs the scope assert" in foreign.reasons[0].message


def test_guarded_functions_run_allowed_calls_only(served: RunningService) -> None:
    with Pep.remote(served.url, token=served.token()) as pep:

        @pep.tool
        def initiate_wire(beneficiary_id: str, amount: float, source_account: str, reference: str) -> str:
            if reference == "INV-FAILS":
                raise ToolError("the bank says no", details={"effect": "none"})
            return f"{amount} sent to {beneficiary_id}"

        with pytest.raises(UsageError, match="initiate_wire has a function already"):
            pep.tool(initiate_wire)
        arguments = wire(amount=20000)["arguments"]
        with pytest.raises(ToolDeniedError):
            initiate_wire(**arguments)
        with pep.using(session("k-guard")):
            assert initiate_wire(**arguments) == "20000 sent to bene-acme-441"
            with pytest.raises(ToolDeniedError, match=r"limits\.exceeded"):
                initiate_wire(**wire()["arguments"])
        with pep.using(session("k-guard-fails")), pytest.raises(ToolFailedError, match="the bank says no"):
            initiate_wire(**{**arguments, "reference": "INV-FAILS"})


def test_service_answers_visible_tools_plans_and_the_end_of_a_run(remote: RemotePep, local: Pep) -> None:
    for claims in (OFFICER, {"sub": "nobody-1"}):
        own_session = session(claims=claims)
        expected = local.visible_tools(own_session)
        assert remote.visible_tools(own_session) == asyncio.run(remote.avisible_tools(own_session)) == expected
    assert Visibility.NEVER in expected.values()
    steps = [{**wire(), "step_name": "pay"}, {"tool": "rm", "arguments": {}}]
    plan = local.plan(steps, session())
    for answer in (remote.plan(steps, session()), asyncio.run(remote.aplan(steps, session()))):
        assert (answer["acceptable"], answer["plan"]) == (plan.acceptable, plan.plan)
    remote.end_run("run-1", session())
    asyncio.run(remote.aend_run("run-1", session()))


def test_manifest_and_tools_come_from_the_service(remote: RemotePep, local: Pep) -> None:
    assert remote.manifest == local.manifest


def test_remote_pep_rejects_a_function_for_an_unknown_tool(served: RunningService) -> None:
    with pytest.raises(UsageError, match="tools: `rm` is not a tool of manifest"):
        Pep.remote(served.url, token=served.token(), tools={"rm": print})


def test_client_gets_authzen_evaluations_from_the_service(served: RunningService) -> None:
    with Client(served.url, token=served.token(["decide", "assert"])) as client:
        request = {
            "subject": {"type": "user", "id": "officer-123"}, "action": {"name": "payment.lookup"},
            "resource": {"type": "beneficiary", "id": "ACME"},
        }  # fmt: skip
        decision = client.evaluate(request)["decision"]
        several = client.evaluations({"evaluations": [request, request]})["evaluations"]
        answer = client.search("action", {name: request[name] for name in ("subject", "resource")})

    assert decision is False
    assert [each["decision"] for each in several] == [False, False]
    assert answer["results"] == []
