"""An enforcement point that asks a decision service, and runs the tools in this process. See `Pep.remote`."""

# The decorator `checked` needs annotations as text.
from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, Final, Unpack

from pydantic import ValidationError

from pdp.audit.chain import recordable
from pdp.client.client import Client, Endpoints, Json, ServiceApprovals, ServiceError
from pdp.client.evaluation import RemoteEvaluation, read_answer
from pdp.decision import Decision, Verdict, new_id
from pdp.documents.arguments import Closable, checked
from pdp.errors import AnswerInvalidError, EngineError, PdpError
from pdp.execution.runner import cut_short, unavailable, unknown
from pdp.flow.decide import failed, read
from pdp.flow.drive import CHECKPOINT, Step, ToolRun, Work, adrive, drive
from pdp.flow.evaluation import Evaluation
from pdp.flow.guard import guarded, session_in_use
from pdp.flow.parts import Tools
from pdp.flow.preview import Visibility
from pdp.flow.stages import Asked, CallIds, Ended, Executed, Received, Unread, not_run, withheld
from pdp.json import JsonValueError, check_json
from pdp.manifest.effective import EffectiveManifest, made_of
from pdp.manifest.fields import Pattern
from pdp.manifest.model import Tool
from pdp.proposal import Execution
from pdp.service.models.proposals import KEY_CODES, ProposalAnswer
from pdp.session import Session
from pdp.stores.approvals import Approval

REPORT_PATIENCE: Final = 60.0  # The report of an outcome is repeated for this many seconds.

_SAME_RELEASE: Final = "install the release of tool-pdp that the service runs"
_NO_ENGINE: Any = None  # The flows in this module never ask an engine, because the service decides.
_log = logging.getLogger("pdp.pep")


class RemotePep(Closable):
    """An enforcement point like `Pep`, but a service makes its decisions. Allowed calls run in this process.

    If the token lacks the scope `assert`, its claims are used, and a session with claims or facts is rejected. If the
    service cannot be reached or its answer is malformed, the verdict is DENY with `engine.unavailable`,
    `engine.timeout` or `engine.answer_invalid`, and the tool does not run.

    Args:
        url: `https://HOST[:PORT][/PATH]`; `http` is allowed for this machine only.
        token: a bearer token; by default the variable PDP_TOKEN.
        tools: the functions that run the tools, by tool name; the method `tool` adds further functions.

    Raises:
        UsageError: the address, the token or a function cannot be used.
        EngineError: the service's manifest cannot be read.

    Examples:
        >>> call = {"tool": "lookup_beneficiary", "arguments": {"payee_name": "Acme", "invoice_ref": "INV-8842"}}
        >>> with RemotePep("https://pdp.example.com", token="eyJhbGciOi") as pep:  # doctest: +SKIP
        ...     evaluation = pep.decide(call, {"claims": {}})
    """

    @checked
    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self._client = Client(url, token=token)
        self._service: Endpoints[Work, Work, Work] = Endpoints(self._client.connection, self._work)
        self._functions = dict(tools or {})
        try:
            manifest = _read_manifest(self._client.manifest())
            self._known = manifest, Tools(manifest, self._functions)
        except BaseException:
            self._client.close()
            raise

    def close(self) -> None:
        """Close the connections to the service."""
        self._client.close()

    @property
    def manifest(self) -> EffectiveManifest:
        """The effective manifest of the service, which is loaded again when the service reports another digest."""
        return self._known[0]

    @property
    def approvals(self) -> ServiceApprovals[Approval, Sequence[Approval]]:
        """The approvals of the service."""
        return self._client.approvals

    @property
    def aapprovals(self) -> ServiceApprovals[Awaitable[Approval], Awaitable[Sequence[Approval]]]:
        """The approvals of the service, with async methods."""
        return self._client.asynchronous.approvals

    def decide(self, proposal: Any, session: Any, **ids: Unpack[CallIds]) -> Evaluation:
        """Decide one proposal without running it; arguments as for `Pep.decide`."""
        return drive(self._evaluate(proposal, session, ids, to_run=False), _NO_ENGINE)

    async def adecide(self, proposal: Any, session: Any, **ids: Unpack[CallIds]) -> Evaluation:
        """Async variant of `decide`."""
        return await adrive(self._evaluate(proposal, session, ids, to_run=False), _NO_ENGINE)

    def call(self, proposal: Any, session: Any, **ids: Unpack[CallIds]) -> Evaluation:
        """Decide one proposal and, on ALLOW only, run its tool with exactly the arguments that the service decided."""
        return drive(self._evaluate(proposal, session, ids, to_run=True), _NO_ENGINE)

    async def acall(self, proposal: Any, session: Any, **ids: Unpack[CallIds]) -> Evaluation:
        """Async variant of `call`."""
        return await adrive(self._evaluate(proposal, session, ids, to_run=True), _NO_ENGINE)

    def visible_tools(self, session: Any) -> dict[str, Visibility]:
        """Return for each tool whether the session's subject may call it; errors as for `Client`."""
        return self._visibilities(self._client.tools(_session_body(session)))

    async def avisible_tools(self, session: Any) -> dict[str, Visibility]:
        """Async variant of `visible_tools`."""
        return self._visibilities(await self._client.asynchronous.tools(_session_body(session)))

    def plan(self, steps: Sequence[Any], session: Any) -> Json:
        """Check a whole plan before its first call, and return the service's answer; errors as for `Client`."""
        return self._client.plan(steps, _session_body(session))

    async def aplan(self, steps: Sequence[Any], session: Any) -> Json:
        """Async variant of `plan`."""
        return await self._client.asynchronous.plan(steps, _session_body(session))

    def end_run(self, run_id: str, session: Any) -> None:
        """End a run of the session's caller and delete all its records; errors as for `Client`."""
        self._client.end_run(run_id, _session_body(session))

    async def aend_run(self, run_id: str, session: Any) -> None:
        """Async variant of `end_run`."""
        await self._client.asynchronous.end_run(run_id, _session_body(session))

    def tool(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Guard a function that has the name of a tool in the manifest, as `Pep.tool` does."""
        manifest, tools = self._known
        guard = guarded(self.call, self.acall, function, manifest, tools)
        self._functions[guard.__name__] = function
        return guard

    def using(self, session: Any) -> AbstractContextManager[Session]:
        """Use this session for guarded functions that are called in the `with` block, as `Pep.using` does."""
        return session_in_use(_with_claims(session))

    def _evaluate(self, proposal: Any, session: Any, ids: CallIds, *, to_run: bool) -> Generator[Step, Any, Evaluation]:
        names = recordable(ids.get("tool_call_id")), recordable(ids.get("step_name"))
        received = Received(self.manifest, to_run, *names, time.time(), time.perf_counter())
        stage = Ended(Unread(received))
        try:
            asked = read(received, proposal, _with_claims(session), self._known[1])
            if isinstance(asked, Ended):
                return Evaluation(asked)
            stage = Ended(asked)
            received, call = asked.received, asked.proposal
            known = self._local_failure(call.tool, call.arguments) if to_run else None
            body: Json = {
                "id": new_id(),
                "run": to_run and known is None,
                "proposal": call.as_proposed(),
                "session": _session_body(asked.session),
                "tool_call_id": received.tool_call_id,
                "step_name": received.step_name,
            }
            answer = read_answer((yield self._service.propose(body)), body["id"], may_run=body["run"])
            if not answer.begun:
                return RemoteEvaluation(asked, answer, known if answer.verdict == "ALLOW" else None)
        except EngineError as error:
            if isinstance(error, ServiceError) and error.error_code in KEY_CODES:
                allowed = stage._replace(decision=Decision(Verdict.ALLOW, (), (), "", None, None))
                return Evaluation(Executed(allowed, not_run(error.message, "unknown")))
            _log.error("the service gave no decision, so the call is denied: %s", error)
            return Evaluation(stage.denied(error.code, str(error)))
        except Exception as error:  # noqa: BLE001 - any failure is a DENY
            return Evaluation(stage.denied(*failed(error)))
        return (yield from self._run(asked, answer))

    def _run(self, asked: Asked, answer: ProposalAnswer) -> Generator[Step, Any, Evaluation]:
        """Run the tool of a call that the service allowed, and report the outcome, even if the caller is cancelled."""
        started = False
        try:
            manifest, tools = yield from self._manifest_of(answer.manifest_digest)
            name, arguments = answer.trace.tool_name or "", answer.arguments or {}
            execution = self._local_failure(name, arguments)
            yield CHECKPOINT
            runner = tools.runner(manifest.tools[name])
            if execution is None and runner is not None:
                started = True
                execution = yield ToolRun(runner, arguments)
        except BaseException as error:
            failure = cut_short() if started else not_run("the call was cancelled before its tool started")
            evaluation = yield from self._report(asked, answer, failure)
            if not isinstance(error, Exception):
                raise
            _log.error("the call of %s was not completed: %s", asked.proposal.tool, error)
            return evaluation
        return (yield from self._report(asked, answer, execution or unavailable(name)))

    def _report(
        self, asked: Asked, answer: ProposalAnswer, execution: Execution
    ) -> Generator[Step, Any, RemoteEvaluation]:
        try:
            check_json(execution.result)
        except JsonValueError as error:
            execution = withheld(execution, f"the result is not JSON: {error}")
        report: Json = {"started": execution.started, "attempts": execution.attempts}
        report |= {"result": execution.result} if execution.failure is None else {"failure": asdict(execution.failure)}
        try:
            confirmed = read_answer((yield self._service.result(answer.id, report, REPORT_PATIENCE)), answer.id)
            return RemoteEvaluation(asked, confirmed, error=execution.error)
        except Exception as error:  # noqa: BLE001 - the tool has already run
            # The result is not returned, because the service might have withheld it.
            _log.critical("could not report the outcome of call %s of %s: %s", answer.id, asked.proposal.tool, error)
            lost = unknown("the tool ran, but its outcome could not be reported")
            return RemoteEvaluation(asked, answer, lost if execution.started else execution)

    def _work(self, request: Coroutine[Any, Any, Any]) -> Work:
        future = self._client.connection.start(request)
        return Work(future.result, blocking=True, future=future)

    def _manifest_of(self, digest: str | None) -> Generator[Step, Any, tuple[EffectiveManifest, Tools]]:
        """Return the manifest with this digest, and its functions. If its digest is new, load it from the service."""
        if digest != self.manifest.digest:
            manifest = _read_manifest((yield self._service.manifest()))
            functions = {name: function for name, function in self._functions.items() if name in manifest.tools}
            self._known = manifest, Tools(manifest, functions)
        if digest != self.manifest.digest:
            raise AnswerInvalidError("the service no longer has the manifest that decided the call")
        return self._known

    def _local_failure(self, name: str, arguments: Mapping[str, Any]) -> Execution | None:
        """Return a failure if this process cannot run the call, so that the service reserves nothing for the call."""
        manifest, tools = self._known
        entry = manifest.tools.get(name)
        if entry is None or (entry.pattern is Pattern.ACTION_STAGING and name not in tools):
            return None  # The service itself rejects an unknown tool, and stages the action itself.
        # Only tools with a function run here. A program that the service's manifest names must not run.
        runner = tools.runner(entry) if name in tools else None
        return unavailable(name) if runner is None else runner.refused(arguments)

    def _visibilities(self, answer: Json) -> dict[str, Visibility]:
        try:
            shown = {each["name"]: Visibility(each["visibility"]) for each in answer["tools"]}
        except (KeyError, TypeError, ValueError):
            raise AnswerInvalidError("the service's answer is not a list of tools") from None
        return {name: shown.get(name, Visibility.NEVER) for name in self.manifest.tools}


def _with_claims(session: Any) -> Any:
    return {"claims": {}, **session} if isinstance(session, Mapping) else session


def _session_body(session: Any) -> Json:
    return {name: value for name, value in Session.read(_with_claims(session)).variables.items() if value}


def _read_manifest(answer: Json) -> EffectiveManifest:
    try:
        tools = {name: Tool.model_validate(entry) for name, entry in answer["tools"].items()}
        manifest = made_of(answer["version"], tools, agents=answer["document"].get("agents"))
    except (ValidationError, PdpError, KeyError, TypeError, AttributeError) as error:
        raise AnswerInvalidError("the service's answer is not a manifest", hint=_SAME_RELEASE) from error
    if manifest.digest != answer.get("digest"):
        raise AnswerInvalidError("the digest of the service's manifest does not match", hint=_SAME_RELEASE)
    return manifest
