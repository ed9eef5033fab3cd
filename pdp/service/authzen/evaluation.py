"""One request, or several with their semantics: completed, decided, recorded, answered."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pdp.audit.chain import AuditEvent, recordable
from pdp.clock import to_milliseconds
from pdp.decision import Decision, Verdict, denied
from pdp.engine.protocol import REQUEST_INVALID
from pdp.flow.reasons import explained
from pdp.service.authzen.entities import KEYS, AccessRequest, QuestionReader
from pdp.service.authzen.policy import AccessAnswer
from pdp.service.authzen.profile import answer_context, fulfillable
from pdp.service.models.access import EvaluationsRequest
from pdp.service.requests import Caller, HttpError, read_model
from pdp.service.settings import ServiceSettings
from pdp.service.telemetry import count_decision

_STOPS: Final = {"execute_all": None, "deny_on_first_deny": False, "permit_on_first_permit": True}
"""By semantic, the decision that ends a batch."""


async def evaluate(
    caller: Caller, body: Mapping[str, Any], request_id: str, settings: ServiceSettings
) -> dict[str, Any]:
    """Return the answer to one request; HttpError 400 or 403: it cannot be asked. AuditError: it cannot be recorded."""
    asked = QuestionReader(caller, await caller.tenant.access.directory(), request_id).read(body)
    decided = (await decide_all(caller, [asked]))[0]
    event = _event(caller, asked, decided.decision, request_id, to_milliseconds(time.time()))
    await caller.tenant.stream.aappend(event)
    return _answer(caller, asked, decided, settings)


async def evaluate_all(
    caller: Caller, body: Mapping[str, Any], request_id: str, settings: ServiceSettings
) -> dict[str, Any]:
    """Return the answers to several requests, as many as a batch may have; to the body itself where it states none.

    An item that cannot be asked is answered false, with its error.
    """
    asked_all = read_model(EvaluationsRequest, body)
    items, stop, most = asked_all.evaluations, _STOPS[asked_all.options.evaluations_semantic], settings.limits.batch
    if not items:
        return await evaluate(caller, body, request_id, settings)
    if len(items) > most:
        raise HttpError(413, f"there are {len(items)} evaluations, at most {most} are admitted", hint="send fewer")
    defaults = {name: body[name] for name in KEYS if name in body}
    reader = QuestionReader(caller, await caller.tenant.access.directory(), request_id)

    def read_all() -> list[AccessRequest | HttpError]:
        found: list[AccessRequest | HttpError] = []
        for item in items:
            try:
                found.append(reader.read({**defaults, **item}))
            except HttpError as error:
                found.append(error)
        return found

    read = await asyncio.to_thread(read_all)  # up to 4 MiB, and a check of each
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


async def decide_all(caller: Caller, asked: Sequence[AccessRequest]) -> list[AccessAnswer]:
    """Return the policy's answers, held against what the caller can fulfil, and explained."""
    policy = caller.tenant.access
    found, answers = iter(await policy.decide([one for one in asked if one.denied is None])), []
    for one in asked:
        answer = next(found) if one.denied is None else AccessAnswer(one.denied)
        if policy.is_baseline:
            decision = fulfillable(answer.decision, one.request.context)
            if decision.verdict is not Verdict.ALLOW:
                decision = explained(decision, {}, one.request, set())
            answer = AccessAnswer(decision)
        # The reasons are sorted by their codes.
        count_decision(answer.decision.verdict, [reason.code for reason in answer.decision.reasons[:1]])
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
    """Return the event of one evaluation `at` a time; of one that could not be asked, without what it is about."""
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
