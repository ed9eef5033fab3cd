"""Decide a client's call with an enforcement point. A call is begun before its tool runs, and finished afterwards."""

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pdp.approvals.people import ApprovalRefusedError
from pdp.audit.chain import MemoryAudit
from pdp.decision import Verdict, new_id
from pdp.documents import read_document
from pdp.flow.remote.calls import UnknownCallError
from pdp.flow.stages import not_run
from pdp.hooks.call import Behaviour, HookAnswer, HookCall, Moment
from pdp.hooks.home import COMMANDS_FILE, HookPolicy
from pdp.hooks.rules import HookRule, repository_rules
from pdp.hooks.shapes import shape_place
from pdp.hooks.translation import GUARD_MARKING, OUTSIDE, Translated, acting, as_entry, shown, translate
from pdp.hooks.workspace import Workspace
from pdp.json import canonical, digest, thawed
from pdp.manifest.fields import SUBJECT
from pdp.project.file import PROJECT_FILE, grant_command, read_project
from pdp.proposal import Execution, Failure, FailureCode
from pdp.session import Session
from pdp.stores.approvals import ApprovalState, Reach, are_two_tokens, token_marks
from pdp.stores.remote_calls import CallName, CallState, RemoteCall

_GUARDED: Final = (
    "this call touches the policy of `pdp hook`, or files that determine which programs start; ask "
    "the user to make the change"
)
_PASS: Final = HookAnswer(Behaviour.PASS)
# Codes of denials because of the rights in the session's file.
_RIGHTS: Final = ("scopes.", "delegation.", "purposes.")
_DECLARED: Final = (
    "{{name: {0}, version: 1.0.0, effect_class: commit-low, risk_tier: high, scopes: [files.outside],"
    " description: {0}, timeout: PT1H, schema: {{type: object, additionalProperties: true}},"
    " idempotency: {{required: true, ttl: PT24H}}}}"
)
_NEVER_ALLOWED: Final = HookAnswer(Behaviour.DENY, "this call was never allowed")


class HookOutcome(StrEnum):
    """The result of a hook for a call."""

    RUNS = "runs"
    ASKS_ONCE = "asks once a session"
    ASKS = "asks each time"
    DENIED = "denied"


class HookPreview(NamedTuple):
    """The expected outcome of a call: the manifest's tool, the text for a person, the reason, and the deciding line."""

    outcome: HookOutcome
    tool: str
    shown: str
    reason: str
    place: str


async def answer(call: HookCall, policy: HookPolicy, *, can_ask: bool = False) -> HookAnswer:
    """Return the answer to a call. A raised `PdpError` means a denial. With `can_ask`, the client can ask its user."""
    question = await asyncio.to_thread(_HookQuestion, call, policy)
    if call.moment is Moment.BEFORE:
        return await question.before(can_ask=can_ask)
    if call.moment is Moment.AFTER:
        return await question.after()
    if call.moment is Moment.END:
        return await asyncio.to_thread(question.end)
    # The client asks the user itself, so no approval is used here.
    return _PASS if question.begun or question.asked else _NEVER_ALLOWED


async def preview(call: HookCall, policy: HookPolicy) -> HookPreview:
    """Decide a call without an approval or a record. A raised `PdpError` means a denial."""
    unrecorded = replace(policy, pep=policy.pep.with_changes(audit=MemoryAudit()))
    return await (await asyncio.to_thread(_HookQuestion, call, unrecorded)).preview()


class _HookQuestion:
    """A client's question about a call, with id and approval of an earlier call with the same tool and arguments."""

    def __init__(self, call: HookCall, policy: HookPolicy) -> None:
        self._policy, self._pep, calls, approvals = policy, policy.pep, policy.pep.remote_calls, policy.pep.approvals
        assert calls is not None and approvals is not None  # noqa: S101, PT018 - the policy of hooks has a store
        self._calls, self._approvals, self._full, call = calls, approvals, call, acting(call)
        ids, asked = [call.client, call.session_id, call.call_id], [call.tool, call.arguments]
        name = new_id() if call.call_id is None else digest(canonical(ids))
        self._name = CallName(name, f"hook:{call.client}", digest(canonical([*ids, *asked, call.cwd])))
        self._likeness = f"like:{digest(canonical([*ids[:2], *asked]))}"
        # The newest question of the session about this tool that the client has put to its user.
        self._newest = f"newest:{digest(canonical([*ids[:2], call.tool]))}"
        known = self._noted(self._likeness)
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
            codes = [reason["code"] for reason in decided["reasons"]]
            text = decided["answer"]["text"]
            return HookAnswer(Behaviour.DENY, await asyncio.to_thread(self._denial, translated, text, codes))
        what = await asyncio.to_thread(self._shown, translated)
        line = grant_command(self._policy.home / PROJECT_FILE, approval["id"])
        if _lasts_for_run(approval):
            what += f". An approval covers this session: {approval['lasting']['about']['shape']}"
            line += " --for run"
        page = f" or to open {approval['url']}," if approval["url"] else ""
        do = f"ask the person to run `{line}` in their own terminal,{page} then make exactly the same call again."
        two = are_two_tokens(token_marks(self._person), token_marks(self._claims))
        if can_ask and two and SUBJECT in approval["approvers"] and approval["quorum"] == 1:
            await asyncio.to_thread(self._note_asked, approval["id"])
            return HookAnswer(Behaviour.ASK, f"{what}. If nobody answers here, {do}")
        return HookAnswer(Behaviour.DENY, f"{what} waits for approval: {do}")

    async def preview(self) -> HookPreview:
        translated = await self._translated(self._call)
        evaluation = await self._pep.adecide(*self._request(translated))
        place, lasts = await asyncio.to_thread(self._place, translated, evaluation.codes, evaluation.verdict)
        outcome, reason = HookOutcome.RUNS, ""
        if evaluation.verdict == Verdict.STEP_UP:
            outcome = HookOutcome.ASKS_ONCE if lasts else HookOutcome.ASKS
        elif not evaluation.allowed:
            outcome = HookOutcome.DENIED
            reason = await asyncio.to_thread(self._denial, translated, evaluation.answer.text, evaluation.codes)
        return HookPreview(outcome, translated.tool, self._shown(translated), reason, place)

    def end(self) -> HookAnswer:
        """Withdraw the pending approvals of a session that has ended, and end its lasting grants."""
        agent = self._claims["act"]["sub"]
        for approval in self._approvals.list(state=ApprovalState.PENDING):
            if (approval.run_id, approval.agent) == (self._call.session_id, agent):
                self._withdraw(approval.id)
        if self._call.session_id:
            self._approvals.lasting.end_run(self._call.session_id, self._claims)
        return _PASS

    def _withdraw(self, approval_id: str) -> None:
        # The approval may have been decided meanwhile, or belong to another person's session of this name.
        with suppress(ApprovalRefusedError):
            if self._approvals.get(approval_id).state is ApprovalState.PENDING:
                self._approvals.withdraw(approval_id, self._claims)

    def _shown(self, translated: Translated) -> str:
        return shown(replace(self._full, cwd=self._call.cwd), translated, self._workspace)

    def _denial(self, translated: Translated, text: str, codes: Collection[str]) -> str:
        if GUARD_MARKING in translated.markings:
            return _GUARDED
        if translated.markings:
            return f"the rule at {translated.place} of this repository denies this call; the user can change the rule"
        if (file := self._policy.manifest_file) is None:
            return text
        place, _ = self._place(translated, codes, Verdict.DENY)
        if translated.tool not in self._pep.manifest.tools:
            line, rules = _DECLARED.format(translated.tool), file.with_name("governance.yaml")
            return (
                f"{text}; a person can declare the tool by two lines: `  - {line}` below {place}, "
                f"and `  {translated.tool}: *entry` at the end of {rules}"
            )
        return f"{text} (a person can change the policy at {place})"

    def _place(self, translated: Translated, codes: Collection[str], verdict: Verdict | None) -> tuple[str, bool]:
        """Return the file and line that decide the call, and whether an approval is valid for the whole session."""
        project, tool = read_project(self._policy.home / PROJECT_FILE), translated.tool
        assert project.manifest is not None  # noqa: S101 - the policy of hooks has a manifest
        manifest = read_document(project.manifest)
        entries = [entry["name"] for entry in manifest.value["tools"]]
        path: tuple[str | int, ...] = ("tools", entries.index(tool)) if tool in entries else ("tools",)
        place, lasts = manifest.place(path, key=tool not in entries), False
        if tool in entries and verdict != Verdict.ALLOW:
            if project.session is not None and any(code.startswith(_RIGHTS) for code in codes):
                place = read_document(project.session).place(("claims",), key=True)
            elif project.governance is not None:
                governance = read_document(project.governance)
                rules = ((governance.value or {}).get("actions") or {}).get(tool) or {}
                place = governance.place(("actions", tool), key=True) if rules else place
                lasting = (rules.get("approval") or {}).get("lasting") or {}
                lasts = "run" in (lasting.get("reaches") or ())
        if translated.shape and verdict in (Verdict.ALLOW, Verdict.STEP_UP):
            place = shape_place(self._policy.home / COMMANDS_FILE, translated.shape) or place
        is_guard = GUARD_MARKING in translated.markings
        return translated.place or ("" if is_guard else str(place)), lasts

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
            if self.asked is None:
                return _NEVER_ALLOWED
            translated = await self._translated(self._call)
            decided = await self._begin(translated)
            approval = decided["approval"]
            if not decided["begun"] and approval is not None and await self._is_asked(approval["id"]):
                reach = Reach.RUN if _lasts_for_run(approval) else Reach.ONCE
                await asyncio.to_thread(self._approvals.grant, approval["id"], self._person, reach=reach)
                await self._begin(translated)
            await self._pep.afinish(self._name, execution)
        return _PASS

    async def _is_asked(self, approval_id: str) -> bool:
        """Return whether the user's answer in the client is for this approval.

        A client may ask two questions about one tool at a time. The second one has withdrawn the first one's approval,
        so the approval is a new one.
        """
        if approval_id == self.asked:
            return True
        asked = await asyncio.to_thread(self._approvals.get, str(self.asked))
        return asked.state is ApprovalState.WITHDRAWN

    async def _translated(self, call: HookCall) -> Translated:
        translated, holding = await asyncio.to_thread(self._read, call)
        # The call waits for a person only if the policy allows it, so that nobody can approve a call that the policy
        # denies.
        if holding is not None and (await self._pep.adecide(*self._request(translated))).allowed:
            return as_entry(call, OUTSIDE, translated.target)._replace(place=holding.place)
        return translated

    def _read(self, call: HookCall) -> tuple[Translated, HookRule | None]:
        """Return the proposal for the call, and the repository's rule that holds the call, if any."""
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
        if (denying := next((rule for rule in rules.deny if rule.matches(targets)), None)) is not None:
            denied = as_entry(call, OUTSIDE, translated.target, *translated.markings, "repository.denied")
            return denied._replace(place=denying.place), None
        holding = [rule for rule in rules.hold if rule.matches(targets)]
        return translated, next(
            iter((*holding, *(rule for rule in (*rules.deny, *rules.hold) if rule.may_match_below(targets)))), None
        )

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
            left_out = {name: self._full.arguments[name] for name in self._full.arguments.keys() - self._call.arguments}
            return HookAnswer(Behaviour.CORRECT, arguments={**arguments, **left_out})
        await self._pep.afinish(self._name, not_run("the client cannot apply the policy's change"))
        return HookAnswer(Behaviour.DENY, "the policy changes this call in a way that the client cannot apply")

    def _note(self, begun: str | None, asked: str | None, key: str | None = None) -> None:
        record = {"begun": begun, "asked": asked, "cwd": self._call.cwd}
        note = RemoteCall(key or self._likeness, self._name.owner, "", CallState.FINISHED, time.time(), 0.0, record)
        if not self._calls.add(note):
            self._calls.replace(self._calls.get(note.id) or note, note)

    def _noted(self, key: str) -> dict[str, Any]:
        row = self._calls.get(key)
        return row.record if row is not None and row.owner == self._name.owner else {}

    def _note_asked(self, approval_id: str) -> None:
        """Note that the client asks its user, and withdraw the approval of the question before, which has no answer."""
        before = self._noted(self._newest).get("asked")
        self._note(self.begun, approval_id)
        self._note(None, approval_id, self._newest)
        if before not in (None, approval_id):
            self._withdraw(before)


def _lasts_for_run(approval: dict[str, Any]) -> bool:
    """Return whether a person's approval of a call also covers similar calls of the session."""
    return Reach.RUN in ((approval["lasting"] or {}).get("reaches") or ())
