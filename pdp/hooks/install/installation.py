"""Install and uninstall: what would become of a client's file, then the change.

What was there is stored before it is changed, so that either works again after a crash anywhere between.
"""

import getpass
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final, NamedTuple

from pdp.audit.file import replace_file
from pdp.documents import decode, read_bytes, read_document
from pdp.errors import UsageError
from pdp.hooks.ask import STATE, NoAnswerError, open_folder
from pdp.hooks.home import open_policy
from pdp.hooks.install.clients import HOOKS, HookClient
from pdp.hooks.starter import starter_files

_RECORDS: Final = "installed"


class _Record(NamedTuple):
    """What is stored of a file: what it was (in Latin-1; None: not there), a digest of what it became, new folders."""

    client: str
    original: str | None
    written: str
    made: list[str]


class SettingsChange(NamedTuple):
    """What is to become of a file, `path` behind any link; None: no file. `record`: of an installation."""

    file: Path
    path: Path
    before: bytes | None
    after: bytes | None
    note: str
    record: _Record | None = None

    def lines(self) -> Iterator[str]:
        """Return the note, and a unified diff where something changes."""
        yield f"{self.path}{f' (behind the link {self.file})' * (self.path != self.file)}: {self.note}"
        before, after = ((content or b"").decode(errors="replace").splitlines() for content in self[2:4])
        yield from unified_diff(before, after, str(self.path), str(self.path), lineterm="")


def make_home(home: Path) -> None:
    """Make the folder of the policy from the starter, with its store. What is there is not overwritten.

    UsageError: it is not the user's alone, or what is in it cannot decide.
    """
    for folder in (home, home / STATE, home / STATE / _RECORDS):
        folder.mkdir(mode=0o700, parents=folder == home, exist_ok=True)
        try:
            os.close(open_folder(str(folder)))
        except NoAnswerError as error:
            raise UsageError(str(error)) from None
    for name, content in starter_files(getpass.getuser()).items():
        if not os.path.lexists(home / name):
            replace_file(home / name, content, mode=0o600)
    with ExitStack() as owned:
        open_policy(home, owned)


def read_configuration(file: Path, *, own: bool = False) -> tuple[Path, bytes | None, dict[str, Any]]:
    """Return a file's path behind any link, its bytes (None where there is none), and the JSON object that it is.

    UsageError: it is no plain file, not readable, not JSON without comments; or with `own`, it or a link is another's.
    """
    path = Path(os.path.realpath(file))
    if own and any(place.lstat().st_uid != os.geteuid() for place in (file, path) if os.path.lexists(place)):
        raise UsageError(f"{file}: belongs to another user", hint="ask its owner")
    if not os.path.lexists(path):
        return path, None, {}
    if not path.is_file():
        raise UsageError(f"{file}: is not a plain file", hint="move it away")
    content = read_bytes(path)
    # With a comment in it, Claude Code and Codex drop the whole file, and of Gemini CLI's it would be lost.
    if content.strip() and not isinstance(read_document(file, text=content).value, dict):
        raise UsageError(f"{file}: expected a JSON object", hint="mend it, or move it away")
    return path, content, json.loads(decode(content, str(file)).strip() or "{}")


def installation(client: HookClient, file: Path, home: Path) -> SettingsChange:
    """Return what makes a client ask the policy of `home`. UsageError: the file cannot be changed."""
    path, content, value = read_configuration(file, own=True)
    hooks = without_ours(value.get(HOOKS), client) or {}
    if not isinstance(hooks, dict) or not all(isinstance(hooks.get(event, []), list) for event in client.events):
        raise UsageError(f"{file}: {HOOKS} must have lists by event", hint="mend it: the client drops it as it is")
    entry = client.entry(home)
    added = {event: [*hooks.get(event, []), entry] for event in client.events}
    changed = _demanding({**client.also, **value, HOOKS: {**hooks, **added}}, client, stated=True)
    after = content if changed == value else _rendered(changed)
    record = _recorded(_place(home, path))
    bare = _bare(value, client, record)
    original = content if bare == value else _rendered(bare)
    made = [str(folder) for folder in path.parents if not folder.exists()]
    stored = None if original is None else original.decode("latin-1")
    if record is not None and (record.written == _digest(content) or record.original == stored):
        stored, made = record.original, made + record.made
    note = "has the hook" if after == content else "gets the hook"
    return SettingsChange(file, path, content, after, note, _Record(client.name, stored, _digest(after), made))


def removal(client: HookClient, file: Path, home: Path) -> SettingsChange:
    """Return what undoes an installation. UsageError: the file was changed since, and cannot be changed now."""
    path, content, value = read_configuration(file, own=True)
    record = _recorded(_place(home, path))
    bare = _bare(value, client, record)
    if record is not None and record.written == _digest(content):
        original = None if record.original is None else record.original.encode("latin-1")
        return SettingsChange(file, path, content, original, "becomes what it was")
    if bare == value:
        return SettingsChange(file, path, content, content, "has no hook of ours")
    is_ours_alone = record is not None and record.original is None and bare in ({}, client.also)
    note = "was changed since it got the hook: our own entries alone go"
    return SettingsChange(file, path, content, None if is_ours_alone else _rendered(bare), note)


def apply(change: SettingsChange, home: Path) -> None:
    """Make a change. UsageError: the file is no longer as it was shown. OSError: it cannot be written."""
    path, place = change.path, _place(home, change.path)
    if (path.read_bytes() if path.exists() else None) != change.before:
        raise UsageError(f"{path}: was changed in the meantime", hint="run the command again")
    if change.record is not None:
        replace_file(place, json.dumps(change.record._asdict()).encode(), mode=0o600)
        path.parent.mkdir(parents=True, exist_ok=True)
    if change.after is None:
        path.unlink(missing_ok=True)
    elif change.after != change.before:
        replace_file(path, change.after, mode=stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600)
    if change.record is None and (record := _recorded(place)) is not None:
        for folder in record.made:
            with suppress(OSError):  # somebody else's file is in it
                Path(folder).rmdir()
        place.unlink()


def installed_clients(home: Path) -> list[str]:
    """Return the names of the clients that have the hook by what is stored."""
    records = map(_recorded, (home / STATE / _RECORDS).glob("*.json"))
    return sorted({record.client for record in records if record})


def without_ours(value: Any, client: HookClient) -> Any:
    """Return hooks, or a part of them, without our own and what held nothing else; None: nothing is left."""
    if isinstance(value, list):
        left: Any = [rest for member in value if (rest := without_ours(member, client)) is not None or member is None]
    elif isinstance(value, dict):
        rests = {name: without_ours(member, client) for name, member in value.items()}
        left = {name: rest for name, rest in rests.items() if rest is not None or value[name] is None}
        if client.is_ours(value) or (HOOKS in value and HOOKS not in left):
            return None
    else:
        return value
    return left if left or not value else None


def _bare(value: dict[str, Any], client: HookClient, record: _Record | None) -> dict[str, Any]:
    rest = without_ours(value.get(HOOKS), client)
    bare = {**value, HOOKS: rest} if rest is not None else {name: value[name] for name in value if name != HOOKS}
    if client.demands is None or record is None:
        return bare
    was = json.loads((record.original or "").encode("latin-1").strip() or b"{}")
    return _demanding(bare, client, stated=was.get(client.demands[0], {}).get(client.demands[1]))


def _demanding(value: dict[str, Any], client: HookClient, *, stated: Any) -> dict[str, Any]:
    """Return settings with the member that the client must have as stated; None: without it."""
    if client.demands is None:
        return value
    group, member, _ = client.demands
    if not isinstance(value.get(group, {}), dict):
        raise UsageError(f"{group} must be an object", hint="mend it: the client drops it as it is")
    inner = {name: each for name, each in {**value.get(group, {}), member: stated}.items() if each is not None}
    return {**value, group: inner} if inner else {name: value[name] for name in value if name != group}


def _rendered(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _digest(content: bytes | None) -> str:
    return hashlib.sha256(content or b"").hexdigest()


def _place(home: Path, path: Path) -> Path:
    return home / STATE / _RECORDS / f"{_digest(os.fsencode(path))}.json"


def _recorded(place: Path) -> _Record | None:
    return _Record(**read_document(place).value) if place.exists() else None
