"""Decides single and batch AuthZEN evaluations, and records each decision.

`obligations` in an answer follow the draft AuthZEN Obligations Profile. For a STEP_UP, the answer has `needs_approval`,
which the draft does not define. The draft's `step-up` means stronger authentication, and the draft's `access_request`
needs endpoints that the service does not have.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pdp.audit.chain import AuditEvent, recordable
from pdp.clock import to_milliseconds, to_seconds
from pdp.decision import Decision, Verdict, denied
from pdp.engine.protocol import REQUEST_INVALID
from pdp.flow.reasons import explained
from pdp.manifest.model import Tool
from pdp.obligations.handlers import ObligationError
from pdp.service.authzen.entities import KEYS, QuestionReader
from pdp.service.authzen.policy import AccessAnswer, AccessRequest
from pdp.service.errors import HttpError, read_model
from pdp.service.models.access import EvaluationsRequest
from pdp.service.settings import ServiceSettings
from pdp.service.state import Caller
from pdp.service.telemetry import count_decision

# The service fulfils these obligations itself with its audit event.
_FULFILLED: Final = frozenset(("log_level", "note"))
_STOPS: Final = {"execute_all": None, "deny_on_first_deny": False, "permit_on_first_permit": True}
"""The decision after which a batch ends, by the value of `evaluations_semantic`. None: no decision ends the batch."""


async def evaluate(
    caller: Caller, body: Mapping[str, Any], request_id: str, settings: ServiceSettings
) -> dict[str, Any]:
    """Decide an evaluation request. Raise `HttpError` if it is invalid, AuditError if the decision is not recorded."""
    asked = QuestionReader(caller, await caller.tenant.access.directory(), request_id).read(body)
    decided = (await decide_all(caller, [asked]))[0]
    event = _event(caller, asked, decided.decision, request_id, to_milliseconds(time.time()))
    await caller.tenant.stream.aappend(event)
    return _answer(caller, asked, decided, settings)


async def evaluate_all(
    caller: Caller, body: Mapping[str, Any], request_id: str, settings: ServiceSettings
) -> dict[str, Any]:
    """Decide a batch of evaluations. A body without `evaluations` is a single evaluation request.

    A malformed evaluation gets the decision false and an error message; the policy decides the other evaluations.
    """
    batch = read_model(EvaluationsRequest, body)
    items, stop, most = batch.evaluations, _STOPS[batch.options.evaluations_semantic], settings.limits.batch
    if not items:
        return await evaluate(caller, body, request_id, settings)
    if len(items) > most:
        raise HttpError(413, f"there are {len(items)} evaluations, but at most {most} are allowed", hint="send fewer")
    defaults = {name: body[name] for name in KEYS if name in body}
    reader = QuestionReader(caller, await caller.tenant.access.directory(), request_id)

    def read_all() -> list[AccessRequest | HttpError]:
        requests: list[AccessRequest | HttpError] = []
        for item in items:
            try:
                requests.append(reader.read({**defaults, **item}))
            except HttpError as error:
                requests.append(error)
        return requests

    # A thread reads the batch, because a batch may have 4 MiB and each of its requests is validated.
    read = await asyncio.to_thread(read_all)
    decided = iter(await decide_all(caller, [asked for asked in read if isinstance(asked, AccessRequest)]))
    answers, events, at = [], [], to_milliseconds(time.time())
    for asked in read:
        if isinstance(asked, HttpError):
            answer = {"decision": False, "context": {"error": {"status": asked.status, "message": asked.message}}}
            decision = denied(REQUEST_INVALID, asked.message)
            events.append(_event(caller, None, decision, request_id, at))
        else:
            answered = next(decided)
            answer = _answer(caller, asked, answered, settings)
            events.append(_event(caller, asked, answered.decision, request_id, at))
        answers.append(answer)
        if answer["decision"] is stop:
            break
    await caller.tenant.stream.aappend(*events)
    return {"evaluations": answers}


async def decide_all(caller: Caller, requests: Sequence[AccessRequest]) -> list[AccessAnswer]:
    """Return the policy's answers with reasons. An ALLOW whose obligations the caller cannot fulfil becomes a DENY."""
    policy = caller.tenant.access
    decisions, answers = iter(await policy.decide([request for request in requests if request.denied is None])), []
    for request in requests:
        answer = next(decisions) if request.denied is None else AccessAnswer(request.denied)
        if policy.is_baseline:
            decision = fulfillable(answer.decision, request.request.context)
            if decision.verdict is not Verdict.ALLOW:
                decision = explained(decision, {}, request.request, set())
            answer = AccessAnswer(decision)
        entry, codes = policy.entry_of(request.request.action), [reason.code for reason in answer.decision.reasons[:1]]
        tool = entry and entry.name
        count_decision(caller.tenant.name, caller.tenant.pep.manifest.tools, tool, answer.decision.verdict, codes)
        answers.append(answer)
    return answers


def _answer(caller: Caller, asked: AccessRequest, answered: AccessAnswer, settings: ServiceSettings) -> dict[str, Any]:
    context, decision = answered.context, answered.decision
    is_allowed = decision.verdict is Verdict.ALLOW
    if decision.obligations or (decision.reasons and not is_allowed):
        context = answer_context(decision, caller.tenant.access.entry_of(asked.request.action), settings.url)
    if is_allowed and asked.unchecked:
        context = {**(context or {}), "unchecked": asked.unchecked}
    return {"decision": is_allowed, "context": context} if context else {"decision": is_allowed}


def _event(caller: Caller, asked: AccessRequest | None, decision: Decision, request_id: str, at: str) -> AuditEvent:
    event: AuditEvent = {
        "time": at,
        "type": "access.evaluation",
        "request_id": recordable(request_id),
        "outcome": "not_executed",
        "verdict": decision.verdict,
        "codes": decision.codes,
        "decision_id": decision.decision_id,
        "bundle_revision": decision.bundle_revision,
    }
    if asked is not None:
        request = asked.request
        action, act = request.action, request.subject.properties.get("act")
        event["subject"] = recordable(request.subject.id)
        event["agent"] = recordable(act.get("sub") if isinstance(act, dict) else None)
        event["pdp_action"] = recordable(action.name)
        event["arguments_digest"] = caller.tenant.pep.audit.digest(asked.stable)
        event["tool_name"] = recordable(action.properties.get("tool"))
        for name in ("manifest_version", "manifest_digest"):
            event[name] = recordable(action.properties.get(name))
    return event


def fulfillable(decision: Decision, context: Mapping[str, Any]) -> Decision:
    """Deny an ALLOW with an obligation that is not in `context.supported_obligations`: the caller would ignore it."""
    if decision.verdict is not Verdict.ALLOW or not decision.obligations:
        return decision
    stated = context.get("supported_obligations")
    supported = {name for name in stated if isinstance(name, str)} if isinstance(stated, list) else set()
    missing = sorted({duty.id for duty in decision.obligations} - supported - _FULFILLED)
    if not missing:
        return decision
    return denied(ObligationError.code, f"{', '.join(missing)}: not listed in context.supported_obligations")


def answer_context(decision: Decision, entry: Tool | None, url: str) -> dict[str, Any]:
    """Return the `context` of an answer: reasons, obligations and, for a STEP_UP, who can approve and the endpoint."""
    context: dict[str, Any] = {}
    obligations = [
        {"id": f"{decision.decision_id}-{at}", "type": duty.id, "properties": duty.as_json()["parameters"]}
        for at, duty in enumerate(decision.obligations)
        if duty.id not in _FULFILLED
    ]
    if decision.verdict is not Verdict.ALLOW:
        words = " ".join(reason.text for reason in decision.reasons)
        context = {
            "verdict": decision.verdict,
            "evaluation_id": decision.decision_id,
            "evaluated_at": to_seconds(time.time()),
            "reason_admin": {"403": words},
            "reasons": [reason.as_json() for reason in decision.reasons],
        }
        if decision.verdict is Verdict.STEP_UP and entry is not None:
            needed = {name: getattr(entry.approval, name) for name in ("approvers", "quorum", "expires")}
            context["needs_approval"] = {**needed, "endpoint": f"{url}/v1/proposals"}
    return {**context, "obligations": obligations} if obligations else context
