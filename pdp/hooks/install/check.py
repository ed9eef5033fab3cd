"""Whether a client's hook holds in a folder: by the settings that count there, and by calls through its own line."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pdp.errors import UsageError
from pdp.hooks.call import Behaviour, HookAnswer, Kind, Moment
from pdp.hooks.dialects import DIALECTS
from pdp.hooks.install.clients import HOOKS
from pdp.hooks.install.installation import read_configuration, without_ours
from pdp.hooks.workspace import Region, Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.hooks.install.clients import HookClient

_SWITCHES: Final = ("disableAllHooks", "allowManagedHooksOnly", "strictPluginOnlyCustomization")
_VARIABLES: Final = ("CLAUDE_CODE_SHELL_PREFIX", "CLAUDE_CODE_SIMPLE", "CLAUDE_CODE_PERSONAL_HOOKS_OFF")
_DENIED, _ALLOWED = "pdp hook uninstall claude-code", "pwd"
_DENY: Final = 2
_WHY: Final = "REASON"
_AGAIN: Final = "run `pdp hook install` again"


class Gap(NamedTuple):
    """What lets calls pass, or stops every one: where, what, and what to do."""

    client: str
    place: str
    message: str
    hint: str


def gaps(client: HookClient, home: Path) -> Iterator[Gap]:  # noqa: C901 - each file once, all that it can say
    """Look for what lets calls pass in the working folder; nothing found: the hook holds."""
    expected, workspace = client.entry(home), Workspace(str(Path.cwd()), home)
    variables, missing = dict(os.environ), set(client.events)
    for name in _files(client):
        if os.access(name, os.W_OK) and workspace.region(name, writes=True) is not Region.GUARD:
            yield Gap(client.name, name, "agents may write to it", "use the client's usual folder")
        try:
            path, _, value = read_configuration(Path(name))
            variables |= {key: str(member) for key, member in value.get("env", {}).items()}
            entries = [(event, *item) for event, items in value.get(HOOKS, {}).items() for item in enumerate(items)]
            gemini = {"enabled": True, "disabled": [], **value.get("hooksConfig", {})}
        except (UsageError, AttributeError, TypeError) as error:
            yield Gap(client.name, name, f"{error}", "mend it: the client may drop the whole file")
            continue
        switches = [switch for switch in _SWITCHES if value.get(switch, False) is not False]
        switches += ["hooksConfig"] * (gemini["enabled"] is not True or gemini["disabled"] != [])
        yield from (Gap(client.name, name, f"{switch} turns hooks off", "take it out") for switch in switches)
        for event, index, entry in entries:
            is_as_installed = event in client.events and entry == expected
            if is_as_installed:
                missing.discard(event)
            if is_as_installed and client.name == "codex" and not _is_trusted(client, f"{path}", event, index, entry):
                yield Gap(client.name, name, f"{event}: Codex runs it when you trust it", "in codex, type /hooks")
            elif not is_as_installed and without_ours(entry, client) != entry:
                yield Gap(client.name, name, f"{event}: {json.dumps(entry)} is not {json.dumps(expected)}", _AGAIN)
            elif not is_as_installed and client.events.get(event, Moment.AFTER) is not Moment.AFTER:
                message = f"{event}: another hook may change what ours has seen: {json.dumps(entry)}"
                yield Gap(client.name, name, message, "take it out")
    for variable in sorted(variables.keys() & _VARIABLES):
        yield Gap(client.name, "environment", f"{variable} replaces hooks, or turns them off", "take it out")
    for event in client.events:
        if event in missing:
            yield Gap(client.name, str(client.path("user")), f"{event}: has not our hook", _AGAIN)
        elif event == next(iter(client.events)):
            yield from _probes(client, event, client.line(home), variables)


def _files(client: HookClient) -> list[str]:
    patterns = (str(client.path("user")), str(client.path("project")), *client.others)
    return sorted({name for one in patterns for name in glob.glob(str(Path.cwd() / one))})  # noqa: PTH207 - absolute


def _is_trusted(client: HookClient, path: str, event: str, index: int, entry: Mapping[str, Any]) -> bool:
    """Whether Codex runs a hook: its person has looked at it, which is noted by a digest [as run: 0.169.0]."""
    label = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in event)[1:]
    group = {**entry, "event_name": label, HOOKS: [{**entry[HOOKS][0], "async": False}]}
    text = json.dumps(group, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        config = tomllib.loads(client.path("user").with_name("config.toml").read_text("utf-8"))
        state = config[HOOKS]["state"][f"{path}:{label}:{index}:0"]
        digest = state["trusted_hash"].removeprefix("sha256:")
        return digest == hashlib.sha256(text.encode()).hexdigest() and state.get("enabled") is not False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _probes(client: HookClient, event: str, line: str, variables: Mapping[str, str]) -> Iterator[Gap]:
    dialect = DIALECTS[client.name]
    tools = dialect.built_in.items()
    allowed, denied = (
        dialect.write(HookAnswer(each, _WHY), Moment.BEFORE) for each in (Behaviour.PASS, Behaviour.DENY)
    )
    pattern = re.escape(denied.stdout).replace(_WHY, ".+")
    tool, argument = next((tool, of.arguments[0]) for tool, of in tools if of.kind is Kind.SHELL)
    ids = dict.fromkeys((dialect.session, "tool_use_id"), f"pdp-check-{os.getpid()}")
    # The first ones are denied by a resident process that only starts, which takes longer on a busy machine.
    for command in (_DENIED, _DENIED, _DENIED, _ALLOWED, _DENIED):
        call = {"tool_name": tool, "tool_input": {argument: command}}
        try:
            ended = subprocess.run(  # noqa: S602 - a shell, as the client does
                line, shell=True, capture_output=True, text=True, timeout=20, check=False, env=dict(variables),
                input=json.dumps({**call, **ids, "hook_event_name": event, "cwd": str(Path.cwd())}),
            )  # fmt: skip
            code, said, out = ended.returncode, ended.stderr.strip(), ended.stdout
        except subprocess.TimeoutExpired:
            code, said, out = 1, "no answer in time", ""
        shown = f"{event}: `{command}` ends with {code}: {said}{out}"
        # A program that gets no answer ends with 2, whatever the client.
        is_denied = (code == _DENY and said) or (out and code == denied.exit_code and re.fullmatch(pattern, out))
        if command == _DENIED and not is_denied:
            yield Gap(client.name, "a call", f"{shown}: is not denied", "do not use the client before it is")
            return
        if command == _ALLOWED and (code, out) != (allowed.exit_code, allowed.stdout):
            yield Gap(client.name, "a call", f"{shown}: is not allowed", "do what it says")
