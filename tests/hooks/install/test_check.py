"""`pdp hook check` reports faults in the settings of a folder, and in the answers of the registered command."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdp.hooks.install.check import gaps
from pdp.hooks.install.clients import CLIENTS, HookClient
from tests.support.hooks.processes import Hooks, hooks_in

pytestmark = pytest.mark.process

CLAUDE = CLIENTS["claude-code"]
LOG = {"type": "command", "command": "/usr/bin/log"}
SETTINGS = ".claude/settings.json"


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hooks]:
    with hooks_in(tmp_path_factory.mktemp("hooks")) as hooks:
        yield hooks


@pytest.fixture(autouse=True)
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("person", "work/.git"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "person"


def put(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(value if isinstance(value, str) else json.dumps(value))


def registered(client: HookClient, home: Path) -> dict[str, Any]:
    demanded = {client.demands[0]: {client.demands[1]: True}} if client.demands else {}
    return {**client.also, **demanded, "hooks": {event: [client.entry(home)] for event in client.events}}


def found(client: HookClient, home: Path, *, calls: bool = False) -> list[str]:
    said = [f"{gap.place}: {gap.message}" for gap in gaps(client, home)]
    return [one for one in said if calls or not one.startswith("a call: ")]


@pytest.mark.parametrize("name", ["claude-code", "cursor", "gemini-cli", "copilot-cli"])
def test_hook_check_passes_after_installation(name: str, hooks: Hooks, person: Path) -> None:
    client = CLIENTS[name]
    put(person / client.user, registered(client, hooks.home))
    assert found(client, hooks.home, calls=True) == []


def test_hook_check_reports_missing_hooks(hooks: Hooks, person: Path) -> None:
    assert found(CLAUDE, hooks.home) == [
        f"{person}/{SETTINGS}: {event}: our hook is missing" for event in CLAUDE.events
    ]


GROUP = {"matcher": "*", "hooks": [LOG]}
OURS: dict[str, Any] = {}
"""A placeholder that the test replaces with the group of hooks that this package registers."""


@pytest.mark.parametrize(
    ("file", "laid_over", "said"),
    [
        pytest.param(SETTINGS, {"disableAllHooks": True}, "disableAllHooks turns hooks off", id="off"),
        pytest.param(f"work/{SETTINGS}", {"disableAllHooks": True}, "disableAllHooks turns hooks off", id="off-there"),
        pytest.param(
            "work/.claude/settings.local.json", {"disableAllHooks": "yes"},
            "disableAllHooks turns hooks off", id="off-local",
        ),
        pytest.param(
            f"work/{SETTINGS}", {"env": {"CLAUDE_CODE_SHELL_PREFIX": "/bin/true"}},
            "CLAUDE_CODE_SHELL_PREFIX replaces hooks, or turns them off", id="prefix",
        ),
        pytest.param(
            f"work/{SETTINGS}", {"hooks": {"PreToolUse": [GROUP]}},
            f"PreToolUse: another hook may change the call after ours: {json.dumps(GROUP)}", id="another",
        ),
        pytest.param(
            f"work/{SETTINGS}", {"hooks": {"PreToolUse": [{"type": "http"}]}},
            'PreToolUse: another hook may change the call after ours: {"type": "http"}', id="another-kind",
        ),
        pytest.param(f"work/{SETTINGS}", "// mine\n{}", "not JSON", id="comment"),
        pytest.param(f"work/{SETTINGS}", {"hooks": {"PreToolUse": 1}}, "not iterable", id="hooks-shape"),
        pytest.param(f"work/{SETTINGS}", {"env": []}, "no attribute", id="env-shape"),
    ],
)  # fmt: skip
def test_hook_check_reports_settings_that_disable_hooks(
    file: str, laid_over: Any, said: str, hooks: Hooks, person: Path
) -> None:
    put(person / SETTINGS, registered(CLAUDE, hooks.home))
    target = person.parent / file if file.startswith("work") else person / file
    base = registered(CLAUDE, hooks.home) if target == person / SETTINGS else {}
    put(target, laid_over if isinstance(laid_over, str) else {**base, **laid_over})
    (only,) = found(CLAUDE, hooks.home)
    assert only.startswith((f"{target}: ", "environment: "))
    assert said in only


def test_hook_check_ignores_other_hooks_that_run_only_after_a_call(hooks: Hooks, person: Path) -> None:
    put(person / SETTINGS, registered(CLAUDE, hooks.home))
    put(
        person.parent / "work" / SETTINGS,
        {"hooks": {"PostToolUse": [GROUP], "Stop": [GROUP]}, "disableAllHooks": False},
    )
    assert found(CLAUDE, hooks.home) == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"matcher": "bash"}, id="matcher"),
        pytest.param({"onfailure": "block"}, id="misspelt"),
        pytest.param({"async": True}, id="async"),
        pytest.param({"if": "Bash(ls)"}, id="if"),
        pytest.param({"timeout": 600}, id="timeout"),
        pytest.param({"command": "true || /usr/bin/python pdp/hooks/ask.py claude-code /x"}, id="command"),
    ],
)
def test_hook_check_reports_a_changed_hook(change: dict[str, Any], hooks: Hooks, person: Path) -> None:
    value = registered(CLAUDE, hooks.home)
    expected = CLAUDE.entry(hooks.home)
    (handler,) = expected["hooks"]
    changed = {**expected, **change} if "matcher" in change else {**expected, "hooks": [{**handler, **change}]}
    value["hooks"]["PreToolUse"] = [changed]
    put(person / SETTINGS, value)
    assert found(CLAUDE, hooks.home, calls=True) == [
        f"{person}/{SETTINGS}: PreToolUse: our hook is {json.dumps(changed)} instead of {json.dumps(expected)}",
        f"{person}/{SETTINGS}: PreToolUse: our hook is missing",
    ]


def test_hook_check_names_a_missing_program_as_the_cause_of_a_failing_hook(
    hooks: Hooks, person: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = person.parent / "bin/claude"
    put(program, "#!/bin/sh\necho 2.1.330\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    put(person / SETTINGS, registered(CLAUDE, hooks.home))
    assert found(CLAUDE, hooks.home) == []
    program.unlink()
    differing = [text for text in found(CLAUDE, hooks.home) if "our hook is {" in text]
    cause = "; `onFailure` depends on the version of claude, which is unknown (is it on PATH?)"
    assert [text.endswith(cause) for text in differing] == [True] * len(CLAUDE.events)


def test_hook_check_reports_a_misspelt_event_name(hooks: Hooks, person: Path) -> None:
    value = registered(CLAUDE, hooks.home)
    value["hooks"]["PretoolUse"] = value["hooks"].pop("PreToolUse")
    put(person / SETTINGS, value)
    assert found(CLAUDE, hooks.home) == [
        f"{person}/{SETTINGS}: PretoolUse: claude-code has no such event",
        f"{person}/{SETTINGS}: PreToolUse: our hook is missing",
    ]


def test_hook_check_reads_managed_settings_of_the_client(hooks: Hooks, person: Path) -> None:
    managed = person.parent / "etc/managed.json"
    put(person / SETTINGS, registered(CLAUDE, hooks.home))
    put(managed, {"allowManagedHooksOnly": True})
    client = replace(CLAUDE, others=(f"{managed.parent}/*.json",))
    assert found(client, hooks.home) == [
        f"{managed}: agents can write to this file",
        f"{managed}: allowManagedHooksOnly turns hooks off",
    ]


def test_hook_check_reports_settings_files_that_agents_can_write(
    hooks: Hooks, person: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(person.parent / "work/settings"))
    file = CLAUDE.path("user")
    assert file == person.parent / "work/settings/settings.json"
    put(file, registered(CLAUDE, hooks.home))
    assert found(CLAUDE, hooks.home) == [f"{file}: agents can write to this file"]


@pytest.mark.parametrize("variable", ["CLAUDE_CODE_SHELL_PREFIX", "CLAUDE_CODE_SIMPLE"])
def test_check_reports_variables_that_disable_hooks(
    variable: str, hooks: Hooks, person: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    put(person / SETTINGS, registered(CLAUDE, hooks.home))
    assert found(CLAUDE, hooks.home) == [f"environment: {variable} replaces hooks, or turns them off"]


@pytest.mark.parametrize(
    ("file", "env", "found_there"),
    [
        (f"work/{SETTINGS}", {"BASH_ENV": "/x"}, "BASH_ENV"),
        (f"work/{SETTINGS}", {"LD_PRELOAD": "/x.so"}, "LD_PRELOAD"),
        (f"work/{SETTINGS}", {"OPENSSL_CONF": "/x.cnf"}, "OPENSSL_CONF"),
        ("work/.claude/settings.local.json", {"GIT_EXTERNAL_DIFF": "x"}, "GIT_EXTERNAL_DIFF"),
        (f"work/{SETTINGS}", {"BASH_FUNC_echo%%": "() { exit 0; }"}, "BASH_FUNC_echo%%"),
        (f"work/{SETTINGS}", {"PATH": "/x:/bin"}, "PATH"),
        (f"work/{SETTINGS}", {"FOO": "./x.sh"}, None),
        (f"person/{SETTINGS}", {"PATH": "/x:/bin", "PYTHONUNBUFFERED": "1", "GIT_PAGER": "cat"}, None),
        (f"person/{SETTINGS}", {"BASH_ENV": "./x.sh"}, "BASH_ENV"),
        (f"person/{SETTINGS}", {"GIT_EXEC_PATH": "/bin:WORK/bin"}, "GIT_EXEC_PATH"),
    ],
)
def test_check_reports_variables_that_start_other_code(
    file: str, env: dict[str, str], found_there: str | None, hooks: Hooks, person: Path
) -> None:
    work = str(person.parent / "work")
    put(person / SETTINGS, registered(CLAUDE, hooks.home))
    target = person.parent / file
    base = registered(CLAUDE, hooks.home) if target == person / SETTINGS else {}
    put(target, {**base, "env": {name: value.replace("WORK", work) for name, value in env.items()}})
    gap = f"{target}: {found_there} can run other code in every hook"
    assert found(CLAUDE, hooks.home) == [gap] * bool(found_there)


def test_hook_check_runs_no_code_of_the_workspace(hooks: Hooks, person: Path) -> None:
    """With this variable, the dynamic loader lists the libraries of a program but does not run the program."""
    variable, file = "LD_TRACE_LOADED_OBJECTS", person.parent / "work" / SETTINGS
    put(person / SETTINGS, registered(CLAUDE, hooks.home))
    put(file, {"env": {variable: "1"}})
    assert found(CLAUDE, hooks.home, calls=True) == [f"{file}: {variable} can run other code in every hook"]


def test_check_reports_environment_variables_with_paths_in_the_workspace(
    hooks: Hooks, person: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(person / SETTINGS, registered(CLAUDE, hooks.home))
    monkeypatch.setenv("BASH_ENV", "/usr/share/lmod/init")
    assert found(CLAUDE, hooks.home) == []
    monkeypatch.setenv("BASH_ENV", str(person.parent / "work/x.sh"))
    assert found(CLAUDE, hooks.home) == ["environment: BASH_ENV can run other code in every hook"]


@pytest.mark.parametrize(
    ("user", "work", "place"),
    [
        ({}, None, "person"),
        ({"ignoreLocalEnv": False}, None, "person"),
        ({"ignoreLocalEnv": "true"}, None, "person"),
        ({"ignoreLocalEnv": True}, {"ignoreLocalEnv": False}, "work"),
        ({"ignoreLocalEnv": True}, {"ignoreLocalEnv": True}, None),
    ],
)
def test_hook_check_requires_gemini_cli_to_ignore_local_env_files(
    user: dict[str, Any], work: dict[str, Any] | None, place: str | None, hooks: Hooks, person: Path
) -> None:
    client = CLIENTS["gemini-cli"]
    put(person / client.user, {**registered(client, hooks.home), "advanced": user})
    if work is not None:
        put(person.parent / "work" / client.project, {"advanced": work})
    said = [one for one in found(client, hooks.home) if "ignoreLocalEnv is not true: `.env` can stop every hook" in one]
    assert {one.partition(": ")[0] for one in said} == (
        {str(person.parent / place / client.project)} if place else set()
    )


def test_check_reports_env_files_that_gemini_cli_loads_anyway(hooks: Hooks, person: Path) -> None:
    client = CLIENTS["gemini-cli"]
    put(person / client.user, registered(client, hooks.home))
    put(person / ".gemini/.env", "A=1\n")
    assert found(client, hooks.home) == []
    put(person.parent / "work/.gemini/.env", "A=1\n")
    assert found(client, hooks.home) == [
        f"{person.parent}/work/.gemini/.env: the client loads this file despite the settings"
    ]


@pytest.mark.parametrize(("version", "holds"), [("0.61.0", True), ("0.42.0", True), ("0.41.9", False)])
def test_check_reports_a_gemini_cli_that_is_too_old(
    version: str, holds: bool, hooks: Hooks, person: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, program = CLIENTS["gemini-cli"], person.parent / "bin/gemini"
    put(program, f"#!/bin/sh\necho {version}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    put(person / client.user, registered(client, hooks.home))
    said = found(client, hooks.home)
    assert (said == []) is holds
    assert all("may not know advanced.ignoreLocalEnv" in one for one in said)


def test_hook_check_reports_a_repository_rule_that_can_match_nothing(hooks: Hooks, person: Path) -> None:
    put(person / SETTINGS, registered(CLAUDE, hooks.home))
    put(person.parent / "work/.pdp-hook.yaml", "deny: ['mcp__github__*']\n")
    (only,) = found(CLAUDE, hooks.home, calls=True)
    assert (
        f"{person.parent}/work/.pdp-hook.yaml:1:8: `deny[0]` matches nothing, because the manifest has no such" in only
    )


@pytest.mark.parametrize("switch", [{"enabled": False}, {"disabled": ["x"]}])
def test_check_reports_hooks_that_gemini_cli_disables(switch: dict[str, Any], hooks: Hooks, person: Path) -> None:
    client = CLIENTS["gemini-cli"]
    put(person / client.user, {**registered(client, hooks.home), "hooksConfig": switch})
    assert found(client, hooks.home) == [f"{person}/{client.user}: hooksConfig turns hooks off"]


def test_check_reports_hooks_that_codex_does_not_trust(hooks: Hooks, person: Path) -> None:
    client = CLIENTS["codex"]
    put(person / client.user, registered(client, hooks.home))
    assert found(client, hooks.home) == [
        f"{person}/{client.user}: {event}: Codex does not trust this hook, or the hook is off"
        for event in client.events
    ]


def test_hook_check_determines_from_a_digest_whether_codex_trusts_a_hook() -> None:
    """The expected digest is the `currentHash` that Codex 0.169.0 shows for this group of hooks."""
    from pdp.hooks.install.check import _is_trusted

    group = {"matcher": "*", "hooks": [{"type": "command", "command": "/bin/sh -c 'x' é", "timeout": 10}]}
    client, digest = CLIENTS["codex"], "sha256:dc2a6e1d7cb8c2a8f2d39248802ba3d0d44c13d0e90f99c3ac529e028bd5908e"
    config = client.path("user").with_name("config.toml")
    put(config, f'[hooks.state."/x/hooks.json:pre_tool_use:0:0"]\ntrusted_hash = "{digest}"\n')
    assert _is_trusted(client, "/x/hooks.json", "PreToolUse", 0, group)
    assert not _is_trusted(client, "/x/hooks.json", "PreToolUse", 1, group)
    assert not _is_trusted(client, "/x/hooks.json", "PreToolUse", 0, {**group, "matcher": "Bash"})
    trusted = config.read_text()
    for off in (
        f"{trusted}enabled = false\n",
        *(f"[features]\n{name} = false\n{trusted}" for name in ("hooks", "codex_hooks")),
    ):
        put(config, off)
        assert not _is_trusted(client, "/x/hooks.json", "PreToolUse", 0, group)


LINES = {
    "nothing-said": "exit 0",
    "other-code": "echo no >&2; exit 1",
    "no-reason": "exit 2",
    "killed": "kill -9 $$",
    "plain": "echo denied",
    "top-level": """echo '{"permissionDecision": "deny"}'""",
    "missing": "/nowhere/python ask.py",
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_hook_check_reports_a_hook_command_that_lets_a_denied_call_pass(line: str, hooks: Hooks, person: Path) -> None:
    class Leaking(HookClient):
        def line(self, home: Path) -> str:
            return f"{line} # pdp/hooks/ask.py claude-code {home}"

    client = Leaking("claude-code", SETTINGS, SETTINGS)
    put(person / SETTINGS, registered(client, hooks.home))
    last = found(client, hooks.home, calls=True)[-1]
    assert last.startswith("a call: PreToolUse: `pdp hook uninstall claude-code` is not denied: (")


def test_hook_check_reports_a_policy_that_denies_everything(hooks: Hooks, person: Path) -> None:
    put(person / SETTINGS, registered(CLAUDE, hooks.home))
    put(person.parent / "work/.pdp-hook.yaml", "deny: [run_listed_command]\n")
    (only,) = found(CLAUDE, hooks.home, calls=True)
    assert only.startswith("a call: PreToolUse: `pwd` is not allowed: ")
