"""The answer to a client, from an enforcement point: calls are begun before their tool runs, and finished after it."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pdp.decision import Verdict, new_id
from pdp.errors import StoreError
from pdp.flow.remote.calls import UnknownCallError
from pdp.hooks.call import Behaviour, HookAnswer, HookCall, Moment
from pdp.hooks.translation import GUARD_MARKING, Translated, entries_of, restricted, translate
from pdp.hooks.workspace import Workspace
from pdp.json import canonical, digest, thawed
from pdp.manifest.fields import SUBJECT
from pdp.project.file import PROJECT_FILE, PROJECT_VARIABLE
from pdp.proposal import Execution, Failure, FailureCode
from pdp.stores.approvals import are_two_tokens, token_marks
from pdp.stores.remote_calls import CallName, CallState, RemoteCall

if TYPE_CHECKING:
    from pdp.hooks.home import HookPolicy
    from pdp.session import Session
    from pdp.stores.sql.records import SqlRemoteCalls

APPROVER_FILE: Final = "approver.yaml"
_SHOWN: Final = 200
_STANDING_SECONDS: Final = 86_400.0  # how long a client's person may take to answer
_GUARDED: Final = "this touches what guards the agent, or what starts programs unasked; leave it to the person"
_UNBEGUN: Final = "this ran, and was not allowed to"
_RUNNING: Final = "the same call may be running at this moment, so this one was not made; look before you try again"
_CHANGED: Final = "the policy changes this call in a way that the client cannot be told"


async def answer(call: HookCall, policy: HookPolicy, *, can_ask: bool = False) -> HookAnswer:
    """Return the answer to a call. `can_ask`: as of the client's dialect.

    PdpError: it cannot be decided, which is a deny.
    """
    asked = _HookQuestion(call, policy, can_ask=can_ask)
    match call.moment:
        case Moment.BEFORE:
            return await asked.before()
        case Moment.PERMISSION:
            return await asked.permission()
        case Moment.AFTER:
            return await asked.after()


class _HookQuestion:
    """What a client asks, and what is remembered of the call between its moments: in the store, for a while."""

    def __init__(self, call: HookCall, policy: HookPolicy, *, can_ask: bool) -> None:
        self._call, self._policy, self._pep, self._can_ask = call, policy, policy.pep, can_ask
        calls = policy.pep.remote_calls
        if calls is None:
            raise StoreError("the calls of a hook need a database", hint="state `store:` in the project file")
        self._calls: SqlRemoteCalls = calls
        ids = [call.client, call.session_id, call.call_id]
        name = new_id() if call.call_id is None else digest(canonical(ids))
        asked_for = digest(canonical([*ids, call.tool, call.arguments, call.cwd]))
        self._name = CallName(name, f"hook:{call.client}", asked_for)
        self._session, self._person = self._people()

    async def before(self) -> HookAnswer:
        """Decide the call, and begin it where it is allowed."""
        call, workspace = self._call, Workspace(self._call.cwd, self._policy.home)
        translated = await self._translated(workspace)
        told = await self._begin(translated)
        if told["begun"]:
            proposed = {"tool": translated.tool, "arguments": translated.arguments}
            if (decided := told["outcome"]["proposal"]) != proposed:
                return await self._correct(translated, decided, workspace)
            return HookAnswer(Behaviour.PASS)
        if told["verdict"] == Verdict.ALLOW:
            return HookAnswer(Behaviour.DENY, _RUNNING)
        approval = told["approval"]
        if told["verdict"] != Verdict.STEP_UP or approval is None:
            guarded = GUARD_MARKING in translated.markings
            return HookAnswer(Behaviour.DENY, _GUARDED if guarded else told["answer"]["text"] or "denied")
        what = f"{translated.tool}: {' '.join(translated.target.split())[:_SHOWN]}"
        if self._can_ask and self._may_grant(approval):
            for key in (_likeness(call), self._name.id):
                await self._note(f"asked:{key}", approval["id"])
            return HookAnswer(Behaviour.ASK, f"{what} (approval {approval['id']})")
        return HookAnswer(Behaviour.DENY, f"{what} is held. {self._way(approval['id'])}")

    async def permission(self) -> HookAnswer:
        """Let the client's person answer for a call that was begun, or asked for; it is not decided again."""
        likeness = _likeness(self._call)
        if await self._noted(likeness) or await self._noted(f"asked:{likeness}"):
            return HookAnswer(Behaviour.PASS)
        return HookAnswer(Behaviour.DENY, "this call was not decided before")

    async def after(self) -> HookAnswer:
        """Record what the call came to; one that the client's person was asked for is granted by them first."""
        if self._call.call_id is None:
            noted = await self._noted(_likeness(self._call))
            self._name = self._name._replace(id=noted or self._name.id)
        try:
            await self._finish()
        except UnknownCallError:
            approval_id = await self._noted(f"asked:{self._name.id}")
            if approval_id is None:
                return HookAnswer(Behaviour.DENY, _UNBEGUN)
            translated = await self._translated(Workspace(self._call.cwd, self._policy.home))
            told = await self._begin(translated)
            if told["approval"] is not None and told["approval"]["id"] == approval_id and not told["begun"]:
                approvals = self._pep.approvals
                assert approvals is not None  # noqa: S101 - it has opened one
                await asyncio.to_thread(approvals.grant, approval_id, self._person)
                told = await self._begin(translated)
            if not told["begun"]:
                return HookAnswer(Behaviour.DENY, _UNBEGUN)
            await self._finish()
        return HookAnswer(Behaviour.PASS)

    async def _translated(self, workspace: Workspace) -> Translated:
        """Return the proposal that the call is, as the repository's own file restricts it."""
        rules = workspace.rules(self._pep.manifest.tools)
        commands = {name: words for name, words in self._policy.commands.items() if name not in rules.commands_without}
        translated = translate(self._call, workspace, commands)
        entries = entries_of(self._call, translated)
        if not rules.deny.isdisjoint(entries):
            return restricted(self._call, translated.target, *translated.markings, "repository.denied")
        if not rules.hold.isdisjoint(entries):
            # A hold is for what would be allowed: it never makes an approval of what the policy denies.
            proposal = {"tool": translated.tool, "arguments": translated.arguments}
            if (await self._pep.adecide(proposal, self._session_of(translated))).allowed:
                return restricted(self._call, translated.target)
        return translated

    async def _begin(self, translated: Translated) -> dict[str, Any]:
        proposal = {"tool": translated.tool, "arguments": translated.arguments}
        # A key that lasts until a call like this one has begun: it has one approval, and the next one needs another.
        key = digest(canonical([_likeness(self._call), await self._noted(_likeness(self._call))]))
        session = self._session_of(translated).with_changes(idempotency_key=key)
        told = await self._pep.abegin(self._name, proposal, session, tool_call_id=self._call.call_id)
        if told["verdict"] == Verdict.ALLOW:
            await self._note(_likeness(self._call), self._name.id)
        return told

    async def _finish(self) -> None:
        # The stores need no contents of files: that it is this result, and no other, is enough.
        text = json.dumps(self._call.executed, sort_keys=True).encode()
        failure = Failure(FailureCode.TOOL_EXECUTION_FAILED, "the client says that the tool has failed")
        execution = Execution(failure=failure) if self._call.failed else Execution(result={"digest": digest(text)})
        await self._pep.afinish(self._name, execution)

    async def _correct(self, translated: Translated, decided: dict[str, Any], workspace: Workspace) -> HookAnswer:
        is_entry = translated.arguments is not self._call.arguments
        arguments = decided["arguments"]["input"] if is_entry else decided["arguments"]
        self._call = replace(self._call, arguments=arguments)
        again = await self._translated(workspace)
        if decided != {"tool": again.tool, "arguments": again.arguments} or again.markings != translated.markings:
            unused = Failure(FailureCode.TOOL_UNAVAILABLE, _CHANGED)
            await self._pep.afinish(self._name, Execution(failure=unused, started=False))
            return HookAnswer(Behaviour.DENY, _CHANGED)
        await self._note(_likeness(self._call), self._name.id)
        return HookAnswer(Behaviour.CORRECT, arguments=arguments)

    async def _noted(self, key: str) -> str | None:
        row = await asyncio.to_thread(self._calls.get, key)
        fresh = row is not None and row.owner == self._name.owner and time.time() < row.running_until
        return row.request_digest if row is not None and fresh else None

    async def _note(self, key: str, text: str) -> None:
        until = time.time() + _STANDING_SECONDS
        note = RemoteCall(key, self._name.owner, text, CallState.FINISHED, until, 0.0, {})
        old = await asyncio.to_thread(self._calls.get, key)
        await asyncio.to_thread(self._calls.add, note) if old is None else await asyncio.to_thread(
            self._calls.replace, old, note
        )

    def _people(self) -> tuple[Session, dict[str, Any]]:
        """Return the session of the call, and the claims of the client's person when they answer it themselves."""
        claims = thawed(self._policy.session.claims)
        act = claims.get("act", {})
        if isinstance(act, dict):
            claims["act"] = {"sub": f"agent:{self._call.client}", **act}
        person = {name: claims[name] for name in ("sub", "iss") if name in claims}
        session = self._policy.session.with_changes(claims=claims, run_id=self._call.session_id)
        return session, {**person, "azp": f"person at {self._call.client}"}

    def _session_of(self, translated: Translated) -> Session:
        facts = {**thawed(self._session.facts), "markings": [*translated.markings]}
        return self._session.with_changes(facts=facts)

    def _may_grant(self, approval: dict[str, Any]) -> bool:
        """Return whether the client's person alone may grant what their agent asks."""
        two = are_two_tokens(token_marks(self._person), token_marks(self._session.claims))
        return SUBJECT in approval["approvers"] and approval["quorum"] == 1 and two

    def _way(self, approval_id: str) -> str:
        home = self._policy.home
        line = f"pdp approvals grant {approval_id}"
        if (home / APPROVER_FILE).is_file():
            project = f"{PROJECT_VARIABLE}={shlex.quote(str(home / PROJECT_FILE))}"
            line = f"{project} {line} --session {shlex.quote(str(home / APPROVER_FILE))}"
        return f"Ask the person to run `{line}` in a terminal of their own, then make exactly the same call again."


def _likeness(call: HookCall) -> str:
    """Return what a call has in common with what the client says of it later, which may be without its id."""
    return "like:" + digest(canonical([call.client, call.session_id, call.tool, call.arguments]))
