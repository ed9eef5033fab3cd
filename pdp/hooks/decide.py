"""The answer to a client, from an enforcement point: calls are begun before their tool runs, and finished after it."""

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from pdp.decision import Verdict, new_id
from pdp.flow.remote.calls import UnknownCallError
from pdp.flow.stages import not_run
from pdp.hooks.call import Behaviour, HookAnswer, HookCall, Moment
from pdp.hooks.home import HookPolicy
from pdp.hooks.rules import repository_rules
from pdp.hooks.translation import OUTSIDE, Translated, as_entry, shown, translate
from pdp.hooks.workspace import Workspace
from pdp.json import canonical, digest, thawed
from pdp.manifest.fields import SUBJECT
from pdp.project.file import PROJECT_FILE, grant_command
from pdp.proposal import Execution, Failure, FailureCode
from pdp.session import Session
from pdp.stores.approvals import are_two_tokens, token_marks
from pdp.stores.remote_calls import CallName, CallState, RemoteCall

_NOT_FOR_AGENTS: Final = "this touches what guards the agent, or what starts programs, or its repository denies it"
_PASS: Final = HookAnswer(Behaviour.PASS)
_UNBEGUN: Final = HookAnswer(Behaviour.DENY, "this call was not allowed before")


async def answer(call: HookCall, policy: HookPolicy, *, can_ask: bool = False) -> HookAnswer:
    """Return the answer to a call. `can_ask`: as of the client's dialect. PdpError: it cannot be decided, a deny."""
    question = await asyncio.to_thread(_HookQuestion, call, policy)
    if call.moment is Moment.BEFORE:
        return await question.before(can_ask=can_ask)
    if call.moment is Moment.AFTER:
        return await question.after()
    return _PASS if question.begun or question.asked else _UNBEGUN  # their person answers: nothing is used again


class _HookQuestion:
    """What a client asks, and what is stored of such calls: the id that one was begun under, the approval asked for."""

    def __init__(self, call: HookCall, policy: HookPolicy) -> None:
        self._policy, self._pep, calls = policy, policy.pep, policy.pep.remote_calls
        assert calls is not None  # noqa: S101 - the policy of hooks has a store
        self._calls = calls
        ids, asked = [call.client, call.session_id, call.call_id], [call.tool, call.arguments]
        name = new_id() if call.call_id is None else digest(canonical(ids))
        self._name = CallName(name, f"hook:{call.client}", digest(canonical([*ids, *asked, call.cwd])))
        self._likeness = f"like:{digest(canonical([*ids[:2], *asked]))}"
        row = calls.get(self._likeness)
        known = row.record if row is not None and row.owner == self._name.owner else {}
        self.begun, self.asked = known.get("begun"), known.get("asked")
        # A command may have led its client elsewhere while it ran.
        self._call = replace(call, cwd=known["cwd"]) if call.moment is Moment.AFTER and "cwd" in known else call
        self._workspace = Workspace(self._call.cwd, policy.home)
        claims = self._claims = thawed(policy.session.claims)
        claims["act"] = {"sub": f"agent:{call.client}", **claims.get("act", {})}
        self._person = {"iss": claims.get("iss"), "sub": claims.get("sub"), "azp": f"person at {call.client}"}

    async def before(self, *, can_ask: bool) -> HookAnswer:
        """Decide the call, and begin it where it is allowed."""
        translated = await self._translated(self._call)
        told = await self._begin(translated)
        approval = told["approval"]
        if told["begun"]:
            return await self._corrected(translated, told["outcome"]["proposal"])
        if told["verdict"] == Verdict.ALLOW:
            return HookAnswer(Behaviour.DENY, "the same call may have run just now; look before you make it again")
        if told["verdict"] != Verdict.STEP_UP or approval is None:
            return HookAnswer(Behaviour.DENY, _NOT_FOR_AGENTS if translated.markings else told["answer"]["text"])
        what = shown(self._call, translated, self._workspace)
        line = grant_command(self._policy.home / PROJECT_FILE, approval["id"])
        do = f"ask the person to run `{line}` in a terminal of their own, then make exactly the same call again."
        two = are_two_tokens(token_marks(self._person), token_marks(self._claims))
        if can_ask and two and SUBJECT in approval["approvers"] and approval["quorum"] == 1:
            await asyncio.to_thread(self._note, self.begun, approval["id"])
            return HookAnswer(Behaviour.ASK, f"{what}. Where nobody answers here, {do}")
        return HookAnswer(Behaviour.DENY, f"{what} is held: {do}")

    async def after(self) -> HookAnswer:
        """Record what the call came to; one that the client's person was asked for is granted by them first."""
        if self._call.call_id is None and self.begun is not None:
            self._name = self._name._replace(id=self.begun)
        # Contents of files are not stored; the digest says which result it was.
        result = {"digest": await asyncio.to_thread(lambda: digest(canonical(self._call.executed)))}
        failure = Failure(FailureCode.TOOL_EXECUTION_FAILED, "the client says that the tool has failed")
        execution = Execution(failure=failure) if self._call.failed else Execution(result)
        try:
            await self._pep.afinish(self._name, execution)
        except UnknownCallError:
            if self.asked is None or self._pep.approvals is None:
                return _UNBEGUN
            translated = await self._translated(self._call)
            told = await self._begin(translated)
            if not told["begun"] and told["approval"] is not None and told["approval"]["id"] == self.asked:
                await asyncio.to_thread(self._pep.approvals.grant, self.asked, self._person)
                await self._begin(translated)
            await self._pep.afinish(self._name, execution)
        return _PASS

    async def _translated(self, call: HookCall) -> Translated:
        """Return the proposal for the call, as restricted by the repository's own rules."""
        translated, is_held = await asyncio.to_thread(self._read, call)
        # Only an allowed call is held: a hold must not let a person approve a call that the policy denies.
        if is_held and (await self._pep.adecide(*self._asking(translated))).allowed:
            return as_entry(call, OUTSIDE, translated.target)
        return translated

    def _read(self, call: HookCall) -> tuple[Translated, bool]:
        """Return the proposal for the call, and whether the repository's own rules hold it. It reads files."""
        workspace, commands = self._workspace, self._policy.commands
        rules = repository_rules(workspace.folders, self._pep.manifest.tools, commands)
        listed = {name: words for name, words in commands.items() if name not in rules.commands_without}
        translated = translate(call, workspace, listed)
        inner = call.tool if call.built_in is None else call.built_in.kind.value
        found: dict[str, Collection[str]] = {"names": {translated.tool, inner if translated.tool == OUTSIDE else ""}}
        if rules.deny or rules.hold:
            touched = translated.touched._asdict()
            names = {path: workspace.names(path) for path in {each for paths in touched.values() for each in paths}}
            found |= {field: {each for path in paths for each in names[path]} for field, paths in touched.items()}
        if any(rule.matches(found) for rule in rules.deny):
            return as_entry(call, OUTSIDE, translated.target, *translated.markings, "repository.denied"), False
        is_held = any(rule.matches(found) for rule in rules.hold)
        return translated, is_held or any(rule.may_match_below(found) for rule in (*rules.deny, *rules.hold))

    def _asking(self, translated: Translated) -> tuple[dict[str, Any], Session]:
        # A key that lasts until such a call has begun: it has one approval, and the next one needs another.
        session = self._policy.session.with_changes(
            claims=self._claims,
            run_id=self._call.session_id,
            facts={**thawed(self._policy.session.facts), "markings": [*translated.markings]},
            idempotency_key=digest(canonical([self._likeness, self.begun, self._call.cwd])),
        )
        return {"tool": translated.tool, "arguments": translated.arguments}, session

    async def _begin(self, translated: Translated) -> dict[str, Any]:
        told = await self._pep.abegin(self._name, *self._asking(translated), tool_call_id=self._call.call_id)
        if told["verdict"] == Verdict.ALLOW:
            await asyncio.to_thread(self._note, self._name.id, None)
        return told

    async def _corrected(self, translated: Translated, decided: dict[str, Any]) -> HookAnswer:
        """Return the answer to a call that was begun, with the arguments as the policy has left them."""
        if decided == self._asking(translated)[0]:
            return _PASS
        is_entry = translated.arguments is not self._call.arguments
        arguments = decided["arguments"]["input"] if is_entry else decided["arguments"]
        again = await self._translated(replace(self._call, arguments=arguments))
        same = decided == self._asking(again)[0] and again.markings == translated.markings
        if same:
            return HookAnswer(Behaviour.CORRECT, arguments=arguments)
        await self._pep.afinish(self._name, not_run("the client could not be told of the policy's change"))
        return HookAnswer(Behaviour.DENY, "the policy changes this call in a way that a client cannot be told")

    def _note(self, begun: str | None, asked: str | None) -> None:
        record = {"begun": begun, "asked": asked, "cwd": self._call.cwd}
        note = RemoteCall(self._likeness, self._name.owner, "", CallState.FINISHED, time.time(), 0.0, record)
        if not self._calls.add(note):
            self._calls.replace(self._calls.get(self._likeness) or note, note)
