"""Check that a client's hook works in a folder: read the settings that apply there, and make test calls."""

import glob
import hashlib
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, NamedTuple
from uuid import uuid4

from pdp.errors import UsageError
from pdp.hooks.call import Behaviour, HookAnswer, Kind, Moment, Output
from pdp.hooks.dialects import DIALECTS
from pdp.hooks.install.clients import HOOKS, HookClient
from pdp.hooks.install.installation import read_configuration, without_ours
from pdp.hooks.workspace import Region, Workspace

SWITCHES: Final = ("disableAllHooks", "allowManagedHooksOnly", "strictPluginOnlyCustomization")
_VARIABLES: Final = ("CLAUDE_CODE_SHELL_PREFIX", "CLAUDE_CODE_SIMPLE", "CLAUDE_CODE_PERSONAL_HOOKS_OFF")
_DENIED, _ALLOWED = "pdp hook uninstall claude-code", "pwd"
_DENY, _WHY = 2, "REASON"
# Environment variables that make a shell, a loader, an interpreter, git or a client run other code.
_STARTING: Final = re.compile(
    r"(BASH_|LD_|DYLD_|PYTHON|GIT_).*|ENV|SHELLOPTS|BASHOPTS|PS4|ZDOTDIR|PATH|SHELL|CLAUDE_CODE_SHELL|GCONV_PATH"
    r"|(NODE|BUN)_OPTIONS|OPENSSL_(CONF|MODULES|ENGINES)|PAGER"
)
_OWN: Final = "environment"
_AGAIN: Final = "run `pdp hook install` again"


class Gap(NamedTuple):
    """A fault in a client's settings that lets calls pass, or stops all calls: its place, the problem and a hint."""

    client: str
    place: str
    message: str
    hint: str


def settings_files(client: HookClient) -> list[str]:
    """Return the files of a client's settings that apply in the working folder, sorted."""
    files = (str(client.path("user")), str(client.path("project")), *client.others)
    return sorted({name for file in files for name in glob.glob(str(Path.cwd() / file))})  # noqa: PTH207 - absolute


def gaps(client: HookClient, home: Path) -> Iterator[Gap]:  # noqa: C901, PLR0912 - each file is read once
    """Yield every fault in the settings for the working folder. If there is none, the hook works."""
    gap, expected, workspace = partial(Gap, client.name), client.entry(home), Workspace(str(Path.cwd()), home)
    envs, missing, stated = {_OWN: dict(os.environ)}, set(client.events), dict[str, Any]()
    user = str(client.path("user"))
    for name in settings_files(client):
        if os.access(name, os.W_OK) and workspace.region(name, writes=True) is not Region.GUARD:
            yield gap(name, "agents can write to this file", "use the client's usual folder")
        try:
            path, _, value = read_configuration(Path(name))
            envs[name] = {key: str(member) for key, member in value.get("env", {}).items()}
            if client.demands is not None:
                stated[name] = value.get(client.demands[0], {}).get(client.demands[1])
            entries = [(event, *item) for event, items in value.get(HOOKS, {}).items() for item in enumerate(items)]
            config = value.get("hooksConfig", {})  # Only Gemini CLI has this setting.
            is_off = config.get("enabled", True) is not True or bool(config.get("disabled"))
        except (UsageError, AttributeError, TypeError) as error:
            yield gap(name, f"{error}", "correct the file: the client may ignore all of it")
            continue
        for switch in [*(each for each in SWITCHES if value.get(each, False) is not False), *["hooksConfig"] * is_off]:
            yield gap(name, f"{switch} turns hooks off", "remove it")
        for event, index, entry in entries:
            shown = json.dumps(entry)
            if event in client.events and entry == expected:
                missing.discard(event)
                if client.name == "codex" and not _is_trusted(client, f"{path}", event, index, entry):
                    yield gap(
                        name,
                        f"{event}: Codex does not trust this hook, or the hook is off",
                        "type /hooks in Codex, and trust the hook",
                    )
            elif without_ours(entry, client) != entry:
                message, hint = _difference(client, entry, expected, home)
                yield gap(name, f"{event}: {message}", hint)
            elif client.events.get(event) in (Moment.BEFORE, Moment.PERMISSION):
                yield gap(name, f"{event}: another hook may change the call after ours: {shown}", "remove it")
    variables = dict(os.environ)
    for place, name in ((place, name) for place, env in envs.items() for name in env):
        if name in _VARIABLES:
            yield gap(place, f"{name} replaces hooks, or turns them off", "remove it")
        if not _STARTING.fullmatch(name):
            # Other variables of settings are not passed to the probes, because they could run code of the workspace.
            variables[name] = envs[place][name]
        elif place not in (_OWN, user) or (name != "PATH" and _is_within(envs[place][name], workspace)):
            yield gap(place, f"{name} can run other code in every hook", "remove it")
    yield from (gap(*each) for each in _unmet(client, stated))
    for event in filter(missing.__contains__, client.events):
        yield gap(user, f"{event}: our hook is missing", _AGAIN)
    if (first := next(iter(client.events))) not in missing:
        yield from (gap("a call", *said) for said in _probes(client, first, client.line(home), variables))


def _difference(client: HookClient, entry: Any, expected: Any, home: Path) -> tuple[str, str]:
    blocks = client.blocks
    if entry == expected:
        return f"{client.name} has no such event", _AGAIN
    message = f"our hook is {json.dumps(entry)} instead of {json.dumps(expected)}"
    if blocks is None or entry not in (client.entry(home, ()), client.entry(home, blocks[2])):
        return message, _AGAIN
    version = ".".join(map(str, client.version())) or "unknown (is it on PATH?)"
    message += f"; `{blocks[0]}` depends on the version of {client.program}, which is {version}"
    return message, f"put {client.program} on PATH as at the installation, or {_AGAIN}"


def _unmet(client: HookClient, stated: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the reasons why the setting `client.demands` has no effect. `stated` has the setting's values."""
    if client.demands is None:
        return
    group, member, since = client.demands
    places = {name for name, each in stated.items() if each not in (None, True)}
    for place in sorted(places) or [str(client.path("user"))] * (True not in stated.values()):
        yield place, f"{group}.{member} is not true: `.env` can stop every hook", _AGAIN
    if () != (version := client.version()) < since:
        yield client.name, f"version {'.'.join(map(str, version))} may not know {group}.{member}", "update the client"
    for folder in {Path.cwd(), *Path.cwd().parents} - {Path.home()}:
        if (file := (folder / client.project).with_name(".env")).exists():
            yield str(file), "the client loads this file despite the settings", "move the settings to your home folder"


def _is_within(value: str, workspace: Workspace) -> bool:
    """Return whether a variable's value contains a path in the workspace. Paths are separated by colons."""
    places = (Path(os.path.realpath(each)) for each in value.split(":") if "/" in each or os.path.lexists(each))
    return any(workspace.root in (place, *place.parents) for place in places)


def _is_trusted(client: HookClient, path: str, event: str, index: int, entry: Mapping[str, Any]) -> bool:
    """Return whether Codex 0.169.0 runs a hook: hooks are enabled, and the user has trusted the hook's digest."""
    label = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in event)[1:]
    group = {**entry, "event_name": label, HOOKS: [{"async": False, "timeout": 600, **entry[HOOKS][0]}]}
    text = json.dumps(group, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        config = tomllib.loads(client.path("user").with_name("config.toml").read_text("utf-8"))
        state = dict(config[HOOKS]["state"][f"{path}:{label}:{index}:0"])
        features = {"hooks": True, "codex_hooks": True, **config.get("features", {})}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    is_on = features["hooks"] is features["codex_hooks"] is state.get("enabled", True) is True
    return is_on and state.get("trusted_hash") == digest


def _probes(client: HookClient, event: str, line: str, variables: dict[str, str]) -> Iterator[tuple[str, str]]:
    dialect = DIALECTS[client.name]
    tool, argument = next((tool, of.arguments[0]) for tool, of in dialect.built_in.items() if of.kind is Kind.SHELL)

    def ended(command: str) -> Output:
        ids = dict.fromkeys((dialect.session, "tool_use_id"), f"pdp-check-{uuid4()}")
        call = {"tool_name": tool, "tool_input": {argument: command}, "hook_event_name": event, "cwd": str(Path.cwd())}
        # The hook reads the working folder of Codex from the transcript.
        with NamedTemporaryFile("w", suffix=".jsonl") as transcript:
            print(json.dumps({"payload": {"cwd": str(Path.cwd())}}), file=transcript, flush=True)
            done = subprocess.run(  # noqa: S602 - clients use a shell, too
                line, shell=True, capture_output=True, text=True, check=False, env=variables,
                input=json.dumps({**ids, **call, "transcript_path": transcript.name}),
            )  # fmt: skip
        return Output(done.returncode, done.stdout, done.stderr.strip())

    allowed = dialect.write(HookAnswer(Behaviour.PASS), Moment.BEFORE)
    if (answer := ended(_ALLOWED))[:2] != allowed[:2]:
        yield f"{event}: `{_ALLOWED}` is not allowed: {answer.stderr or answer.stdout or answer}", "correct the cause"
    denied, (code, out, said) = dialect.write(HookAnswer(Behaviour.DENY, _WHY), Moment.BEFORE), ended(_DENIED)
    pattern = re.escape(denied.stdout).replace(_WHY, ".+")
    # If the hook program gives no answer, it exits with 2 for every client.
    if not ((code == _DENY and said) or (out and code == denied.exit_code and re.fullmatch(pattern, out))):
        yield (
            f"{event}: `{_DENIED}` is not denied: {(code, out, said)}",
            "do not use the client until this call is denied",
        )
