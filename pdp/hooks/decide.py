"""Decide a client's call with an enforcement point. A call is begun before its tool runs, and finished afterwards."""

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
from pdp.hooks.rules import REPOSITORY_FILE, repository_rules
from pdp.hooks.translation import GUARD_MARKING, OUTSIDE, Translated, as_entry, shown, translate
from pdp.hooks.workspace import Workspace
from pdp.json import canonical, digest, thawed
from pdp.manifest.fields import SUBJECT
from pdp.project.file import PROJECT_FILE, grant_command
from pdp.proposal import Execution, Failure, FailureCode
from pdp.session import Session
from pdp.stores.approvals import are_two_tokens, token_marks
from pdp.stores.remote_calls import CallName, CallState, RemoteCall

_GUARDED: Final = (
    "this call touches the policy of `pdp hook`, or files that determine which programs start; ask "
    "the user to make the change"
)
_DENIED_THERE: Final = (
    f"the rules in {REPOSITORY_FILE} of this repository deny this call; the user can change the rules"
)
_PASS: Final = HookAnswer(Behaviour.PASS)
_NEVER_ALLOWED: Final = HookAnswer(Behaviour.DENY, "this call was never allowed")


async def answer(call: HookCall, policy: HookPolicy, *, can_ask: bool = False) -> HookAnswer:
    """Return the answer to a call. A raised `PdpError` means a denial. With `can_ask`, the client can ask its user."""
    question = await asyncio.to_thread(_HookQuestion, call, policy)
    if call.moment is Moment.BEFORE:
        return await question.before(can_ask=can_ask)
    if call.moment is Moment.AFTER:
        return await question.after()
    # The client asks the user itself, so no approval is used here.
    return _PASS if question.begun or question.asked else _NEVER_ALLOWED


class _HookQuestion:
    """A client's question about a call, with id and approval of an earlier call with the same tool and arguments."""

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
        # A command may have changed the client's folder while it ran.
        self._call = replace(call, cwd=known["cwd"]) if call.moment is Moment.AFTER and "cwd" in known else call
        self._workspace = Workspace(self._call.cwd, policy.home)
        claims = self._claims = thawed(policy.session.claims)
        claims["act"] = {"sub": f"agent:{call.client}", **claims.get("act", {})}
        self._person = {"iss": claims.get("iss"), "sub": claims.get("sub"), "azp": f"person at {call.client}"}

    async def before(self, *, can_ask: bool) -> HookAnswer:
        translated = await self._translated(self._call)
        decided = await self._begin(translated)
        approval = decided["approval"]
        if decided["begun"]:
            return await self._corrected(translated, decided["outcome"]["proposal"])
        if decided["verdict"] == Verdict.ALLOW:
            return HookAnswer(
                Behaviour.DENY, "the same call may already have run; check its effect before you repeat it"
            )
        if decided["verdict"] != Verdict.STEP_UP or approval is None:
            return HookAnswer(Behaviour.DENY, self._denial(translated, decided["answer"]["text"]))
        what = shown(self._call, translated, self._workspace)
        line = grant_command(self._policy.home / PROJECT_FILE, approval["id"])
        do = f"ask the person to run `{line}` in their own terminal, then make exactly the same call again."
        two = are_two_tokens(token_marks(self._person), token_marks(self._claims))
        if can_ask and two and SUBJECT in approval["approvers"] and approval["quorum"] == 1:
            await asyncio.to_thread(self._note, self.begun, approval["id"])
            return HookAnswer(Behaviour.ASK, f"{what}. If nobody answers here, {do}")
        return HookAnswer(Behaviour.DENY, f"{what} waits for approval: {do}")

    def _denial(self, translated: Translated, text: str) -> str:
        if translated.markings:
            return _GUARDED if GUARD_MARKING in translated.markings else _DENIED_THERE
        if (file := self._policy.manifest_file) is None:
            return text
        if translated.tool not in self._pep.manifest.tools:
            return f"{text}; a person can declare the tool in {file}"
        return f"{text} (policy: {file.parent})"

    async def after(self) -> HookAnswer:
        """Record the result of the call. If the client has asked its user, record the user's approval first."""
        if self._call.call_id is None and self.begun is not None:
            self._name = self._name._replace(id=self.begun)
        # The contents of files are not stored, because the digest is enough to identify the result.
        result = {"digest": await asyncio.to_thread(lambda: digest(canonical(self._call.executed)))}
        failure = Failure(FailureCode.TOOL_EXECUTION_FAILED, "the client reports that the tool failed")
        execution = Execution(failure=failure) if self._call.failed else Execution(result)
        try:
            await self._pep.afinish(self._name, execution)
        except UnknownCallError:
            if self.asked is None or self._pep.approvals is None:
                return _NEVER_ALLOWED
            translated = await self._translated(self._call)
            decided = await self._begin(translated)
            if not decided["begun"] and decided["approval"] is not None and decided["approval"]["id"] == self.asked:
                await asyncio.to_thread(self._pep.approvals.grant, self.asked, self._person)
                await self._begin(translated)
            await self._pep.afinish(self._name, execution)
        return _PASS

    async def _translated(self, call: HookCall) -> Translated:
        translated, is_held = await asyncio.to_thread(self._read, call)
        # The call waits for a person only if the policy allows it, so that nobody can approve a call that the policy
        # denies.
        if is_held and (await self._pep.adecide(*self._request(translated))).allowed:
            return as_entry(call, OUTSIDE, translated.target)
        return translated

    def _read(self, call: HookCall) -> tuple[Translated, bool]:
        """Return the proposal for the call, and whether a repository's rule holds the call."""
        workspace, commands = self._workspace, self._policy.commands
        rules = repository_rules(workspace.folders, self._pep.manifest.tools, commands)
        listed = {name: words for name, words in commands.items() if name not in rules.commands_without}
        translated = translate(call, workspace, listed)
        inner = call.tool if call.built_in is None else call.built_in.kind.value
        targets: dict[str, Collection[str]] = {"names": {translated.tool, inner if translated.tool == OUTSIDE else ""}}
        if rules.deny or rules.hold:
            touched = translated.touched._asdict()
            names = {path: workspace.names(path) for path in {each for paths in touched.values() for each in paths}}
            targets |= {field: {each for path in paths for each in names[path]} for field, paths in touched.items()}
        if any(rule.matches(targets) for rule in rules.deny):
            return as_entry(call, OUTSIDE, translated.target, *translated.markings, "repository.denied"), False
        is_held = any(rule.matches(targets) for rule in rules.hold)
        return translated, is_held or any(rule.may_match_below(targets) for rule in (*rules.deny, *rules.hold))

    def _request(self, translated: Translated) -> tuple[dict[str, Any], Session]:
        # The idempotency key stays the same until a call with the same tool and arguments begins, so one approval
        # covers that call and the next such call needs a new approval.
        session = self._policy.session.with_changes(
            claims=self._claims,
            run_id=self._call.session_id,
            facts={**thawed(self._policy.session.facts), "markings": [*translated.markings]},
            idempotency_key=digest(canonical([self._likeness, self.begun, self._call.cwd])),
        )
        return {"tool": translated.tool, "arguments": translated.arguments}, session

    async def _begin(self, translated: Translated) -> dict[str, Any]:
        decided = await self._pep.abegin(self._name, *self._request(translated), tool_call_id=self._call.call_id)
        if decided["verdict"] == Verdict.ALLOW:
            await asyncio.to_thread(self._note, self._name.id, None)
        return decided

    async def _corrected(self, translated: Translated, decided: dict[str, Any]) -> HookAnswer:
        if decided == self._request(translated)[0]:
            return _PASS
        is_entry = translated.arguments is not self._call.arguments
        arguments = decided["arguments"]["input"] if is_entry else decided["arguments"]
        again = await self._translated(replace(self._call, arguments=arguments))
        same = decided == self._request(again)[0] and again.markings == translated.markings
        if same:
            return HookAnswer(Behaviour.CORRECT, arguments=arguments)
        await self._pep.afinish(self._name, not_run("the client cannot apply the policy's change"))
        return HookAnswer(Behaviour.DENY, "the policy changes this call in a way that the client cannot apply")

    def _note(self, begun: str | None, asked: str | None) -> None:
        record = {"begun": begun, "asked": asked, "cwd": self._call.cwd}
        note = RemoteCall(self._likeness, self._name.owner, "", CallState.FINISHED, time.time(), 0.0, record)
        if not self._calls.add(note):
            self._calls.replace(self._calls.get(self._likeness) or note, note)
