"""Builds the policy's input from an AuthZEN request, the token, the manifest and the policy's data."""

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

from pdp.clock import to_seconds
from pdp.decision import Decision
from pdp.errors import UsageError
from pdp.json import MAX_BYTES, JsonValueError, canonical, digest
from pdp.request import Entity, Request, RequestedAction, bounded
from pdp.service.authzen.policy import AccessRequest
from pdp.service.errors import HttpError, read_model
from pdp.service.models.access import AccessAction, AccessEntity
from pdp.service.security.principal import Scope
from pdp.service.state import Caller
from pdp.session import Session

KEYS: Final = ("subject", "action", "resource", "context")

# The maximum size of all requests in a batch, because each request repeats the common parts of the batch.
_MOST_BYTES: Final = 4 * MAX_BYTES
_RESERVED: Final = frozenset(("approval", "call_digest", "flow", "grant", "spent", "time"))
_OWN: Final = "without the scope assert, state the token's own subject: type user, id from its claim sub"


class QuestionReader:
    """Reads the evaluations of a request. A subject, action or resource that several evaluations share is read once."""

    def __init__(self, caller: Caller, directory: Mapping[str, Any], request_id: str) -> None:
        self._caller = caller
        self._directory = directory
        self._request_id = request_id
        self._time = to_seconds(time.time())
        self._bytes = 0
        # The source value is kept as well, so that Python does not reuse its `id()`.
        self._known: dict[tuple[str, int], tuple[Any, Any, dict[str, Any]]] = {}

    def read(self, stated: Mapping[str, Any], *, checks: bool = True) -> AccessRequest:
        """Return one evaluation request. With `checks`, a call that its manifest entry does not accept is denied.

        Raises `HttpError` 400 for malformed input or a context field that only the service may set; 403 for a subject
        other than the token's; 413 if the earlier evaluations of the HTTP request exceed 4 MiB.
        """
        if self._bytes > _MOST_BYTES:
            raise HttpError(413, f"the earlier evaluations exceed {_MOST_BYTES} bytes", hint="send fewer")
        _, subject, stated_subject = self._part(stated, "subject")
        _, action, stated_action = self._part(stated, "action")
        _, resource, stated_resource = self._part(stated, "resource")
        context = stated.get("context", {})
        if type(context) is not dict:
            raise HttpError(400, "context must be an object")
        whole = {"action": stated_action, "context": context, "resource": stated_resource, "subject": stated_subject}
        stable = body = canonical(whole)
        request, policy = Request(subject, action, resource, context), self._caller.tenant.access
        denied: Decision | None = None
        unchecked: tuple[str, ...] = ()
        if policy.is_baseline:
            for name in _RESERVED.intersection(context):
                raise HttpError(400, f"context.{name} is set by the service", hint="leave it out")
            if checks:
                request, denied, unchecked = policy.checked(request)
            filled = {"approval": None, "call_digest": digest(stable), "time": self._time}
            context = {"request_id": self._request_id, **request.context, **filled}
            request = Request(subject, action, request.resource, context)
            body = canonical({**whole, "context": context, "resource": request.resource._asdict()})
        self._bytes += len(body)
        try:
            return AccessRequest(request, stable, bounded(body), denied, unchecked)
        except JsonValueError as error:
            raise HttpError(400, str(error), hint="send less") from None

    def _part(self, stated: Mapping[str, Any], name: str) -> tuple[Any, Any, dict[str, Any]]:
        value = stated.get(name)
        known = self._known.get((name, id(value)))
        if known is None:
            if name not in stated:
                raise HttpError(400, f"{name} is missing")
            part: Entity | RequestedAction
            if name == "action":
                action = read_model(AccessAction, value, name)
                part = self._caller.tenant.access.completed(RequestedAction(action.name, action.properties))
            else:
                part = entity_of(self._caller, read_model(AccessEntity, value, name), name, self._directory)
            known = self._known[name, id(value)] = (value, part, part._asdict())
        return known


def entity_of(caller: Caller, part: AccessEntity, name: str, directory: Mapping[str, Any]) -> Entity:
    """Return a subject or resource. The directory provides the properties that the request does not contain."""
    if name == "subject" and not caller.may(Scope.ASSERT):
        return _own_subject(caller, part.type, part.id)
    known = directory.get(f"{name}s", {}).get(part.type, {}).get(part.id, {})
    return Entity(part.type, part.id, {**known, **part.properties})


def _own_subject(caller: Caller, kind: str, key: str) -> Entity:
    try:
        own = _subject_of(canonical(dict(caller.principal.claims)))
    except (UsageError, ValueError):
        raise HttpError(403, "the token has no subject", hint=_OWN) from None
    if (kind, key) != own[:2]:
        raise HttpError(403, "the subject is not that of the token", hint=_OWN)
    return own


@lru_cache(1024)
def _subject_of(claims: bytes) -> Entity:
    return Session(claims=orjson.loads(claims)).subject
