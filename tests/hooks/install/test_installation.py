"""Uninstalling a hook restores the client's settings file, even after crashes or other changes of the file."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdp.audit.file import replace_file
from pdp.errors import UsageError
from pdp.hooks.ask import STATE
from pdp.hooks.install.clients import CLIENTS, HookClient
from pdp.hooks.install.installation import apply, installation, installed_clients, removal

CLAUDE = CLIENTS["claude-code"]
OTHER = {"matcher": "Bash", "hooks": [{"type": "command", "command": "/usr/bin/log"}]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return _home(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "person/.claude/settings.json"


def _home(folder: Path) -> Path:
    (folder / "policy" / STATE / "installed").mkdir(parents=True)
    return folder / "policy"


def install(file: Path, home: Path, client: HookClient = CLAUDE) -> None:
    apply(installation(client, file, home), home)


def uninstall(file: Path, home: Path, client: HookClient = CLAUDE) -> str:
    change = removal(client, file, home)
    apply(change, home)
    return change.note


def put(file: Path, text: str) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return text


def records(home: Path) -> list[Path]:
    return list((home / STATE / "installed").iterdir())


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_hook_uninstall_removes_files_and_folders_that_the_installation_created(
    client: HookClient, tmp_path: Path, home: Path
) -> None:
    file = tmp_path / "person" / client.user
    install(file, home, client)
    entry = client.entry(home)
    demanded = {client.demands[0]: {client.demands[1]: True}} if client.demands else {}
    hooks = {event: [entry] for event in client.events}
    assert json.loads(file.read_text()) == {**client.also, **demanded, "hooks": hooks}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert installed_clients(home) == [client.name]
    assert uninstall(file, home, client) == "is restored to its original"
    assert not (tmp_path / "person").exists()
    assert records(home) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"hooks": {}}\n',
        '{"hooks": {"PreToolUse": []}}',
        '\ufeff{\r\n\t"model": "opus",\r\n\t"hooks": {"Stop": []}\r\n}\r\n',
        json.dumps(
            {"hooks": {"PreToolUse": [OTHER], "Stop": [OTHER]}, "env": {"é": "\u2028"}, "n": [1.0, 1e3]}, indent=4
        ),
    ],
    ids=["empty", "object", "no-hooks", "no-groups", "windows", "other-hooks"],
)
def test_hook_uninstall_restores_every_byte_of_the_settings_file(text: str, file: Path, home: Path) -> None:
    put(file, text)
    file.chmod(0o640)
    before = file.read_bytes(), file.stat().st_mode
    install(file, home)
    once = file.read_bytes()
    value = json.loads(once.decode("utf-8-sig"))
    assert value.pop("hooks")["PreToolUse"][-1] == CLAUDE.entry(home)
    assert value == {
        name: member for name, member in json.loads(text.lstrip("\ufeff") or "{}").items() if name != "hooks"
    }
    install(file, home)
    assert file.read_bytes() == once
    assert uninstall(file, home) == "is restored to its original"
    assert (file.read_bytes(), file.stat().st_mode) == before
    assert uninstall(file, home) == "has no pdp hook"


JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2), lambda inner: (
    st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["hooks", "command", "matcher"]), inner, max_size=3)
))  # fmt: skip
EVENTS = st.dictionaries(st.sampled_from(["PreToolUse", "Stop"]), st.lists(JSON, max_size=2), max_size=2)
SETTINGS = st.fixed_dictionaries({}, optional={"hooks": EVENTS, "model": JSON})


@settings(max_examples=25)
@given(value=SETTINGS, indent=st.sampled_from([None, 1, 4]))
def test_hook_uninstall_restores_arbitrary_settings_files(
    value: dict[str, Any], indent: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = _home(folder := tmp_path_factory.mktemp("any"))
    file = folder / "settings.json"
    text = put(file, json.dumps(value, indent=indent))
    install(file, home)
    installed = json.loads(file.read_text())
    assert uninstall(file, home) == "is restored to its original"
    assert file.read_text() == text
    install(file, home)
    put(file, json.dumps({**installed, "new": 1}))
    assert uninstall(file, home) == "was changed since the installation: only our entries are removed"
    left = {name: {event: groups for event, groups in member.items() if groups or event not in CLAUDE.events}
            if name == "hooks" else member for name, member in value.items()}  # fmt: skip
    got = json.loads(file.read_text())
    assert got.pop("new") == 1
    assert {**got, "hooks": {}} == {**left, "hooks": {}}
    assert {event: groups for event, groups in got.get("hooks", {}).items() if groups} == {
        event: groups for event, groups in value.get("hooks", {}).items() if groups
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"new": 1}),
        ({"advanced": {"ignoreLocalEnv": False, "a": 1}}, {"advanced": {"ignoreLocalEnv": False, "a": 1}, "new": 1}),
        ({"advanced": {"ignoreLocalEnv": True}}, {"advanced": {"ignoreLocalEnv": True}, "new": 1}),
    ],
)
def test_hook_installation_sets_a_required_setting_and_uninstall_restores_the_old_value(
    before: Any, after: Any, tmp_path: Path, home: Path
) -> None:
    file, client = tmp_path / "person/.gemini/settings.json", CLIENTS["gemini-cli"]
    text = put(file, json.dumps(before))
    for change in ({}, {"new": 1}):
        install(file, home, client)
        value = json.loads(file.read_text())
        assert value["advanced"]["ignoreLocalEnv"] is True
        if change:
            put(file, json.dumps({**value, **change}))
            install(file, home, client)
        assert uninstall(file, home, client) == "is restored to its original"
        assert json.loads(file.read_text()) == (after if change else json.loads(text))
    install(file, home, client)
    put(file, json.dumps({**json.loads(file.read_text()), "more": 1}))
    uninstall(file, home, client)
    assert json.loads(file.read_text()) == {**after, "more": 1}


@pytest.mark.parametrize("advanced", ["[]", "1", "null"])
def test_hook_installation_changes_no_settings_if_a_required_setting_cannot_be_set(
    advanced: str, tmp_path: Path, home: Path
) -> None:
    file = tmp_path / "person/.gemini/settings.json"
    text = put(file, f'{{"advanced": {advanced}}}')
    with pytest.raises(UsageError, match="advanced must be an object"):
        install(file, home, CLIENTS["gemini-cli"])
    assert file.read_text() == text


def test_hook_uninstall_keeps_settings_changed_after_the_installation(file: Path, home: Path) -> None:
    put(file, json.dumps({"hooks": {"PreToolUse": [OTHER]}}))
    install(file, home)
    value = json.loads(file.read_text())
    value["hooks"]["PreToolUse"][1]["hooks"].append(OTHER["hooks"][0])
    put(file, json.dumps({**value, "model": "opus"}, indent=2))
    change = removal(CLAUDE, file, home)
    shown = [line for line in change.lines() if line[0] in "+-" and "ask.py" in line]
    assert len(shown) == len(CLAUDE.events)
    apply(change, home)
    both = {"matcher": "*", "hooks": OTHER["hooks"]}
    assert json.loads(file.read_text()) == {"hooks": {"PreToolUse": [OTHER, both]}, "model": "opus"}
    assert records(home) == []


def test_uninstall_keeps_an_existing_empty_file(file: Path, home: Path) -> None:
    put(file, "{}")
    install(file, home)
    put(file, json.dumps(json.loads(file.read_text())))
    assert uninstall(file, home) == "was changed since the installation: only our entries are removed"
    assert file.read_text() == "{}\n"


def test_hook_uninstall_removes_a_reformatted_settings_file_that_contains_only_our_hooks(
    tmp_path: Path, home: Path
) -> None:
    file, client = tmp_path / "person/.cursor/hooks.json", CLIENTS["cursor"]
    install(file, home, client)
    put(file, json.dumps(json.loads(file.read_text())))
    uninstall(file, home, client)
    assert not (tmp_path / "person").exists()


def test_uninstall_keeps_settings_changed_between_two_hook_installations(file: Path, home: Path) -> None:
    put(file, '{"model":"opus"}')
    install(file, home)
    put(file, json.dumps({**json.loads(file.read_text()), "model": "sonnet"}, indent=2))
    install(file, home)
    assert uninstall(file, home) == "is restored to its original"
    assert file.read_text() == '{\n  "model": "sonnet"\n}\n'


def test_hook_installation_replaces_our_hook_of_an_older_release(file: Path, home: Path) -> None:
    put(file, '{"model":"opus"}')
    install(file, home)
    put(file, file.read_text().replace("-I -S", "-S"))
    install(file, home)
    assert json.loads(file.read_text())["hooks"] == {event: [CLAUDE.entry(home)] for event in CLAUDE.events}


def test_uninstall_without_an_installation_record_removes_only_our_hooks(file: Path, home: Path) -> None:
    put(file, '{"model":"opus"}')
    install(file, home)
    records(home)[0].unlink()
    assert uninstall(file, home) == "was changed since the installation: only our entries are removed"
    assert json.loads(file.read_text()) == {"model": "opus"}


def test_hook_installation_follows_and_shows_a_symbolic_link_of_the_user(
    file: Path, home: Path, tmp_path: Path
) -> None:
    target = tmp_path / "dotfiles/claude.json"
    text = put(target, '{"model":"opus"}')
    file.parent.mkdir(parents=True)
    file.symlink_to(target)
    change = installation(CLAUDE, file, home)
    assert next(iter(change.lines())) == f"{target} (behind the link {file}): gets the hook"
    apply(change, home)
    assert file.is_symlink()
    uninstall(file, home)
    assert (file.readlink(), target.read_text()) == (target, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('// mine\n{"model": "opus"}', "settings.json:1:1: not JSON"),
        ('{"model": "opus",}', "settings.json:1:1"),  # column 18, and 17 since Python 3.13
        ('{"hooks": {}, "hooks": {}}', "settings.json:1:15: "),
        ("[]", "expected a JSON object"),
        ('{"hooks": [1]}', "hooks must map events to lists"),
        ('{"hooks": {"PreToolUse": {}}}', "hooks must map events to lists"),
        ("\udcff", "UTF-8"),
    ],
    ids=["comment", "comma", "twice", "array", "hooks-array", "group", "bytes"],
)
def test_install_reports_a_settings_file_that_cannot_be_changed(text: str, said: str, file: Path, home: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError) as refused:
        install(file, home)
    assert said in str(refused.value)
    assert file.read_bytes() == text.encode(errors="surrogateescape")
    assert records(home) == []


def test_install_rejects_a_settings_path_that_is_not_a_regular_file(file: Path, home: Path) -> None:
    file.mkdir(parents=True)
    with pytest.raises(UsageError, match="is not a regular file"):
        install(file, home)
    file.rmdir()
    os.mkfifo(file)
    with pytest.raises(UsageError, match="is not a regular file"):
        install(file, home)
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(UsageError, match="is not a regular file"):
        install(file, home)


@pytest.mark.skipif(os.geteuid() != 0, reason="files of others are made by root alone")
def test_install_rejects_a_settings_file_of_another_user(file: Path, home: Path, tmp_path: Path) -> None:
    target = tmp_path / "theirs"
    put(target, "{}")
    file.parent.mkdir(parents=True)
    file.symlink_to(target)
    os.chown(target, 12345, 12345)
    with pytest.raises(UsageError, match="belongs to another user"):
        install(file, home)
    os.chown(target, 0, 0)
    os.chown(file, 12345, 12345, follow_symlinks=False)
    with pytest.raises(UsageError, match="belongs to another user"):
        install(file, home)
    assert target.read_text() == "{}"


def test_hook_installation_fails_if_the_settings_file_changes_before_confirmation(file: Path, home: Path) -> None:
    put(file, "{}")
    change = installation(CLAUDE, file, home)
    put(file, '{"model": "opus"}')
    with pytest.raises(UsageError, match="was changed in the meantime"):
        apply(change, home)
    assert (file.read_text(), records(home)) == ('{"model": "opus"}', [])


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """Simulate a crash at the n-th step: just before a disk change if n is odd, and just after a disk change if not."""
    changes = iter(range(1, 100))
    real: dict[str, Any] = {
        "replace_file": replace_file,
        "mkdir": Path.mkdir,
        "unlink": Path.unlink,
        "rmdir": Path.rmdir,
    }

    def stepping(name: str) -> Any:
        def changed(*arguments: Any, **named: Any) -> None:
            if next(changes) == step:
                raise KeyboardInterrupt
            real[name](*arguments, **named)
            if next(changes) == step:
                raise KeyboardInterrupt

        return changed

    with monkeypatch.context() as patched:
        patched.setattr("pdp.hooks.install.installation.replace_file", stepping("replace_file"))
        for name in ("mkdir", "unlink", "rmdir"):
            patched.setattr(Path, name, stepping(name))
        try:
            yield
        except KeyboardInterrupt:
            return


@pytest.mark.parametrize("before", [None, '{"model":"opus"}'], ids=["new", "there"])
@pytest.mark.parametrize("step", range(1, 13))
@pytest.mark.parametrize("first", ["install", "uninstall"])
@pytest.mark.parametrize("then", ["install", "uninstall"])
def test_install_and_uninstall_work_after_a_crash_at_any_point(
    before: str | None, step: int, first: str, then: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "person/.claude/settings.json"
    if before is not None:
        put(file, before)
    if first == "uninstall":
        install(file, home)
    with dying(monkeypatch, step):
        {"install": install, "uninstall": uninstall}[first](file, home)
    if then == "install":
        install(file, home)
        assert json.loads(file.read_text())["hooks"] == {event: [CLAUDE.entry(home)] for event in CLAUDE.events}
    uninstall(file, home)
    assert (file.read_text() if file.exists() else None) == before
    assert (tmp_path / "person").exists() == (before is not None)
    assert records(home) == []
