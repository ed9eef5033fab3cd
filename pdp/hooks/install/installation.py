"""Install and uninstall the hook: plan the change of a client's file, store the original, then make the change."""

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


class _InstallRecord(NamedTuple):
    """A changed file: original content in Latin-1 (None: no file), digest of the new content, and created folders."""

    client: str
    original: str | None
    written: str
    made: list[str]


class SettingsChange(NamedTuple):
    """The planned change of a file. `path` is `file` with links resolved; `after` is None if the file is removed."""

    file: Path
    path: Path
    before: bytes | None
    after: bytes | None
    note: str
    record: _InstallRecord | None = None

    def lines(self) -> Iterator[str]:
        """Yield the lines of a report: the note, then a unified diff if the content changes."""
        yield f"{self.path}{f' (behind the link {self.file})' * (self.path != self.file)}: {self.note}"
        before, after = ((content or b"").decode(errors="replace").splitlines() for content in self[2:4])
        yield from unified_diff(before, after, str(self.path), str(self.path), lineterm="")


def make_home(home: Path) -> None:
    """Create HOME with the files of the starter and a store. Existing files are kept.

    Raise `UsageError` if other users can use the folder, or its files are not a valid policy.
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
    """Return a file's path with links resolved, its bytes (None if it does not exist), and its JSON object.

    Raise `UsageError` if the file is not plain JSON, or, with `own`, if another user owns the file or a link to it.
    """
    path = Path(os.path.realpath(file))
    if own and any(place.lstat().st_uid != os.geteuid() for place in (file, path) if os.path.lexists(place)):
        raise UsageError(f"{file}: belongs to another user", hint="ask its owner")
    if not os.path.lexists(path):
        return path, None, {}
    if not path.is_file():
        raise UsageError(f"{file}: is not a regular file", hint="move it away")
    content = read_bytes(path)
    # A file with comments is not JSON: Claude Code and Codex ignore it, and rewriting the file of Gemini CLI would lose
    # the comments.
    if content.strip() and not isinstance(read_document(file, text=content).value, dict):
        raise UsageError(f"{file}: expected a JSON object", hint="correct it, or move it away")
    return path, content, json.loads(decode(content, str(file)).strip() or "{}")


def installation(client: HookClient, file: Path, home: Path) -> SettingsChange:
    """Plan the change that makes a client ask the policy in `home`. Raise `UsageError` if this is impossible."""
    path, content, value = read_configuration(file, own=True)
    hooks = without_ours(value.get(HOOKS), client) or {}
    if not isinstance(hooks, dict) or not all(isinstance(hooks.get(event, []), list) for event in client.events):
        raise UsageError(
            f"{file}: {HOOKS} must map events to lists", hint="correct the file: the client ignores this setting"
        )
    entry = client.entry(home)
    added = {event: [*hooks.get(event, []), entry] for event in client.events}
    changed = _demanding({**client.also, **value, HOOKS: {**hooks, **added}}, client, stated=True)
    after = content if changed == value else _rendered(changed)
    record = _stored_record(_record_file(home, path))
    bare = _without_hook(value, client, record)
    original = content if bare == value else _rendered(bare)
    made = [str(folder) for folder in path.parents if not folder.exists()]
    stored = None if original is None else original.decode("latin-1")
    if record is not None and (record.written == _digest(content) or record.original == stored):
        stored, made = record.original, made + record.made
    note = "has the hook" if after == content else "gets the hook"
    return SettingsChange(file, path, content, after, note, _InstallRecord(client.name, stored, _digest(after), made))


def removal(client: HookClient, file: Path, home: Path) -> SettingsChange:
    """Plan the change that undoes an installation. Raise `UsageError` if the file cannot be changed."""
    path, content, value = read_configuration(file, own=True)
    record = _stored_record(_record_file(home, path))
    bare = _without_hook(value, client, record)
    if record is not None and record.written == _digest(content):
        original = None if record.original is None else record.original.encode("latin-1")
        return SettingsChange(file, path, content, original, "is restored to its original")
    if bare == value:
        return SettingsChange(file, path, content, content, "has no pdp hook")
    is_ours_alone = record is not None and record.original is None and bare in ({}, client.also)
    note = "was changed since the installation: only our entries are removed"
    return SettingsChange(file, path, content, None if is_ours_alone else _rendered(bare), note)


def apply(change: SettingsChange, home: Path) -> None:
    """Make a planned change. Raise `UsageError` if the file changed after planning, `OSError` if it is not writable."""
    path, place = change.path, _record_file(home, change.path)
    if (path.read_bytes() if path.exists() else None) != change.before:
        raise UsageError(f"{path}: was changed in the meantime", hint="run the command again")
    if change.record is not None:
        replace_file(place, json.dumps(change.record._asdict()).encode(), mode=0o600)
        path.parent.mkdir(parents=True, exist_ok=True)
    if change.after is None:
        path.unlink(missing_ok=True)
    elif change.after != change.before:
        replace_file(path, change.after, mode=stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600)
    if change.record is None and (record := _stored_record(place)) is not None:
        for folder in record.made:
            with suppress(OSError):  # The folder cannot be removed if it contains other files.
                Path(folder).rmdir()
        place.unlink()


def installed_clients(home: Path) -> list[str]:
    """Return the names of the clients that have the hook, from the stored records."""
    records = map(_stored_record, (home / STATE / _RECORDS).glob("*.json"))
    return sorted({record.client for record in records if record})


def without_ours(value: Any, client: HookClient) -> Any:
    """Return a part of the hooks without the hook of `pdp` and groups that are then empty; None if nothing is left."""
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


def _without_hook(value: dict[str, Any], client: HookClient, record: _InstallRecord | None) -> dict[str, Any]:
    rest = without_ours(value.get(HOOKS), client)
    bare = {**value, HOOKS: rest} if rest is not None else {name: value[name] for name in value if name != HOOKS}
    if client.demands is None or record is None:
        return bare
    was = json.loads((record.original or "").encode("latin-1").strip() or b"{}")
    return _demanding(bare, client, stated=was.get(client.demands[0], {}).get(client.demands[1]))


def _demanding(value: dict[str, Any], client: HookClient, *, stated: Any) -> dict[str, Any]:
    """Return settings with the field `client.demands` set to `stated`, or without the field if `stated` is None."""
    if client.demands is None:
        return value
    group, member, _ = client.demands
    if not isinstance(value.get(group, {}), dict):
        raise UsageError(f"{group} must be an object", hint="correct the file: the client ignores this setting")
    inner = {name: each for name, each in {**value.get(group, {}), member: stated}.items() if each is not None}
    return {**value, group: inner} if inner else {name: value[name] for name in value if name != group}


def _rendered(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _digest(content: bytes | None) -> str:
    return hashlib.sha256(content or b"").hexdigest()


def _record_file(home: Path, path: Path) -> Path:
    return home / STATE / _RECORDS / f"{_digest(os.fsencode(path))}.json"


def _stored_record(place: Path) -> _InstallRecord | None:
    return _InstallRecord(**read_document(place).value) if place.exists() else None
