"""The tenant's project answers HTTP hooks of Claude Code. After any failure, the answer is a denial with status 200."""

import asyncio
import itertools
import os
import re
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pdp.hooks.starter import starter_files
from pdp.service.security.principal import Scope
from tests.support.claude_code import ToolResult, ToolUse, run_claude
from tests.support.postgres import empty_database
from tests.support.service import ServedApp, running_service, service, tenant_on

SCOPES = {"files.read": True, "files.write": True, "files.outside": True, "web": True, "shell": True, "delegate": True}
AGENT = {"sub": "alice", "azp": "agent", "emts": SCOPES, "act": {"sub": "agent:claude-code", "scopes": [*SCOPES]}}
NO_EVENT = (
    "claude-code: hook_event_name: expected one of PreToolUse, PermissionRequest, PostToolUse, PostToolUseFailure,"
    " SessionEnd but got NoneType (run `pdp hook check`)"
)
PERSON = {"sub": "alice", "azp": "terminal"}


@pytest.fixture
def tenant(tmp_path: Path) -> dict[str, Any]:
    """Return the settings of a tenant with a starter project without the file that names a local approver."""
    (tmp_path / "project").mkdir()
    for name, content in starter_files("alice").items():
        if name != "approver.yaml":
            (tmp_path / "project" / name).write_bytes(content)
    named = {"project": tmp_path / "project" / "pdp.yaml", "workspaces": [str(tmp_path / "work")]}
    return tenant_on(empty_database("sqlite", tmp_path), **named)


@pytest.fixture
async def served(tmp_path: Path, tenant: dict[str, Any]) -> AsyncIterator[ServedApp]:
    async with service(tmp_path, tenants={"default": tenant}) as app:
        yield app


@pytest.fixture
def cwd(tmp_path: Path) -> str:
    (tmp_path / "work" / ".git").mkdir(parents=True)
    return str(tmp_path / "work")


def bash(cwd: str, command: str, call_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "session_id": "s-1", "cwd": cwd, "hook_event_name": "PreToolUse", "tool_name": "Bash",
        "tool_input": {"command": command}, "tool_use_id": call_id, **changes,
    }  # fmt: skip


async def post(client: httpx.AsyncClient, body: Any, path: str = "/v1/hooks/claude-code") -> Any:
    answered = await client.post(path, json=body)
    assert answered.status_code == 200, answered.text
    return answered.json()


def denied(why: str) -> dict[str, Any]:
    decision = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": why}
    return {"hookSpecificOutput": decision}


async def test_service_allows_a_listed_command_and_records_its_result(served: ServedApp, cwd: str) -> None:
    agent = served.client([Scope.PROPOSE], AGENT)
    assert await post(agent, bash(cwd, "git status", "c-1")) == {}
    after = bash(cwd, "git status", "c-1", hook_event_name="PostToolUse", tool_response={"stdout": ""})
    assert await post(agent, after) == {}
    assert await post(agent, {**after, "tool_use_id": "c-2", "tool_input": {"command": "ls"}}) == {
        "decision": "block", "reason": "this call was never allowed",
    }  # fmt: skip


async def test_service_allows_a_granted_command_once(served: ServedApp, cwd: str) -> None:
    agent, person = served.client([Scope.PROPOSE], AGENT), served.client([Scope.APPROVE], PERSON)
    held = await post(agent, bash(cwd, "make", "c-1"))
    (approval,) = (await person.get("/v1/approvals")).json()["approvals"]
    assert held == denied(
        f"run_command: make waits for approval: ask the person to run `pdp approvals grant {approval['id']}` in their"
        f" own terminal, or to open {approval['url']}, then make exactly the same call again."
    )
    assert (await person.post(f"/v1/approvals/{approval['id']}/grant", json={})).status_code == 200
    assert await post(agent, bash(cwd, "make", "c-2")) == {}
    assert (await post(agent, bash(cwd, "make", "c-3"))) != {}


async def test_end_of_a_session_withdraws_the_approvals_of_this_caller_and_session_only(
    served: ServedApp, cwd: str
) -> None:
    agent, other = (served.client([Scope.PROPOSE], AGENT) for _ in range(2))
    for client, session in ((agent, "s-1"), (agent, "s-2"), (other, "s-1")):
        await post(client, bash(cwd, f"make {session}", f"c-{session}", session_id=session))
    ended = {"session_id": "s-1", "cwd": cwd, "hook_event_name": "SessionEnd", "reason": "clear"}
    assert await post(agent, ended) == {}
    person = served.client([Scope.APPROVE], PERSON)
    pending = (await person.get("/v1/approvals")).json()["approvals"]
    assert len({each["id"] for each in pending if each["state"] == "pending"}) == 2


async def test_caller_cannot_report_the_result_of_a_command_of_another_caller(served: ServedApp, cwd: str) -> None:
    agent, other = (served.client([Scope.PROPOSE], AGENT) for _ in range(2))
    after = bash(cwd, "git status", "c-1", hook_event_name="PostToolUse", tool_response={})
    assert await post(agent, bash(cwd, "git status", "c-1")) == {}
    assert (await post(other, after))["decision"] == "block"
    assert await post(agent, after) == {}


async def test_paths_in_a_workspace_that_does_not_exist_need_approval(served: ServedApp, cwd: str) -> None:
    agent = served.client([Scope.PROPOSE], AGENT)
    read = {"tool_name": "Read", "tool_input": {"file_path": f"{cwd}/a"}}
    assert await post(agent, bash(cwd, "", "c-1", **read)) == {}
    gone = await post(agent, bash(f"{cwd}/gone", "", "c-2", **read))
    assert gone["hookSpecificOutput"]["permissionDecisionReason"].startswith(
        f"reach_outside: {cwd}/a in {cwd}/gone waits for approval: "
    )


async def test_hook_answers_do_not_reveal_folders_of_the_service(served: ServedApp, cwd: str, tmp_path: Path) -> None:
    agent, answers = served.client([Scope.PROPOSE], AGENT), []
    (tmp_path / "other" / ".git").mkdir(parents=True)
    (tmp_path / "other" / ".pdp-hook.yaml").write_text("deny: [read_file]\n")
    (Path(cwd) / "link").symlink_to(tmp_path / "other")
    for number, folder in enumerate((tmp_path / "other", f"{cwd}/link", tmp_path / "none", "/")):
        read = {"tool_name": "Read", "tool_input": {"file_path": "src/a"}}
        answer = await post(agent, bash(str(folder), "", f"c-{number}", **read))
        answers.append(re.sub("[0-9a-f]{32}", "ID", answer["hookSpecificOutput"]["permissionDecisionReason"]))
    assert len(set(answers)) == 1
    assert answers[0].startswith("reach_outside: src/a in a folder that is not shared waits for approval: ")


@pytest.mark.parametrize(
    ("scopes", "token", "why"),
    [
        ([Scope.PROPOSE], "", "the request has no access token (send Authorization: Bearer TOKEN)"),
        ([Scope.PROPOSE], "x", "the token is invalid, expired or revoked (send Authorization: Bearer TOKEN)"),
        (
            [Scope.APPROVE], None,
            "the token lacks the scope propose (ask an administrator for a token with this scope)",
        ),
    ],
)  # fmt: skip
async def test_unauthorized_hook_is_denied(
    served: ServedApp, cwd: str, scopes: Iterable[Scope], token: str | None, why: str
) -> None:
    client = served.client(scopes, AGENT, token=token)
    assert await post(client, bash(cwd, "git status", "c-1")) == denied(f"the call cannot be decided: {why}")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "value: the text is empty"),
        (b"[]", "the body must be an object"),
        (b"{}", NO_EVENT),
        (b'{"a": "' + b"a" * 10_000_000 + b'"}', ("the body is longer than 1048576 bytes (send less data in one "
                                                 "request)")),
    ],
    ids=["empty", "no object", "no event", "10 MB"],
)  # fmt: skip
async def test_malformed_hook_is_denied(served: ServedApp, content: bytes, why: str) -> None:
    client = served.client([Scope.PROPOSE], AGENT)
    answered = await client.post("/v1/hooks/claude-code", content=content, headers={"Content-Type": "application/json"})
    assert (answered.status_code, answered.json()) == (200, denied(f"the call cannot be decided: {why}"))


LARGE: dict[str, dict[str, Any]] = {
    "words": {"tool_name": "Bash", "tool_input": {"command": " ".join(f"/{at}" + "/a" * 2040 for at in range(240))}},
    "command": {"tool_name": "Bash", "tool_input": {"command": " ".join(["/a/b"] * 16_000)}},
    "line": {"tool_name": "Bash", "tool_input": {"command": "echo " + "-" * 60_000}},
    "paths": {"tool_name": "mcp__x__y", "tool_input": {"paths": [f"/{at}" + "/a" * 250 for at in range(1000)]}},
    "blanks": {"tool_name": "Read", "tool_input": {"file_path": "".join(map(chr, range(0xE000, 0xF8FF))) * 40}},
    "deep": {"tool_name": "Read", "tool_input": {"file_path": "/a" * 2000}},
    "folder": {"cwd": "/a" * 2000},
    "content": {"tool_name": "Write", "tool_input": {"file_path": "a", "content": "a/b " * 240_000}},
    "patch": {"tool_name": "Write", "tool_input": {"file_path": "*** Begin Patch\n" + "+a\n" * 200_000}},
    "result": {"hook_event_name": "PostToolUse", "tool_response": {"stdout": "a" * 980_000}},
}


@pytest.mark.parametrize("name", LARGE)
async def test_large_hook_request_does_not_block_other_requests(served: ServedApp, cwd: str, name: str) -> None:
    """A request must not block the event loop for 0.2 s, because the same event loop answers /healthz."""
    agent = served.client([Scope.PROPOSE], AGENT)
    await post(agent, bash(cwd, "git status", "c-1"))
    ticks = [time.thread_time()]

    async def tick() -> None:
        while True:
            await asyncio.sleep(0)
            ticks.append(time.thread_time())

    ticking = asyncio.create_task(tick())
    answered = await post(agent, bash(cwd, "git status", "c-2") | LARGE[name])
    ticking.cancel()
    assert max(after - before for before, after in itertools.pairwise(ticks)) < 0.2
    if name in ("words", "command", "paths", "deep"):
        reason = answered["hookSpecificOutput"]["permissionDecisionReason"]
        assert reason.startswith("the call cannot be decided: hook.limit_exceeded: ")


async def test_hook_of_an_unknown_client_is_denied(served: ServedApp, cwd: str) -> None:
    client = served.client([Scope.PROPOSE], AGENT)
    answered = await post(client, bash(cwd, "git status", "c-1"), "/v1/hooks/codex")
    assert answered == denied("the call cannot be decided: 'codex' has no HTTP hooks")


async def test_hook_is_denied_if_the_command_list_is_faulty(served: ServedApp, tmp_path: Path, cwd: str) -> None:
    (tmp_path / "project" / "commands.yaml").write_text("runs: git status\n", encoding="utf-8")
    answered = await post(served.client([Scope.PROPOSE], AGENT), bash(cwd, "git status", "c-1"))
    assert "commands.yaml" in answered["hookSpecificOutput"]["permissionDecisionReason"]


@pytest.mark.process
def test_claude_code_follows_the_answers_of_the_service(tmp_path: Path, tenant: dict[str, Any], cwd: str) -> None:
    store, tenant = tenant.pop("store"), {**tenant, "project": str(tenant["project"])}
    with running_service(tmp_path, url=store, tenant=tenant) as running:
        http = {
            "type": "http", "url": f"{running.url}/v1/hooks/claude-code",
            "headers": {"Authorization": "Bearer $PDP_HOOK_TOKEN"}, "allowedEnvVars": ["PDP_HOOK_TOKEN"],
        }  # fmt: skip
        events = ("PreToolUse", "PostToolUse", "PostToolUseFailure")
        settings = {"hooks": {event: [{"matcher": "*", "hooks": [http]}] for event in events}}
        token = running.token([Scope.PROPOSE], AGENT)
        turns = [[ToolUse("Bash", {"command": command})] for command in ("ls -a", "touch ran")]
        run = run_claude(tmp_path, Path(cwd), turns, settings=settings, environment={"PDP_HOOK_TOKEN": token})
        unknown = run_claude(tmp_path, Path(cwd), turns[:1], settings=settings, environment={"PDP_HOOK_TOKEN": "x"})
    assert run.results[0] == ToolResult(".\n..\n.git", is_error=False)
    error = "PreToolUse:Bash hook error: "
    assert run.results[1].text.startswith(
        f"{error}run_session_command: touch ran. An approval covers this session: touch <path>... waits"
    )
    assert unknown.results[0].text.startswith(f"{error}the call cannot be decided: the token is invalid")
    assert os.listdir(cwd) == [".git"]  # noqa: PTH208 - only names are needed
