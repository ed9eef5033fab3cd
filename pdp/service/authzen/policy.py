"""The policy that answers: the one that decides the tenant's tool calls, or any other by its entrypoint."""

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
"""Parts of a question that the policy takes as stated, if it is about no particular call."""

_AT_ONCE: Final = 16
_NO_SESSION: Final = Session(claims={})
_VERDICTS: Final[Mapping[object, Verdict]] = {True: Verdict.ALLOW, False: Verdict.DENY} | {one: one for one in Verdict}


class AccessRequest(NamedTuple):
    """One question, complete: `body` is what the policy is asked, `stable` what was stated, without times and ids.

    `denied`, `unchecked`: as of `AccessPolicy.checked`.
    """

    request: Request
    stable: bytes
    body: bytes
    denied: Decision | None = None
    unchecked: tuple[str, ...] = ()


class AccessAnswer(NamedTuple):
    """What the policy answers, and the context that it states itself; the baseline states none."""

    decision: Decision
    context: Mapping[str, Any] | None = None


class AccessPolicy:
    """What answers the AuthZEN requests of one tenant; what it opens is closed with `owned`.

    Attributes:
        is_baseline: whether the policy decides tool calls, and its input is completed for that.
        seal: returns what proves that a page token was made with `key`.

    Errors as of `open_tenant`.
    """

    def __init__(self, pep: Pep, settings: AuthzenSettings | None, key: bytes, owned: ExitStack) -> None:
        self._pep = pep
        self._engine, self._document = pep.engine, DECISION
        self._searches = {name: getattr(settings, f"{name}_search", None) for name in ("subject", "resource", "action")}
        self.is_baseline = settings is None
        self.seal = keyed_hash(key, b"tool-pdp search page")
        self._tools = CompiledManifest(pep.manifest)
        self._mappings: dict[str, tuple[_Mapping, _Mapping]] = {}  # by tool: of the resource, and of the context
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
        """Return whether there are candidates: the actions of another policy it must list itself."""
        return self.is_baseline or kind != "action" or self._searches[kind] is not None

    def entry_of(self, action: RequestedAction) -> Tool | None:
        """Return the manifest's entry that an action is about; where several have it, the first, or the one named."""
        named = action.properties.get("tool")
        return self._entries.get(action.name) if named is None else self._pep.manifest.tools.get(str(named))

    def completed(self, action: RequestedAction) -> RequestedAction:
        """Return an action with what the baseline has to know of it: the manifest, and the entry with that action."""
        if not self.is_baseline:
            return action
        manifest, entry = self._pep.manifest, self._entries.get(action.name)
        tool = action.name if entry is None else entry.name  # the policy denies an action that no entry has
        filled = {"tool": tool, "manifest_version": manifest.version, "manifest_digest": manifest.digest}
        return RequestedAction(action.name, {**filled, **action.properties})

    def checked(self, request: Request) -> tuple[Request, Decision | None, tuple[str, ...]]:
        """Return a question with what the manifest maps, a DENY if a proposal would be rejected, what is unchecked.

        A question without `context.arguments` is about no call, and the policy takes it as stated.
        """
        entry, context = self.entry_of(request.action), {**request.context}
        if entry is None or "arguments" not in context:
            return request, None, UNCHECKED
        kind, name, properties = request.resource
        resource = {**properties, "type": kind, "id": name}
        try:
            of_resource, of_context = self._admitted(entry.name, context)
            variables = Variables(arguments=context["arguments"])
            is_whole = of_resource.hold(resource, variables)
            of_context.hold(context, variables)
        except PdpError as error:
            return request, denied(REQUEST_INVALID, f"{entry.name}: {error.message}"), UNCHECKED
        held = Entity(resource.pop("type"), resource.pop("id"), resource)
        return Request(request.subject, request.action, held, context), None, () if is_whole else UNCHECKED[1:]

    def _admitted(self, name: str, context: dict[str, Any]) -> "tuple[_Mapping, _Mapping]":
        """Check a call, store its corrected arguments in `context`, and return the mappings of its tool."""
        key = context.get("idempotency_key")
        if key is not None and (type(key) is not str or len(key) > LONGEST_TEXT):
            raise PdpError(f"idempotency_key has to be a text of at most {LONGEST_TEXT} characters")
        proposal = Proposal.read({"tool": name, "arguments": context["arguments"]}, is_checked=True)
        passed = check(proposal, _NO_SESSION, self._tools, key=key)
        if isinstance(passed, Rejected):
            found = passed.rejection
            raise PdpError("an invariant drops the call" if found is None else f"{found.code}: {found.reason}")
        context["arguments"], context["idempotency_key"] = passed.proposal.arguments, passed.idempotency_key
        mappings = self._mappings.get(name)
        if mappings is None:
            own = {"type": compile_expression("tool"), "id": compile_expression(name)}
            of_resource = _Mapping("resource", passed.tool.resource or own)
            mappings = self._mappings[name] = of_resource, _Mapping("context", passed.tool.context)
        return mappings

    async def directory(self) -> Mapping[str, Any]:
        """Return what the policy's data knows of subjects and resources, by type and id; EngineError: no answer."""
        return await self._engine.adirectory()

    async def candidates(self, kind: str, asked: Mapping[str, Any], directory: Mapping[str, Any]) -> Iterable[str]:
        """Return what may be permitted: what the policy lists, else ids of the directory, or the manifest's actions."""
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

    async def decide(self, asked: Sequence[AccessRequest]) -> list[AccessAnswer]:
        """Return an answer to each request, in their order; where the engine has none, it is a DENY."""
        texts: Sequence[bytes | BaseException]
        if type(self._engine).aevaluate is not Engine.aevaluate:
            room = asyncio.Semaphore(_AT_ONCE)

            async def evaluated(one: AccessRequest) -> bytes:
                async with room:
                    return await self._engine.aevaluate(one.body, self._document)

            texts = await asyncio.gather(*map(evaluated, asked), return_exceptions=True)
        elif len(asked) == 1:
            # It evaluates in the calling thread, as another thread would cost as much. Requests of other callers take
            # each step together with this one: then the processor has the policy in its cache, and is faster.
            await asyncio.sleep(0)
            texts = self._evaluated(asked)
            await asyncio.sleep(0)
        else:
            # One thread: several would wait for each other more than they gain, which other workers do not.
            texts = await asyncio.to_thread(self._evaluated, asked)
        return [self._answered(text, one.request) for text, one in zip(texts, asked, strict=True)]

    def _evaluated(self, asked: Sequence[AccessRequest]) -> list[bytes | BaseException]:
        texts: list[bytes | BaseException] = []
        for one in asked:
            try:
                texts.append(self._engine.evaluate(one.body, self._document))
            except (EngineError, BundleError) as error:
                texts.append(error)
        return texts

    def _answered(self, text: bytes | BaseException, request: Request) -> AccessAnswer:
        """Return the decision in what the engine answered, or a DENY that says why there is none."""
        try:
            if isinstance(text, BaseException):
                raise text
            if self.is_baseline:
                decision = parse_answer(text, request, self._document)
                if self._pep.newest.is_stale(decision):
                    why = f"release {decision.release} decided, and a later one has decided before"
                    decision = denied("bundle.stale", why)
                return AccessAnswer(decision)
            value, context = orjson.loads(text), None
            if type(value) is dict:
                context = value.get("context")
                value = next((value[name] for name in ("decision", "allow", "verdict") if name in value), None)
            if type(value) not in (bool, str) or value not in _VERDICTS or type(context) not in (dict, type(None)):
                raise AnswerInvalidError(f"{self._document} is no decision", hint="true, or {decision, context}")
            return AccessAnswer(Decision(_VERDICTS[value], (), (), new_id(), None, None), context)
        except (EngineError, BundleError) as error:
            if isinstance(error, UndefinedDocumentError) and not self.is_baseline:  # a rule that does not hold
                return AccessAnswer(Decision(Verdict.DENY, (), (), new_id(), None, None))
            return AccessAnswer(denied(error.code, error.message))


class _Mapping:
    """The fields of a resource or context that a manifest maps from the arguments alone."""

    def __init__(self, place: str, mapping: Mapping[str, Expression]) -> None:
        self._place = place
        self._known = {
            name: each for name, each in mapping.items() if all(path.variable == "arguments" for path in each.paths)
        }
        self._is_whole = len(self._known) == len(mapping)

    def hold(self, stated: dict[str, Any], variables: Variables) -> bool:
        """Add missing mapped fields; return whether every field is mapped.

        PdpError: something else is stated, or an expression failed.
        """
        for name, each in self._known.items():
            value = each.evaluate(variables)
            if name not in stated and value is not MISSING:
                stated[name] = value
            elif name in stated and (value is MISSING or not _is_same(stated[name], value)):
                raise PdpError(f"{self._place}.{name} differs from the arguments")
        return self._is_whole and self._known.keys() >= stated.keys()


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is type(other) is str:  # as most of them are
        return bool(one == other)
    return canonical(one) == canonical(other)
