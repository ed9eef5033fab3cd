"""The inbox, and one approval with its decision bar."""

import asyncio
import time
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from pdp.approvals.people import ApprovalRefusedError, may_decide
from pdp.approvals.sentence import act, person_text
from pdp.audit.chain import recordable
from pdp.clock import to_seconds
from pdp.decision import Decision, Verdict
from pdp.service.approvals.routes import may_see, refused, visible_approval
from pdp.service.console.page import (
    ApprovalViewer,
    ConsoleRoute,
    Form,
    SentForm,
    Viewer,
    redirect,
    render,
    require_scope,
)
from pdp.service.console.pages.shown import (
    approvers_of,
    list_row,
    shown_arguments,
    shown_reasons,
    state_of,
    what_yes_does,
)
from pdp.service.console.sign_in.session import is_fresh
from pdp.service.console.texts import text
from pdp.service.errors import HttpError
from pdp.service.models import Body
from pdp.service.security.principal import Scope
from pdp.stores.approvals import Approval, ApprovalState, Reach
from pdp.stores.sql.events import AuditRow, Wanted

router = APIRouter(route_class=ConsoleRoute)

INBOX: Final = "/console/approvals"

_PAGE: Final = 25
_SEARCHED: Final = 400  # The most waiting approvals that one page reads to find those of the viewer.
_OTHERS: Final = 10
_BEFORE: Final = 10
_CHUNK: Final = 100
_DATE: Final = r"^(\d{4}-\d{2}-\d{2})?$"

Text = Annotated[str, Field(max_length=256)]
Date = Annotated[str, Field(pattern=_DATE)]


class InboxQuery(Body):
    """The filters of the inbox. An empty field filters nothing. `after` and `older` are the ends of earlier pages."""

    state: Literal["", "pending", "granted", "denied", "withdrawn", "expired", "consumed"] = ""
    tool: Text = ""
    subject: Text = ""
    run_id: Text = ""
    since: Date = ""
    until: Date = ""
    after: Annotated[str, Field(pattern="^[0-9A-Za-z]*$")] = ""
    older: Annotated[str, Field(pattern="^[0-9A-Za-z]*$")] = ""
    selected: Annotated[str, Field(pattern="^(none)?$")] = ""
    denied: int = 0
    failed: int = 0

    @property
    def is_filtered(self) -> bool:
        """Whether a filter is set."""
        return any((self.state, self.tool, self.subject, self.run_id, self.since, self.until))


@router.get(INBOX)
async def show_inbox(request: Request, viewer: ApprovalViewer, asked: Annotated[InboxQuery, Query()]) -> Response:
    """Show the approvals that wait for the viewer and for others, and the history."""
    values = await asyncio.to_thread(_inbox, viewer, asked)
    return render(request, "inbox.html", asked=asked, states=[*ApprovalState], **values)


def _inbox(viewer: Viewer, asked: InboxQuery) -> dict[str, Any]:
    store, now = viewer.caller.tenant.stores.approvals, to_seconds(time.time())
    own = None if _may_approve(viewer) else str(viewer.principal.claims.get("sub"))
    filters = _filters(asked, own)
    mine: list[Approval] = []
    others: list[Approval] = []
    following = None
    if asked.state in ("", "pending"):
        mine, others, following = _waiting(viewer, asked.after or None, now, filters)
    history: list[Approval] = []
    if asked.state != "pending":
        state = ApprovalState(asked.state) if asked.state else None
        history = [*store.page(_PAGE + 1, after=asked.older or None, state=state, **filters)]
    return {
        "mine": [list_row(approval) for approval in mine],
        "others": [list_row(approval) for approval in others[:_OTHERS]],
        "more_others": max(len(others) - _OTHERS, 0),
        "after": following,
        "history": [list_row(approval) for approval in history[:_PAGE] if may_see(viewer.caller, approval)],
        "older": history[_PAGE - 1].id if len(history) > _PAGE else None,
    }


def _waiting(
    viewer: Viewer, after: str | None, now: str, filters: dict[str, Any]
) -> tuple[list[Approval], list[Approval], str | None]:
    """Return a page of approvals for the viewer, those for others among them, and where the next page begins."""
    mine: list[Approval] = []
    others: list[Approval] = []
    claims = {**viewer.principal.claims}
    for _ in range(_SEARCHED // _CHUNK):
        chunk = viewer.caller.tenant.stores.approvals.page(_CHUNK, waiting_at=now, after=after, **filters)
        for approval in chunk:
            if len(mine) == _PAGE:
                return mine, others, after
            after = approval.id
            if may_see(viewer.caller, approval):
                is_mine = _may_approve(viewer) and may_decide(approval, claims, now)
                (mine if is_mine else others).append(approval)
        if len(chunk) < _CHUNK:
            return mine, others, None
    return mine, others, after


@router.post(f"{INBOX}/deny")
async def deny_several(viewer: ApprovalViewer, form: SentForm) -> Response:
    """Deny the selected approvals. Several approvals can be denied at once, but never granted."""

    def denied() -> tuple[int, int]:
        done = failed = 0
        for approval_id in form.getlist("id")[:_PAGE]:
            try:
                visible_approval(viewer.caller, approval_id)
                viewer.caller.tenant.approvals.deny(
                    approval_id, {**viewer.principal.claims}, why=form.get("reason") or None
                )
                done += 1
            except ApprovalRefusedError:
                failed += 1
        return done, failed

    require_scope(viewer, Scope.APPROVE)
    done, failed = await asyncio.to_thread(denied)
    return redirect(f"{INBOX}?denied={done}&failed={failed}" if done or failed else f"{INBOX}?selected=none")


@router.get(f"{INBOX}/{{approval_id}}")
async def show_approval(request: Request, viewer: ApprovalViewer, approval_id: str) -> Response:
    """Show one approval: what will happen, why a person is asked, and the bar with the decision."""
    return await _approval_page(request, viewer, approval_id)


@router.get(f"{INBOX}/{{approval_id}}/request")
async def show_request(viewer: ApprovalViewer, approval_id: str) -> Response:
    """Return the whole request that the policy decided, as a JSON file."""
    approval = await asyncio.to_thread(visible_approval, viewer.caller, approval_id)
    name = f'attachment; filename="approval-{approval.id}.json"'
    return Response(approval.body, media_type="application/json", headers={"Content-Disposition": name})


@router.post(f"{INBOX}/{{approval_id}}")
async def decide_approval(request: Request, viewer: ApprovalViewer, approval_id: str, form: SentForm) -> Response:
    """Grant, deny or withdraw the approval as the viewer. The field `step` says which, and how far a grant reaches."""
    try:
        await asyncio.to_thread(_decide, viewer, approval_id, form)
    except ApprovalRefusedError as error:
        return await _approval_page(request, viewer, approval_id, refused(error), form.get("reason", ""))
    except HttpError as error:
        return await _approval_page(request, viewer, approval_id, error, form.get("reason", ""))
    return redirect(f"{INBOX}/{approval_id}")


def _decide(viewer: Viewer, approval_id: str, form: Form) -> None:
    approval = visible_approval(viewer.caller, approval_id)
    step, claims, approvals = form.get("step", ""), {**viewer.principal.claims}, viewer.caller.tenant.approvals
    if step == "withdraw":
        approvals.withdraw(approval_id, claims)
        return
    require_scope(viewer, Scope.APPROVE)
    if step == "deny":
        approvals.deny(approval_id, claims, why=form.get("reason") or None)
        return
    offered = what_yes_does(approval, _entry(viewer, approval))
    until, seconds = None, form.get("seconds", "")
    if step not in [*Reach] or (step == Reach.UNTIL and seconds not in map(str, offered["until"])):
        raise HttpError(400, text("error.form"))
    if offered["is_high"] and not is_fresh(viewer.principal):
        raise HttpError(403, text("approval.sign_in_again"), hint=text("approval.sign_in_again_hint"))
    if step == Reach.UNTIL:
        # One second less, because the longest duration counts from the time at which the grant is checked.
        until = to_seconds(time.time() + int(seconds) - 1)
    approvals.grant(approval_id, claims, reach=step, until=until)


async def _approval_page(
    request: Request, viewer: Viewer, approval_id: str, problem: HttpError | None = None, reason: str = ""
) -> Response:
    approval = await asyncio.to_thread(visible_approval, viewer.caller, approval_id)
    decision = await viewer.caller.tenant.pep.engine.adecide_body(approval.body)
    values = await asyncio.to_thread(_approval, viewer, approval, decision)
    values |= {"approval": approval, "problem": problem, "reason": reason}
    return render(request, "approval.html", status=problem.status if problem else 200, **values)


def _approval(viewer: Viewer, approval: Approval, decision: Decision) -> dict[str, Any]:
    entry, last = _entry(viewer, approval), _compared(viewer, approval)
    claims, now = {**viewer.principal.claims}, to_seconds(time.time())
    state, why_not = state_of(approval, claims, now)
    yes, flow = what_yes_does(approval, entry), approval.request["context"].get("flow")
    return {
        "act": act(approval),
        "asker": person_text(approval.requesters[0]),
        "entry": entry,
        "state": state,
        "why_not": why_not,
        "can_decide": state == "approval.waits_for_you" and _may_approve(viewer),
        "can_withdraw": approval.standing in (ApprovalState.PENDING, ApprovalState.GRANTED)
        and (claims.get("iss"), claims.get("sub")) in approval.requesters,
        "may_grant": not yes["is_high"] or is_fresh(viewer.principal),
        "yes": yes,
        "reasons": shown_reasons(approval, decision),
        "now_says": decision.verdict
        if decision.verdict is not Verdict.STEP_UP and approval.standing is ApprovalState.PENDING
        else None,
        "arguments": shown_arguments(approval, last),
        "tracks_flow": flow is not None,
        "flow": flow or {},
        "last": last,
        "approvers": approvers_of(approval),
        "people": [(person_text(grant.person), grant) for grant in approval.grants],
        "closed_by": None if approval.closed_by is None else person_text(approval.closed_by),
        "before": _before(viewer, approval),
        "sees_decisions": viewer.caller.may(Scope.AUDIT),
    }


def _entry(viewer: Viewer, approval: Approval) -> Any:
    return viewer.caller.tenant.pep.manifest.tools.get(approval.tool)


def _compared(viewer: Viewer, approval: Approval) -> Approval | None:
    """Return the call to compare with: the last one of this tool and subject that people granted, or one that waits."""
    filters = {"tool": approval.tool, "subject": approval.subject}
    pages: list[dict[str, Any]] = [
        {"state": ApprovalState.CONSUMED},
        {"state": ApprovalState.GRANTED},
        {"waiting_at": to_seconds(time.time())},
    ]
    for page in pages:
        for each in viewer.caller.tenant.stores.approvals.page(_BEFORE, **{**page, **filters}):
            # Two issuers may name two people alike, and an agent sees only what it asked for itself.
            is_same_person = each.requesters[0] == approval.requesters[0]
            if each.id != approval.id and is_same_person and may_see(viewer.caller, each):
                return each
    return None


def _before(viewer: Viewer, approval: Approval) -> list[AuditRow] | None:
    """Return the subject's last decisions of the run before the approval was opened, the newest first.

    Return None for viewers who may read neither all approvals nor all decisions: others may have used the run's id.
    """
    if not (_may_approve(viewer) or viewer.caller.may(Scope.AUDIT)):
        return None
    stream = viewer.caller.tenant.stream
    opened = next(iter(stream.of_approval(approval.id)), None)
    if approval.run_id is None or opened is None:
        return []
    wanted = Wanted(run_id=recordable(approval.run_id), subject=recordable(approval.subject))
    return [*stream.search(wanted, _BEFORE, before=opened.seq).rows]


def _filters(asked: InboxQuery, subject: str | None) -> dict[str, Any]:
    """Return the filters for the store. People without the scope `approve` see what they asked for themselves."""
    return {
        "opened_from": f"{asked.since}T00:00:00Z" if asked.since else None,
        "opened_before": f"{asked.until}T23:59:59Z" if asked.until else None,
        "tool": asked.tool or None,
        "subject": subject or asked.subject or None,
        "run_id": asked.run_id or None,
    }


def _may_approve(viewer: Viewer) -> bool:
    """Return whether the viewer's session has the scope `approve`."""
    return viewer.caller.may(Scope.APPROVE)
