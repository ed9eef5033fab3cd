"""What a client is answered, with the starter's files, a real engine and a real store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pdp.hooks.call import Behaviour, BuiltIn, HookAnswer, HookCall, Kind, Moment
from pdp.hooks.decide import answer
from pdp.hooks.home import HookPolicy, open_policy
from pdp.hooks.starter import starter_files


@pytest.fixture
def policy(tmp_path: Path) -> Iterator[HookPolicy]:
    home = tmp_path / "home"
    (home / "state").mkdir(parents=True)
    for name, content in starter_files("alice").items():
        (home / name).write_bytes(content)
    with ExitStack() as owned:
        yield open_policy(home, owned)


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / ".git").mkdir(parents=True)
    return folder


def shell(cwd: Path, command: str, call_id: str, **changes: Any) -> HookCall:
    built_in = BuiltIn(Kind.SHELL, ("command",))
    return HookCall(
        **{
            "client": "claude-code",
            "moment": Moment.BEFORE,
            "session_id": "s1",
            "call_id": call_id,
            "tool": "Bash",
            "arguments": {"command": command},
            "cwd": str(cwd),
            "built_in": built_in,
            **changes,
        }
    )


async def test_a_listed_command_goes_on(policy: HookPolicy, cwd: Path) -> None:
    assert await answer(shell(cwd, "git status", "c1"), policy) == HookAnswer(Behaviour.PASS)


async def test_another_command_is_held_with_what_to_do(policy: HookPolicy, cwd: Path) -> None:
    given = await answer(shell(cwd, "make", "c1"), policy)
    assert policy.pep.approvals is not None
    (approval,) = policy.pep.approvals.list()
    home = policy.home
    assert given == HookAnswer(
        Behaviour.DENY,
        f"run_command: make is held. Ask the person to run `PDP_PROJECT={home}/pdp.yaml pdp approvals grant"
        f" {approval.id} --session {home}/approver.yaml` in a terminal of their own, then make exactly the same call"
        " again.",
    )
