"""Calls from hooks are decided with the starter's policy, a real engine and store, and an approver at a terminal."""

import asyncio
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdp.audit.chain import chain_hash
from pdp.audit.verify import Chain
from pdp.errors import PdpError
from pdp.hooks.call import Behaviour, BuiltIn, HookAnswer, HookCall, Kind, Moment
from pdp.hooks.decide import answer
from pdp.hooks.home import HookPolicy, open_policy
from pdp.hooks.starter import starter_files
from pdp.stores.approvals import Approval, ApprovalState
from pdp.stores.sql.audit import SqlAudit
from tests.support.command_line import Done, pdp_process

PASS = HookAnswer(Behaviour.PASS)
GUARDED = HookAnswer(
    Behaviour.DENY,
    "this call touches the policy of `pdp hook`, or files that determine which programs start; ask the user to "
    "make the change",
)
UNBEGUN = HookAnswer(Behaviour.DENY, "this call was never allowed")
TOOLS = {
    "Bash": BuiltIn(Kind.SHELL, ("command",)),
    "Read": BuiltIn(Kind.READ, ("file_path",)),
    "Write": BuiltIn(Kind.WRITE, ("file_path",)),
    "Grep": BuiltIn(Kind.SEARCH, ("path",)),
}


class Desk:
    """A HOME with the starter's files, and a repository for the client. `changes` replaces texts in the files."""

    def __init__(self, folder: Path, owned: ExitStack, changes: Mapping[str, tuple[str, str]]) -> None:
        self.home, self.cwd = folder / "home", folder / "work"
        (self.home / "state").mkdir(parents=True)
        (self.cwd / ".git").mkdir(parents=True)
        for name, content in starter_files("alice").items():
            text = content.decode()
            for old, new in [changes[name]] if name in changes else []:
                assert old in text
                text = text.replace(old, new)
            (self.home / name).write_text(text)
        self.policy: HookPolicy = open_policy(self.home, owned)

    def change(self, name: str, old: str | None, new: str) -> None:
        """Replace `old` in a file of the policy; None stands for the end of the file."""
        file = self.home / name
        text = file.read_text()
        file.write_text(text + new if old is None else text.replace(old, new))

    def call(self, tool: str, call_id: str | None = "c1", moment: Moment = Moment.BEFORE, **arguments: Any) -> HookCall:
        return HookCall("claude-code", moment, "s1", call_id, tool, arguments, str(self.cwd), TOOLS.get(tool))

    async def bash(self, command: str, call_id: str | None = "c1", *, can_ask: bool = False) -> HookAnswer:
        return await answer(self.call("Bash", call_id, command=command), self.policy, can_ask=can_ask)

    async def after(self, call: HookCall, **changes: Any) -> HookAnswer:
        return await answer(replace(call, moment=Moment.AFTER, **{"executed": "done", **changes}), self.policy)

    def restrict(self, rules: str) -> None:
        (self.cwd / ".pdp-hook.yaml").write_text(rules)

    def denied_there(self, place: str = "1:8") -> HookAnswer:
        """Return the expected answer to a call that a rule of the repository denies."""
        rule = f"{self.cwd}/.pdp-hook.yaml:{place}"
        return HookAnswer(
            Behaviour.DENY, f"the rule at {rule} of this repository denies this call; the user can change the rule"
        )

    def approvals(self) -> list[Approval]:
        assert self.policy.pep.approvals is not None
        return [*self.policy.pep.approvals.list()]

    def held(self, what: str, *, asks: bool = False) -> HookAnswer:
        """Return the expected answer to a held call, which tells the user how to grant the newest approval."""
        home = shlex.quote(str(self.home))
        line = (
            f"PDP_PROJECT={home}/pdp.yaml pdp approvals grant {self.approvals()[-1].id} --session {home}/approver.yaml"
        )
        rest = "in their own terminal, then make exactly the same call again."
        text = f"{what} waits for approval: ask the person to run `{line}` {rest}"
        if asks:
            return HookAnswer(Behaviour.ASK, text.replace(" waits for approval: ", ". If nobody answers here, "))
        return HookAnswer(Behaviour.DENY, text)

    def as_told(self, given: HookAnswer) -> Done:
        """Run the command that the answer names, as the user would."""
        match = re.search(r"`(.*)`", given.message)
        assert match is not None
        variable, program, *arguments = shlex.split(match[1])
        assert program == "pdp"
        return pdp_process(*arguments, PDP_PROJECT=variable.removeprefix("PDP_PROJECT="))

    def events(self) -> list[tuple[Any, ...]]:
        """Verify the hash chain of the audit stream, and return its events."""
        stream = self.policy.pep.audit
        assert isinstance(stream, SqlAudit)
        events = [event for _, event in stream.stored(Chain(chain_hash(None)).check, {})]
        return [tuple(map(event.get, ("type", "subject", "agent", "verdict", "outcome"))) for event in events]


@pytest.fixture
def desk_with(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    with ExitStack() as owned:
        yield lambda **changes: Desk(tmp_path, owned, {f"{name}.yaml": change for name, change in changes.items()})


@pytest.fixture
def desk(desk_with: Callable[..., Desk]) -> Desk:
    return desk_with()


@pytest.mark.process
async def test_held_call_runs_once_after_a_grant_in_a_terminal(desk: Desk) -> None:
    held = await desk.bash("make all", "c1")
    assert held == desk.held("run_command: make all")
    assert await desk.bash("make all", "c2") == held  # The repeated call waits for the approval of the first call.
    granted = desk.as_told(held)
    assert (granted.code, granted.err) == (0, f"project: {desk.home}/pdp.yaml\n")

    # The additional space changes the arguments, so the grant does not cover this call.
    assert await desk.bash("make  all", "c3") == desk.held("run_command: make  all")
    call = desk.call("Bash", "c4", command="make all")
    assert await answer(call, desk.policy) == PASS
    assert await answer(call, desk.policy) == PASS  # If the hook is registered twice, each call arrives twice.
    assert await desk.bash("make all", "c5") == desk.held("run_command: make all")
    assert await desk.after(call) == PASS
    assert await answer(call, desk.policy) == HookAnswer(
        Behaviour.DENY, "the same call may already have run; check its effect before you repeat it"
    )
    assert await desk.bash("make all", "c6") == desk.held("run_command: make all")
    states = [approval.state for approval in desk.approvals()]
    assert states == [ApprovalState.CONSUMED, ApprovalState.PENDING, ApprovalState.PENDING]

    who, agent = "alice", "agent:claude-code"
    steps = [event for event in desk.events() if event[0] != "tool.run_command.dispatch" or event[3] == "ALLOW"]
    assert steps == [
        ("approval.opened", who, agent, None, None),
        ("approval.granted", who, None, None, None),
        ("approval.opened", who, agent, None, None),
        ("tool.run_command.dispatch", who, agent, "ALLOW", None),
        ("approval.consumed", who, agent, None, None),
        ("approval.opened", who, agent, None, None),
        ("tool.run_command.result", who, agent, None, "succeeded"),
    ]


@pytest.mark.process
async def test_grant_of_a_command_is_valid_only_in_the_working_folder_of_the_call(desk: Desk) -> None:
    held, elsewhere = await desk.bash("make", "c1"), desk.cwd / "other"
    assert desk.as_told(held).code == 0
    elsewhere.mkdir()
    other = replace(desk.call("Bash", "c2", command="make"), cwd=str(elsewhere))
    assert await answer(other, desk.policy) == desk.held(f"run_command: make in {elsewhere}")
    call = desk.call("Bash", "c3", command="make")
    assert await answer(call, desk.policy) == PASS
    assert await desk.after(call, cwd=str(elsewhere)) == PASS


async def test_yes_of_the_user_in_the_client_counts_even_if_the_command_then_changes_the_folder(desk: Desk) -> None:
    call = desk.call("Bash", "c1", command="cd other")
    assert (await answer(call, desk.policy, can_ask=True)).behaviour is Behaviour.ASK
    assert await desk.after(call, cwd=str(desk.cwd / "other")) == PASS
    assert [approval.state for approval in desk.approvals()] == [ApprovalState.CONSUMED]


@pytest.mark.process
async def test_session_that_makes_a_call_cannot_approve_it(desk: Desk) -> None:
    held = await desk.bash("make")
    refused = desk.as_told(replace(held, message=held.message.replace("approver.yaml", "session.yaml")))
    assert refused.code == 1
    assert [approval.state for approval in desk.approvals()] == [ApprovalState.PENDING]


async def test_held_call_runs_after_the_user_says_yes_in_the_client(desk: Desk) -> None:
    call = desk.call("Bash", command="make")
    assert await answer(call, desk.policy, can_ask=True) == desk.held("run_command: make", asks=True)
    asked = replace(call, moment=Moment.PERMISSION, call_id=None)
    assert await answer(asked, desk.policy, can_ask=True) == PASS
    assert await desk.after(call) == PASS
    (approval,) = desk.approvals()
    assert (approval.state, [grant.person.sub for grant in approval.grants]) == (ApprovalState.CONSUMED, ["alice"])
    assert [event[0] for event in desk.events()] == [
        "approval.opened",
        "tool.run_command.dispatch",
        "tool.run_command.dispatch",
        "approval.granted",
        "tool.run_command.dispatch",
        "approval.consumed",
        "tool.run_command.result",
    ]
    assert desk.events()[-1] == ("tool.run_command.result", "alice", "agent:claude-code", None, "succeeded")

    again = await desk.bash("make", "c2", can_ask=True)
    assert again == desk.held("run_command: make", asks=True)


async def test_approval_of_a_call_that_the_user_refused_in_the_client_is_withdrawn(desk: Desk) -> None:
    def states() -> list[str]:
        return [approval.state.value for approval in desk.approvals()]

    await desk.bash("make", can_ask=True)
    # The result of another call does not show how the user answered the question about this call.
    assert await desk.after(desk.call("Bash", "c2", command="make all")) == UNBEGUN
    assert states() == ["pending"]
    await answer(desk.call("Read", "c3", file_path=".env"), desk.policy, can_ask=True)
    await desk.bash("make", "c4", can_ask=True)
    assert states() == ["pending", "pending"]
    # The next question about the same tool replaces the question.
    await desk.bash("make all", "c5", can_ask=True)
    await desk.bash("make install", "c6")
    assert states() == ["withdrawn", "pending", "pending", "pending"]

    other = replace(desk.call("Bash", "c7", command="make other"), session_id="s2")
    await answer(other, desk.policy, can_ask=True)
    ended = HookCall("claude-code", Moment.END, "s1", None, "", {}, str(desk.cwd))
    assert await answer(ended, desk.policy) == PASS
    assert states() == ["withdrawn"] * 4 + ["pending"]


async def test_next_question_does_not_withdraw_an_approval_that_the_user_has_granted(desk: Desk) -> None:
    await desk.bash("make", can_ask=True)
    approvals = desk.policy.pep.approvals
    assert approvals is not None
    approvals.grant(desk.approvals()[0].id, {"sub": "alice", "azp": "terminal"})
    await desk.bash("make all", "c2", can_ask=True)
    assert [approval.state for approval in desk.approvals()] == ["granted", "pending"]
    assert await desk.bash("make", "c3", can_ask=True) == PASS


async def test_two_questions_of_a_client_at_a_time_can_both_be_answered_with_yes(desk: Desk) -> None:
    calls = [desk.call("Read", name, file_path=name) for name in (".env", ".env.local", "x.pem")]
    for call in calls:
        assert (await answer(call, desk.policy, can_ask=True)).behaviour is Behaviour.ASK
    assert [await desk.after(call) for call in calls] == [PASS] * 3
    assert sorted(approval.state for approval in desk.approvals()) == ["consumed"] * 3 + ["withdrawn"] * 2


@pytest.mark.process
async def test_grant_of_a_command_does_not_depend_on_its_description(desk: Desk) -> None:
    def call(call_id: str, **changes: Any) -> HookCall:
        return desk.call("Bash", call_id, command="make", **{"timeout": 9, "description": "Run the tests", **changes})

    held = await answer(call("c1"), desk.policy)
    assert held == desk.held('run_command: make with {"timeout": 9} (the agent says: "Run the tests")')
    assert desk.as_told(held).code == 0
    for change in ({"timeout": 10}, {"run_in_background": True}, {"dangerouslyDisableSandbox": True}):
        assert (await answer(call("c2", **change), desk.policy)).behaviour is Behaviour.DENY
    assert await answer(call("c3", description="Run tests"), desk.policy) == PASS
    assert await desk.after(call("c3", description="Run tests")) == PASS


async def test_yes_of_the_user_in_the_client_is_ignored_after_a_denial_in_the_terminal(desk: Desk) -> None:
    call = desk.call("Bash", command="make")
    await answer(call, desk.policy, can_ask=True)
    approvals = desk.policy.pep.approvals
    assert approvals is not None
    approvals.deny(desk.approvals()[0].id, {"sub": "alice", "azp": "terminal"})
    with pytest.raises(PdpError, match="has not begun call"):
        await desk.after(call)
    assert [approval.state for approval in desk.approvals()] == [ApprovalState.DENIED, ApprovalState.PENDING]
    assert {event[0] for event in desk.events() if event[4] is not None} == set()


async def test_grant_in_a_terminal_while_the_client_asks_is_used_for_the_call(desk: Desk) -> None:
    call = desk.call("Bash", command="make")
    await answer(call, desk.policy, can_ask=True)
    approvals = desk.policy.pep.approvals
    assert approvals is not None
    approvals.grant(desk.approvals()[0].id, {"sub": "alice", "azp": "terminal"})
    assert await desk.after(call) == PASS
    assert [approval.state for approval in desk.approvals()] == [ApprovalState.CONSUMED]


@pytest.mark.parametrize(
    "changes",
    [
        {"governance": ("approvers: [$subject]", "approvers: [lead]")},
        {"governance": ("approvers: [$subject]", "approvers: [$subject], quorum: 2")},
        {"session": ("  azp: pdp-hook", "  azp: person at claude-code")},
        {"session": ("  azp: pdp-hook", "  name: Alice")},
    ],
    ids=["others", "two", "one token", "no token"],
)
async def test_user_who_cannot_approve_is_not_asked_in_the_client(
    desk_with: Callable[..., Desk], changes: dict[str, tuple[str, str]]
) -> None:
    desk = desk_with(**changes)
    assert await desk.bash("make", can_ask=True) == desk.held("run_command: make")
    assert await desk.after(desk.call("Bash", command="make")) == UNBEGUN
    asked = desk.call("Bash", None, Moment.PERMISSION, command="make")
    assert await answer(asked, desk.policy, can_ask=True) == UNBEGUN


async def test_user_is_told_the_address_of_the_approval_if_there_is_a_console(
    desk_with: Callable[..., Desk],
) -> None:
    desk = desk_with(pdp=("store: ", "public_url: http://127.0.0.1:8181\nstore: "))
    told = (await desk.bash("make")).message
    page = f"http://127.0.0.1:8181/console/approvals/{desk.approvals()[0].id}"
    assert told.endswith(f"in their own terminal, or to open {page}, then make exactly the same call again.")


async def test_call_without_an_id_is_identified_by_its_arguments(desk: Desk) -> None:
    call = desk.call("Bash", None, command="git status")
    assert await desk.after(call) == UNBEGUN
    assert await answer(call, desk.policy) == PASS
    assert await answer(replace(call, moment=Moment.PERMISSION), desk.policy) == PASS
    assert await desk.after(call) == PASS
    # After the first call has ended, the client makes the same call again.
    assert await answer(call, desk.policy) == PASS
    assert await desk.after(call, failed=True, executed=None) == PASS
    outcomes = [event[4] for event in desk.events()]
    assert outcomes == [None, "succeeded", None, "failed"]
    with pytest.raises(PdpError, match="already reported with another result"):
        await desk.after(call)


async def test_result_of_a_call_that_was_not_allowed_is_rejected(desk: Desk) -> None:
    assert await desk.after(desk.call("Bash", command="git status")) == UNBEGUN
    assert await answer(desk.call("Read", None, Moment.PERMISSION, file_path="a"), desk.policy) == UNBEGUN
    assert desk.events() == []


async def test_call_id_that_another_call_has_used_is_rejected(desk: Desk) -> None:
    assert await desk.bash("git status", "c1") == PASS
    with pytest.raises(PdpError, match="belongs to another call"):
        await desk.bash("git log", "c1")


async def test_calls_with_the_same_id_in_different_clients_or_sessions_are_separate(desk: Desk) -> None:
    call = desk.call("Bash", command="git status")
    assert await answer(call, desk.policy) == PASS
    for other in (replace(call, client="codex"), replace(call, session_id="s2")):
        assert await desk.after(other) == UNBEGUN
        assert await answer(replace(other, moment=Moment.PERMISSION), desk.policy) == UNBEGUN
        assert await answer(other, desk.policy) == PASS


async def test_restarted_process_continues_pending_calls(desk: Desk) -> None:
    """A new process takes over while one tool runs, and while the user is asked about another tool."""
    begun, asked = desk.call("Write", "c1", file_path="a"), desk.call("Bash", "c2", command="make")
    assert await answer(begun, desk.policy) == PASS
    assert (await answer(asked, desk.policy, can_ask=True)).behaviour is Behaviour.ASK
    with ExitStack() as owned:
        desk.policy = open_policy(desk.home, owned)
        assert await desk.after(begun) == PASS
        assert await answer(replace(asked, moment=Moment.PERMISSION, call_id=None), desk.policy) == PASS
        assert await desk.after(asked) == PASS
        assert [event[4] for event in desk.events() if event[0].endswith(".result")] == ["succeeded"] * 2


async def test_one_grant_allows_only_one_of_several_calls_with_the_same_arguments(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Calls do not wait until a running call with the same arguments ends.
    monkeypatch.setattr("pdp.flow.reserve.PATIENCE", 0.0)
    await desk.bash("make", "c1")
    approvals = desk.policy.pep.approvals
    assert approvals is not None
    approvals.grant(desk.approvals()[0].id, {"sub": "alice", "azp": "terminal"})
    given = await asyncio.gather(*(desk.bash("make", f"d{number}") for number in range(8)))
    assert [each.behaviour for each in given].count(Behaviour.PASS) == 1
    assert {each.behaviour for each in given} == {Behaviour.PASS, Behaviour.DENY}


async def test_hook_does_not_store_the_result_of_a_tool(desk: Desk) -> None:
    call = desk.call("Read", file_path="a")
    assert await answer(call, desk.policy) == PASS
    assert await desk.after(call, executed={"content": "a secret of the file"}) == PASS
    assert [file.name for file in (desk.home / "state").iterdir() if b"a secret of" in file.read_bytes()] == []


async def test_calls_on_guarded_files_are_denied(desk: Desk) -> None:
    for call in (
        desk.call("Read", file_path=str(desk.home / "session.yaml")),
        desk.call("Write", file_path=".git/config"),
        desk.call("Grep", pattern="sub", path=".."),
        desk.call("Bash", command=f"cat {desk.home}/session.yaml"),
        desk.call("Bash", command="git status", cwd=str(desk.home)),
        desk.call("mcp__files__read", path=str(desk.home / "state/store.db")),
    ):
        assert await answer(call, desk.policy, can_ask=True) == GUARDED
    assert desk.approvals() == []
    assert {event[3] for event in desk.events()} == {"DENY"}


async def test_denial_of_an_undeclared_tool_names_the_lines_that_declare_it(desk: Desk) -> None:
    given = await answer(desk.call("mcp__x__y", a=1), desk.policy)
    message = "INVALID_TOOL_NAME: 'mcp__x__y' is not a tool of manifest 2026.11.0; a person can declare the tool "
    assert (given.behaviour, given.message[: len(message)]) == (Behaviour.DENY, message)
    match = re.search("`(.+)` below (.+):25:1, and `(.+)` at the end of (.+)", given.message)
    assert match is not None
    assert (match[2], match[4]) == (f"{desk.home}/manifest.yaml", f"{desk.home}/governance.yaml")
    desk.change("manifest.yaml", "\ntools:\n", f"\ntools:\n{match[1]}\n")
    desk.change("governance.yaml", None, f"{match[3]}\n")
    with ExitStack() as owned:
        desk.policy = open_policy(desk.home, owned)
        held = await answer(desk.call("mcp__x__y", "c2", a=1), desk.policy)
        assert held == desk.held('mcp__x__y: mcp__x__y with {"a": 1}')


PAY = """tools:
  - {name: mcp__x__pay, version: 1.0.0, effect_class: stage, scopes: [web], description: Pay a bill,
     schema: {type: object, properties: {amount: {type: number}}},
     invariants: [{id: FEW, rule: At most 5., check: call.amount <= 5.0, correct: {set: {amount: 5}}}]}
"""
READ = "scopes: [files.read],\n     description: Read"


async def test_arguments_of_a_call_are_corrected(desk_with: Callable[..., Desk]) -> None:
    desk = desk_with(manifest=("tools:\n", PAY))
    call = desk.call("mcp__x__pay", amount=9)
    assert await answer(call, desk.policy) == HookAnswer(Behaviour.CORRECT, arguments={"amount": 5})
    assert await desk.after(replace(call, arguments={"amount": 5})) == PASS
    assert [event[4] for event in desk.events()] == [None, "succeeded"]


@pytest.mark.parametrize(
    ("check", "to", "given"),
    [
        (
            "has(call.input.limit)",
            "{input: {file_path: a, limit: 1}}",
            HookAnswer(Behaviour.CORRECT, arguments={"file_path": "a", "limit": 1}),
        ),
        ("call.input.file_path != 'a'", "{input: {file_path: /etc/passwd}}", None),
        ("call.target == 'b'", "{target: b}", None),
    ],
)
async def test_built_in_call_is_corrected_only_if_the_correction_keeps_its_manifest_entry(
    desk_with: Callable[..., Desk], check: str, to: str, given: HookAnswer | None
) -> None:
    invariant = f'invariants: [{{id: FEW, rule: A line., check: "{check}", correct: {{set: {to}}}}}]'
    desk = desk_with(manifest=(READ, f"{invariant}, {READ}"))
    changed = HookAnswer(Behaviour.DENY, "the policy changes this call in a way that the client cannot apply")
    assert await answer(desk.call("Read", file_path="a"), desk.policy) == (given or changed)
    assert [event[4] for event in desk.events()] == ([None] if given else [None, "failed"])


class TestRepository:
    """Rules in a repository's file can deny or hold more calls. They never allow more calls."""

    async def test_repository_file_can_deny_calls_of_a_manifest_entry(self, desk: Desk) -> None:
        desk.restrict("deny: [write_file]\n")
        assert await answer(desk.call("Write", file_path="a"), desk.policy) == desk.denied_there()
        assert await answer(desk.call("Write", file_path="/etc/passwd"), desk.policy) == desk.denied_there()
        assert await answer(desk.call("Read", file_path="a"), desk.policy) == PASS
        assert desk.approvals() == []

    async def test_repository_file_can_hold_calls_of_a_manifest_entry(self, desk: Desk) -> None:
        desk.restrict("hold: [write_file, run_listed_command]\n")
        call = desk.call("Write", file_path="a")
        assert await answer(call, desk.policy) == desk.held("reach_outside: a")
        assert await desk.bash("git status", "c2") == desk.held("reach_outside: git status")
        assert await answer(desk.call("Write", "c3", file_path=".git/config"), desk.policy) == GUARDED
        assert len(desk.approvals()) == 2

    async def test_repository_rule_that_holds_calls_does_not_replace_a_denial(
        self, desk_with: Callable[..., Desk]
    ) -> None:
        desk = desk_with(session=("files.write: true, ", ""))
        desk.restrict("hold: [write_file]\n")
        given = await answer(desk.call("Write", file_path="a"), desk.policy)
        assert given.message.startswith("POLICY_VIOLATION: DENY: scopes.missing: ")
        assert given.message.endswith(f" (a person can change the policy at {desk.home}/session.yaml:2:1)")
        assert desk.approvals() == []

    async def test_repository_file_can_remove_a_program_from_the_command_list(self, desk: Desk) -> None:
        desk.restrict("commands_without: [git]\n")
        assert await desk.bash("git status") == desk.held("run_command: git status")
        assert await desk.bash("pwd", "c2") == PASS

    @pytest.mark.parametrize("rule", ["mcp__x", "mcp__x__*", "mcp__x__pay", "mcp__*__pay", "mcp__x__p*"])
    async def test_repository_file_can_deny_all_tools_of_a_server(
        self, desk_with: Callable[..., Desk], rule: str
    ) -> None:
        desk = desk_with(manifest=("tools:\n", PAY))
        for place, expected in (("deny", desk.denied_there()), ("hold", None)):
            desk.restrict(f"{place}: ['{rule}']\n")
            for tool in ("mcp__x__pay", "project.mcp__x__pay"):
                given = await answer(desk.call(tool, place + tool, amount=1), desk.policy)
                is_known = tool == "mcp__x__pay"
                held = desk.held('reach_outside: mcp__x__pay with {"amount": 1}') if is_known and not expected else None
                assert given == (expected or held) or (not is_known and given.behaviour is Behaviour.DENY)

    async def test_repository_file_can_deny_or_hold_calls_on_listed_paths(self, desk: Desk) -> None:
        (desk.cwd / "src").mkdir()
        for name in ("a.lock", "src/a.py", "notes.txt"):
            (desk.cwd / name).touch()
        (desk.cwd / "link").symlink_to("a.lock")
        desk.restrict("deny: [Read(./a.lock), 'Edit(src/**)', Write(./fresh)]\nhold: ['Write(*.txt)']\n")
        read = [desk.call("Read", file_path=path) for path in ("a.lock", "src/../A.LOCK", f"{desk.cwd}/a.lock", "link")]
        write = [desk.call("Write", file_path=path) for path in ("src/a.py", "SRC/new", "src/deep/b")]
        shell = [
            desk.call("Bash", command=command)
            for command in (
                "cat a.lock",
                "tee 'src/x'",
                "ls >src/a.py",
                "git show HEAD:a.lock",
                "cat ${PWD}/a.lock",
                "curl -F f=@a.lock x",
                "touch fresh",
            )
        ]
        search = [
            desk.call("Grep", path=".", pattern="x", glob="a.lock"),
            desk.call("Grep", path="a.lock", pattern="x"),
        ]
        for call in (*read, *write, *shell, *search):
            given = await answer(call, desk.policy, can_ask=True)
            assert given in map(desk.denied_there, ("1:8", "1:24", "1:40")), call
        assert await answer(desk.call("Write", "c2", file_path="a.lock"), desk.policy) == PASS
        assert await answer(desk.call("Read", "c3", file_path="src/a.py"), desk.policy) == PASS
        assert await answer(desk.call("Write", "c4", file_path="notes.txt"), desk.policy) == desk.held(
            "reach_outside: notes.txt"
        )
        # A search in this folder could show the content of the unreadable file, so the search is held.
        call = desk.call("Grep", "c5", path=".", pattern="x")
        assert await answer(call, desk.policy) == desk.held('reach_outside: . with {"pattern": "x"}')
        assert await answer(desk.call("Grep", "c6", path="src", pattern="x"), desk.policy) == PASS

    async def test_faulty_repository_file_denies_all_calls(self, desk: Desk) -> None:
        desk.restrict("allow: [run_command]\n")
        with pytest.raises(PdpError, match=r"work/\.pdp-hook\.yaml:1:1: unknown key `allow`"):
            await desk.bash("pwd")
        assert desk.events() == []


async def test_hook_call_has_only_the_scopes_of_the_policy_session(desk_with: Callable[..., Desk]) -> None:
    desk = desk_with(session=("scopes: [files.read, files.write,", "scopes: [files.read,"))
    assert await answer(desk.call("Read", file_path="a"), desk.policy) == PASS
    assert (await answer(desk.call("Write", "c2", file_path="a"), desk.policy)).behaviour is Behaviour.DENY
    assert desk.approvals() == []
