"""The policy that decides AuthZEN requests: either the policy of the tenant's tool calls, or a separate policy."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import orjson

from pdp.audit.chain import keyed_hash
from pdp.contract.checks import Rejected
from pdp.contract.compiled import CompiledManifest
from pdp.contract.request import check
from pdp.decision import Decision, Verdict, denied, new_id
from pdp.engine.protocol import DECISION, REQUEST_INVALID, Engine, parse_answer
from pdp.errors import AnswerInvalidError, BundleError, EngineError, PdpError, UndefinedDocumentError
from pdp.json import canonical
from pdp.manifest.expressions.expression import compile_expression
from pdp.manifest.expressions.path import MISSING, Expression, Variables
from pdp.manifest.model import Tool
from pdp.pep import Pep
from pdp.project.resources import engine_of_files
from pdp.proposal import Proposal
from pdp.request import Entity, Request, RequestedAction
from pdp.service.settings import AuthzenSettings
from pdp.session import LONGEST_TEXT, Session

UNCHECKED: Final = ("arguments", "resource")
"""The inputs that the service cannot verify if a request has no `context.arguments`."""

_AT_ONCE: Final = 16
_NO_SESSION: Final = Session(claims={})
_VERDICTS: Final[Mapping[object, Verdict]] = {True: Verdict.ALLOW, False: Verdict.DENY} | {one: one for one in Verdict}


class AccessRequest(NamedTuple):
    """An evaluation request. `body` is the policy's input; `stable` lacks mapped fields, time, digest and new ids."""

    request: Request
    stable: bytes
    body: bytes
    denied: Decision | None = None
    unchecked: tuple[str, ...] = ()


class AccessAnswer(NamedTuple):
    """The policy's answer to one request. Only a separate policy for AuthZEN returns a `context`."""

    decision: Decision
    context: Mapping[str, Any] | None = None


class AccessPolicy:
    """The policy that decides a tenant's AuthZEN requests. `owned` closes it. Raises the errors of `open_tenant`.

    If the policy of tool calls decides, `is_baseline` is true, and the policy's input is completed from the manifest.
    `seal` returns a MAC, by which the service recognises its page tokens. `tools` is the compiled manifest.
    """

    def __init__(self, pep: Pep, settings: AuthzenSettings | None, key: bytes, owned: ExitStack) -> None:
        self._pep = pep
        self._engine, self._document = pep.engine, DECISION
        self._searches = {name: getattr(settings, f"{name}_search", None) for name in ("subject", "resource", "action")}
        self.is_baseline = settings is None
        self.seal = keyed_hash(key, b"tool-pdp search page")
        self.tools = CompiledManifest(pep.manifest)
        # For each tool, the mapping to the resource and to the context.
        self._mappings: dict[str, tuple[_Mapping, _Mapping]] = {}
        self._entries: dict[str, Tool] = {}
        for entry in pep.manifest.tools.values():
            self._entries.setdefault(entry.pdp_action, entry)
        if settings is not None:
            self._document = settings.entrypoint
            url, unknown = settings.opa_url, settings.accept_unknown_opa
            self._engine = engine_of_files(
                pep.manifest, owned, engine="sidecar", opa_url=url, accept_unknown_opa=unknown
            )

    def can_search(self, kind: str) -> bool:
        """Return whether a search is supported. A separate policy supports action searches only if it lists actions."""
        return self.is_baseline or kind != "action" or self._searches[kind] is not None

    def entry_of(self, action: RequestedAction) -> Tool | None:
        """Return the manifest entry of the tool that an action names; without a tool, the action's first entry."""
        named = action.properties.get("tool")
        return self._entries.get(action.name) if named is None else self._pep.manifest.tools.get(str(named))

    def completed(self, action: RequestedAction) -> RequestedAction:
        """Add the tool and the manifest's version and digest to an action, unless a separate policy decides."""
        if not self.is_baseline:
            return action
        manifest, entry = self._pep.manifest, self._entries.get(action.name)
        # An action without a manifest entry is sent to the policy, which denies it.
        tool = action.name if entry is None else entry.name
        filled = {"tool": tool, "manifest_version": manifest.version, "manifest_digest": manifest.digest}
        return RequestedAction(action.name, {**filled, **action.properties})

    def checked(self, request: Request) -> tuple[Request, Decision | None, tuple[str, ...]]:
        """Return the request with the manifest's mapped fields, a DENY if it is invalid, and its unverified inputs."""
        entry, context = self.entry_of(request.action), {**request.context}
        if entry is None or "arguments" not in context:
            return request, None, UNCHECKED
        kind, name, properties = request.resource
        resource = {**properties, "type": kind, "id": name}
        try:
            of_resource, of_context = self._admitted(entry.name, context)
            variables = Variables(arguments=context["arguments"])
            is_whole = of_resource.fill(resource, variables)
            of_context.fill(context, variables)
        except PdpError as error:
            return request, denied(REQUEST_INVALID, f"{entry.name}: {error.message}"), UNCHECKED
        completed = Entity(resource.pop("type"), resource.pop("id"), resource)
        return Request(request.subject, request.action, completed, context), None, () if is_whole else UNCHECKED[1:]

    def _admitted(self, name: str, context: dict[str, Any]) -> "tuple[_Mapping, _Mapping]":
        """Check a call, store its corrected arguments in `context`, and return its tool's manifest mappings."""
        key = context.get("idempotency_key")
        if key is not None and (type(key) is not str or len(key) > LONGEST_TEXT):
            raise PdpError(f"idempotency_key must be a text of at most {LONGEST_TEXT} characters")
        proposal = Proposal.read({"tool": name, "arguments": context["arguments"]}, is_checked=True)
        passed = check(proposal, _NO_SESSION, self.tools, key=key)
        if isinstance(passed, Rejected):
            why = passed.rejection
            raise PdpError("an invariant drops the call from its plan" if why is None else f"{why.code}: {why.reason}")
        context["arguments"], context["idempotency_key"] = passed.proposal.arguments, passed.idempotency_key
        mappings = self._mappings.get(name)
        if mappings is None:
            own = {"type": compile_expression("tool"), "id": compile_expression(name)}
            of_resource = _Mapping("resource", passed.tool.resource or own)
            mappings = self._mappings[name] = of_resource, _Mapping("context", passed.tool.context)
        return mappings

    async def directory(self) -> Mapping[str, Any]:
        """Return the subjects and resources in the policy's data, by type and id. Raise EngineError on failure."""
        return await self._engine.adirectory()

    async def candidates(self, kind: str, asked: Mapping[str, Any], directory: Mapping[str, Any]) -> Iterable[str]:
        """Return the names to evaluate in a search. They come from the policy, or else from directory or manifest."""
        document = self._searches[kind]
        if document is None:
            known: Mapping[str, Any] = directory.get(f"{kind}s", {})
            return self._entries if kind == "action" else known.get(asked[kind]["type"], {})
        try:
            listed = orjson.loads(await self._engine.aevaluate(canonical(asked), document))
        except UndefinedDocumentError:
            return ()
        if type(listed) is not list or not all(type(name) is str and name for name in listed):
            raise AnswerInvalidError(f"{document} is not a list of names")
        return set(listed)

    async def decide(self, requests: Sequence[AccessRequest]) -> list[AccessAnswer]:
        """Return the policy's answer to each request, in order. A request for which the engine fails is denied."""
        texts: Sequence[bytes | BaseException]
        if type(self._engine).aevaluate is not Engine.aevaluate:
            room = asyncio.Semaphore(_AT_ONCE)

            async def evaluated(request: AccessRequest) -> bytes:
                async with room:
                    return await self._engine.aevaluate(request.body, self._document)

            texts = await asyncio.gather(*map(evaluated, requests), return_exceptions=True)
        elif len(requests) == 1:
            # A single request is evaluated in this thread, because another thread would cost as much. The pauses let
            # the requests of several callers take this step in a row, which keeps the policy in the processor's cache.
            await asyncio.sleep(0)
            texts = self._evaluated(requests)
            await asyncio.sleep(0)
        else:
            # All requests are evaluated in a single thread, because several threads would mostly wait for each other.
            texts = await asyncio.to_thread(self._evaluated, requests)
        return [self._answered(text, request.request) for text, request in zip(texts, requests, strict=True)]

    def _evaluated(self, requests: Sequence[AccessRequest]) -> list[bytes | BaseException]:
        texts: list[bytes | BaseException] = []
        for request in requests:
            try:
                texts.append(self._engine.evaluate(request.body, self._document))
            except (EngineError, BundleError) as error:
                texts.append(error)
        return texts

    def _answered(self, text: bytes | BaseException, request: Request) -> AccessAnswer:
        try:
            if isinstance(text, BaseException):
                raise text
            if self.is_baseline:
                decision = parse_answer(text, request, self._document)
                if self._pep.newest.is_stale(decision):
                    why = f"release {decision.release} is older than a release that decided an earlier request"
                    decision = denied("bundle.stale", why)
                return AccessAnswer(decision)
            value, context = orjson.loads(text), None
            if type(value) is dict:
                context = value.get("context")
                value = next((value[name] for name in ("decision", "allow", "verdict") if name in value), None)
            if type(value) not in (bool, str) or value not in _VERDICTS or type(context) not in (dict, type(None)):
                raise AnswerInvalidError(f"{self._document} returns no decision", hint="return {decision, context}")
            return AccessAnswer(Decision(_VERDICTS[value], (), (), new_id(), None, None), context)
        except (EngineError, BundleError) as error:
            # If the rule of a separate policy is undefined, the call is denied.
            if isinstance(error, UndefinedDocumentError) and not self.is_baseline:
                return AccessAnswer(Decision(Verdict.DENY, (), (), new_id(), None, None))
            return AccessAnswer(denied(error.code, error.message))


class _Mapping:
    """The fields of a resource or context that the manifest computes from the arguments alone."""

    def __init__(self, place: str, mapping: Mapping[str, Expression]) -> None:
        self._place = place
        self._known = {
            name: each for name, each in mapping.items() if all(path.variable == "arguments" for path in each.paths)
        }
        self._is_whole = len(self._known) == len(mapping)

    def fill(self, stated: dict[str, Any], variables: Variables) -> bool:
        """Add missing mapped fields. Raise PdpError for fields with other values. Return whether all are mapped."""
        for name, each in self._known.items():
            value = each.evaluate(variables)
            if name not in stated and value is not MISSING:
                stated[name] = value
            elif name in stated and (value is MISSING or not _is_same(stated[name], value)):
                raise PdpError(f"{self._place}.{name} differs from the arguments")
        return self._is_whole and self._known.keys() >= stated.keys()


def _is_same(first: Any, second: Any) -> bool:
    # Texts are compared directly, because most values are texts and the comparison is faster than that of JSON.
    if type(first) is type(second) is str:
        return bool(first == second)
    return canonical(first) == canonical(second)
