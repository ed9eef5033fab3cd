"""Uses the Python client `decisions`, which a test generates: `python story.py URL ADMIN_TOKEN`."""

import sys
from typing import TypeVar

from decisions import AuthenticatedClient
from decisions.api.approvals import grant_approval, list_approvals
from decisions.api.auth_zen import evaluate
from decisions.api.operation import read_audit
from decisions.api.proposals import end_run, list_tools, propose, report_result
from decisions.api.tokens import create_token
from decisions.models import (
    AccessAction,
    AccessDecision,
    AccessEntity,
    ApprovalBody,
    ApprovalsPage,
    ApprovalState,
    AuditPage,
    Context,
    ErrorAnswer,
    EvaluationRequest,
    JsonObject,
    NewToken,
    PlanAnswer,
    ProposalAnswer,
    ProposedCall,
    ProposedPlan,
    ReportedResult,
    Scope,
    Session,
    Succeeded,
    TokenOrder,
    ToolList,
    Verdict,
)

Answer = TypeVar("Answer")

OFFICER: dict[str, object] = {
    "sub": "officer-123",
    "emts": {"payments.lookup": True, "payments.validate": True, "payments.wire.initiate": True},
    "limits": {"wire.auto_approved": 25000},
}
ARGUMENTS = {"beneficiary_id": "bene-acme-441", "source_account": "acct-operating-4412", "reference": "INV-8842"}
FACTS = {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}
CALL = "0b54d0a1f7d94c0e9a3b8d6f2c1e5a70"


def is_a(kind: type[Answer], answer: object) -> Answer:
    """Return an answer after checking its type."""
    assert isinstance(answer, kind), answer
    return answer


def client(url: str, admin: AuthenticatedClient, scopes: list[Scope], claims: dict[str, object]) -> AuthenticatedClient:
    order = TokenOrder(name="story", scopes=scopes, claims=JsonObject.from_dict(claims))
    return AuthenticatedClient(url, token=is_a(NewToken, create_token.sync(client=admin, body=order)).token)


def is_permitted(agent: AuthenticatedClient, amount: int) -> AccessDecision:
    context = Context.from_dict(
        {
            "arguments": {**ARGUMENTS, "amount": amount},
            "sanctions_status": "clear",
            "looked_up_beneficiary": "bene-acme-441",
            "idempotency_key": "idm-7",
        }
    )
    properties = {"scopes": ["payments.wire.initiate"], "limits": {"wire.auto_approved": 25000}}
    officer = AccessEntity("user", "officer-123", JsonObject.from_dict(properties))
    payee = AccessEntity("wire_payment", "bene-acme-441")
    question = EvaluationRequest(officer, AccessAction("initiate_wire"), payee, context)
    return is_a(AccessDecision, evaluate.sync(client=agent, body=question))


def main(url: str, token: str) -> None:
    admin = AuthenticatedClient(url, token=token)
    agent = client(url, admin, [Scope.DECIDE, Scope.PROPOSE, Scope.ASSERT], OFFICER)
    supervisor = client(url, admin, [Scope.APPROVE], {"sub": "approver-7", "roles": ["payments.approver"]})
    auditor = client(url, admin, [Scope.AUDIT], {})

    tools = is_a(ToolList, list_tools.sync(client=agent)).tools
    assert "initiate_wire" in {tool.name for tool in tools}

    assert is_permitted(agent, 20000).decision
    refused = is_permitted(agent, 47500)
    assert not refused.decision
    assert is_a(JsonObject, refused.context)["verdict"] == "STEP_UP"

    session = Session(facts=JsonObject.from_dict(FACTS), idempotency_key="idm-4a2b", run_id="run-1")
    wire = {"tool": "initiate_wire", "arguments": {**ARGUMENTS, "amount": 47500}}
    plan = is_a(PlanAnswer, propose.sync(client=agent, body=ProposedPlan(plan=[wire], session=session)))
    assert (plan.acceptable, plan.verdict) == (True, Verdict.ALLOW)

    call = ProposedCall(wire, id=CALL, session=session)
    asked = is_a(ProposalAnswer, propose.sync(client=agent, body=call))
    assert (asked.verdict, asked.begun, asked.reasons[0].code) == (Verdict.STEP_UP, False, "limits.exceeded")

    (waiting,) = is_a(ApprovalsPage, list_approvals.sync(client=supervisor, state=ApprovalState.PENDING)).approvals
    assert waiting.requesters[0].sub == "officer-123"
    granted = is_a(ApprovalBody, grant_approval.sync(waiting.id, client=supervisor))
    assert granted.state is ApprovalState.GRANTED
    refusal = is_a(ErrorAnswer, grant_approval.sync(waiting.id, client=agent))
    assert refusal.error.code == "service.forbidden"

    begun = is_a(ProposalAnswer, propose.sync(client=agent, body=call))
    assert begun.begun
    assert is_a(JsonObject, begun.arguments).to_dict() == wire["arguments"]
    sent = ReportedResult(Succeeded(result={"wire_id": "wire-1"}))
    done = is_a(ProposalAnswer, report_result.sync(CALL, client=agent, body=sent))
    assert (done.executed, done.result) == (True, {"wire_id": "wire-1"})

    again = ProposedCall(wire, id=CALL[::-1], session=session)
    replayed = is_a(ProposalAnswer, propose.sync(client=agent, body=again))
    assert (replayed.replayed, replayed.begun, replayed.result) == (True, False, {"wire_id": "wire-1"})

    events = is_a(AuditPage, read_audit.sync(client=auditor)).events
    assert {"token.created", "approval.granted"} <= {event.type_ for event in events}
    assert [event.seq for event in events] == list(range(len(events)))

    assert end_run.sync_detailed("run-1", client=agent).status_code == 204


if __name__ == "__main__":
    main(*sys.argv[1:])
