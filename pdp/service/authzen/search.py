"""Searches for permitted subjects, resources and actions, in pages. The policy evaluates each candidate separately."""

import base64
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

import orjson
from pydantic import BaseModel

from pdp.audit.chain import recordable
from pdp.clock import to_milliseconds
from pdp.decision import Verdict
from pdp.json import canonical
from pdp.service.authzen.entities import KEYS, QuestionReader, entity_of
from pdp.service.authzen.evaluation import decide_all
from pdp.service.authzen.policy import UNCHECKED
from pdp.service.errors import HttpError, read_model
from pdp.service.models.access import ActionSearch, ResourceSearch, SubjectSearch
from pdp.service.security.principal import Scope
from pdp.service.settings import ServiceSettings
from pdp.service.state import Caller

Searched = Literal["subject", "resource", "action"]
_MODELS: Final[Mapping[Searched, type[BaseModel]]] = {
    "subject": SubjectSearch, "resource": ResourceSearch, "action": ActionSearch,
}  # fmt: skip

# A request evaluates at most ten batches of candidates. The next page continues after the last batch.
_ROUNDS: Final = 10
_SECONDS: Final = 2.0
_AGAIN: Final = "restart the search without page.token"


class _SearchPage(NamedTuple):
    """A page of a search: at most `limit` results after the name `after`. All pages need the same policy `revision`."""

    limit: int
    after: str | None = None
    revision: str | None = None


async def search(
    kind: Searched, caller: Caller, body: Mapping[str, Any], request_id: str, settings: ServiceSettings
) -> dict[str, Any]:
    """Return a page of results. Raise `HttpError` if the search is refused, AuditError if the search is unrecorded."""
    policy, audit, limits = caller.tenant.access, caller.tenant.stream, settings.limits
    if not policy.can_search(kind):
        raise HttpError(404, "this search is not supported")
    if kind == "subject" and not caller.may(Scope.ASSERT):
        raise HttpError(403, "a search for subjects needs the scope assert", hint="ask for a token with this scope")
    asked: Any = read_model(_MODELS[kind], body)
    body = asked.model_dump(exclude_unset=True)
    stated: dict[str, Any] = {name: body[name] for name in KEYS if name in body}
    directory = await policy.directory()
    form = {} if kind == "action" else {"type": stated[kind]["type"]}
    known: dict[str, Any] = {kind: form, "context": stated.get("context", {})}
    known |= {
        name: entity_of(caller, getattr(asked, name), name, directory)._asdict()
        for name in ("subject", "resource")
        if name != kind
    }
    if kind != "action":
        known["action"] = asked.action.model_dump()
    question = canonical([caller.tenant.name, caller.principal.id, kind, {**stated, kind: form}])
    page = _requested_page(body.get("page", {}), limits.page, question, policy.seal)
    names = sorted(await policy.candidates(kind, known, directory))
    left = [name for name in names if page.after is None or name > page.after]
    permitted: list[dict[str, str]] = []
    at, revision, ends = 0, page.revision, time.monotonic() + _SECONDS
    while at < min(len(left), _ROUNDS * limits.batch) and len(permitted) < page.limit and time.monotonic() < ends:
        entities = [{**form, "name" if kind == "action" else "id": name} for name in left[at : at + limits.batch]]
        reader = QuestionReader(caller, directory, request_id)
        questions = [reader.read({**stated, kind: entity}, checks=False) for entity in entities]
        for entity, answer in zip(entities, await decide_all(caller, questions), strict=True):
            if len(permitted) == page.limit:
                break
            at, decided_by = at + 1, answer.decision.bundle_revision or revision
            if page.revision not in (None, decided_by):
                raise HttpError(400, "the policy has changed since the previous page", hint=_AGAIN)
            revision = decided_by
            if answer.decision.verdict is Verdict.ALLOW:
                permitted.append(entity)
    await audit.aappend(
        {
            "time": to_milliseconds(time.time()),
            "type": "access.search",
            "request_id": recordable(request_id),
            "subject": recordable(known["subject"].get("id")),
            "pdp_action": recordable(known["action"].get("name")),
            "arguments_digest": audit.digest(question),
            "result_digest": audit.digest(canonical(permitted)),
            "bundle_revision": revision,
            "outcome": "not_executed",
        }
    )
    results = {"results": permitted, **({"context": {"unchecked": UNCHECKED}} if policy.is_baseline else {})}
    if at == len(left):
        return {"page": {"next_token": ""}, **results} if "page" in body else results
    page = page._replace(after=left[at - 1] if at else page.after, revision=revision)
    return {"page": {"next_token": _token(page, question, policy.seal)}, **results}


def _requested_page(stated: Mapping[str, Any], most: int, question: bytes, seal: Callable[[bytes], str]) -> _SearchPage:
    limit, token = stated.get("limit"), stated.get("token", "")
    if not token:
        return _SearchPage(most if limit is None else min(limit, most))
    try:
        page = _SearchPage(*orjson.loads(base64.urlsafe_b64decode(token.partition(".")[0])))
        sealed = _token(page, question, seal)
    except (ValueError, TypeError):
        page, sealed = _SearchPage(0), ""
    if not hmac.compare_digest(sealed.encode(), token.encode()):
        raise HttpError(400, "page.token is not valid for this search", hint=_AGAIN)
    if limit is not None and min(limit, most) != page.limit:
        raise HttpError(400, "page.limit differs from the previous page", hint=_AGAIN)
    return page


def _token(page: _SearchPage, question: bytes, seal: Callable[[bytes], str]) -> str:
    content = base64.urlsafe_b64encode(canonical(list(page)))
    return f"{content.decode()}.{seal(content + b'.' + question)}"
