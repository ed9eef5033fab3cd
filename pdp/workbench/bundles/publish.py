"""Releasing bundles into a repository, which is a folder that any web server can serve. Each change is audited.

    releases/N.tar.gz      each release by its number, never changed
    channels/NAME.tar.gz   the channel's current release: what engines and OPAs follow
    history.jsonl          who changed which channel, when and why; whoever follows a channel reads none of it

A change happens when the channel's file is replaced, at once or not at all. Whoever is killed before that leaves the
channel as it was; the same command once more completes it.

A rollback is a release like any other. Engines and enforcement points refuse to go back to a lower release number, and
rightly: so the old content is released anew, under the next number. Its revision, which names the content, stays.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pdp.audit.chain import AuditLog, recordable
from pdp.audit.file import locked, replace_file
from pdp.clock import to_milliseconds, to_seconds
from pdp.documents import faults_of, read_document
from pdp.engine.bundle.file import Bundle, pack_bundle, read_bundle, read_packed
from pdp.engine.bundle.signature import VerificationKey
from pdp.errors import BundleError, FileFaultsError, PdpError, UsageError
from pdp.json import MAX_NUMBER, canonical, digest
from pdp.workbench.bundles.sign import SigningKey, sign_bundle

PATIENCE: Final = 30.0
"""How long a change waits for another one to end, in seconds."""

_HISTORY: Final = "history.jsonl"
_LOCK: Final = ".lock"
_MAX_TEXT: Final = 1000
_CHANNEL: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_RESTORE: Final = "restore the file from a copy of the repository"

Number = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
Sha256 = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class RepositoryError(PdpError):
    """The repository could not be changed. The channel is as it was before."""

    code = "bundle.repository_failed"


class ChannelChange(BaseModel):
    """One change of a channel.

    Attributes:
        time: as the clock of whoever changed it said, RFC 3339.
        revision: of the content of the bundle that it decides by since; digest: of that bundle's file.
        restores: of a rollback, the release whose content came back.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    time: str
    action: Literal["publish", "rollback"]
    channel: str
    release: Number
    revision: Sha256
    digest: Sha256
    restores: Number | None
    by: str
    why: str


class _GateResult(BaseModel, extra="ignore", frozen=True, strict=True):
    passed: bool
    revision: Sha256
    release: Number


def check_gate(file: Path, bundle: Bundle) -> None:
    """Check a result of the gate: what `pdp release check --result` wrote. A signature may be added after it.

    FileFaultsError: no such result. UsageError: the gate failed, or was about another bundle.
    """
    document = read_document(file)
    try:
        result = _GateResult.model_validate(document.value)
    except ValidationError as error:
        raise FileFaultsError(faults_of(error, document, _GateResult)) from error
    again = "run `pdp release check` for this bundle, with --result"
    if (result.revision, result.release) != (bundle.revision, bundle.release):
        raise UsageError(
            f"{file}: about release {result.release} with the content {result.revision}, not about this bundle, "
            f"release {bundle.release} with the content {bundle.revision}",
            hint=again,
        )
    if not result.passed:
        raise UsageError(
            f"{file}: release {result.release} must not be released", hint=f"mend what failed, and {again}"
        )


def publish_bundle(
    folder: Path,
    packed: bytes,
    *,
    channel: str,
    by: str,
    why: str,
    audit: AuditLog,
    keys: Sequence[VerificationKey] | None,
) -> ChannelChange:
    """Publish a bundle's file and make it the channel's current one. Once more the same changes nothing.

    A repository is begun where there is none. `audit` gets an event before the change and one after it. One of `keys`
    must have signed the bundle; None: it may be unsigned.

    Raises:
        UsageError: a text that cannot be used, or a folder that is not a repository.
        BundleError: a bundle that must not be used, or is not newer than what was published.
        AuditError: it cannot be audited; nothing has changed.
        RepositoryError: it cannot be written; the channel is as it was before.
    """
    _check_texts(channel, by=by, why=why)
    bundle = read_bundle(packed, keys=keys)
    with _locked(folder, begin=True):
        changes = [change for change in history(folder) if change.channel == channel]
        current = changes[-1] if changes else None
        _check_number(folder, bundle, current)
        if current is not None and current.digest == bundle.digest:
            # Else whoever made the change was killed before its last step.
            if _digest_of(_channel_file(folder, channel)) != bundle.digest:
                _commit(folder, current, packed, audit=audit)
            return current
        change = _change("publish", bundle, channel=channel, by=by, why=why)
        _commit(folder, change, packed, audit=audit)
    return change


def roll_back(
    folder: Path,
    *,
    channel: str,
    by: str,
    why: str,
    audit: AuditLog,
    to: int | None = None,
    signing_key: SigningKey | None = None,
    keys: Sequence[VerificationKey] | None = None,
) -> ChannelChange:
    """Release an older content of a channel anew, under the next release number, and make it the current one.

    The content of release `to` comes back, or what the channel had before its current content. The signing key is
    needed where the old release was signed, and that by one of `keys`, or by the signing key if these are None: whoever
    can write into the repository must not have a content of theirs signed. `audit` is as of `publish_bundle`.

    Raises:
        UsageError: a text that cannot be used, no such release, or no key.
        BundleError: the old bundle is damaged, of another version of this program, or not signed with one of `keys`.
        AuditError, RepositoryError: as of `publish_bundle`.
    """
    _check_texts(channel, by=by, why=why)
    with _locked(folder):
        changes = [change for change in history(folder) if change.channel == channel]
        if not changes:
            raise UsageError(f"{folder}: nothing was published in the channel {channel}", hint="publish there first")
        old = _target(changes, to)
        file = _release_file(folder, old.release)
        packed = read_packed(file)
        if digest(packed) != old.digest:
            raise BundleError(f"{file}: not the file that was published", hint=_RESTORE)
        trusted = (signing_key.public,) if signing_key is not None and keys is None else keys
        before = read_bundle(packed, keys=None if signing_key is None else trusted)
        if signing_key is None and before.signature is not None:
            raise UsageError(
                f"release {old.release} is signed, so its content has to be signed anew under the next number",
                hint="name a private key",
            )
        packed = pack_bundle(release=next_release(folder), wasm=before.wasm, data=before.data, modules=before.modules)
        if signing_key is not None:
            packed = sign_bundle(packed, signing_key)
        bundle = read_bundle(packed)
        change = _change("rollback", bundle, restores=old.release, channel=channel, by=by, why=why)
        _commit(folder, change, packed, audit=audit)
    return change


def history(folder: Path) -> list[ChannelChange]:
    """Return the changes of all channels, in their order, whatever clocks said.

    UsageError: no folder; or the file of the history is damaged or cannot be read.
    """
    path = folder / _HISTORY
    changes: list[ChannelChange] = []
    try:
        changes.extend(map(ChannelChange.model_validate_json, path.read_bytes().splitlines()))
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise UsageError(f"{folder}: not a bundle repository", hint="name a repository's folder") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", hint=_RESTORE) from error
    except ValidationError as error:
        raise UsageError(f"{path}:{len(changes) + 1}: not a change of a channel", hint=_RESTORE) from error
    return changes


def next_release(folder: Path) -> int:
    """Return the number that no release of the repository has yet, nor any after it."""
    numbers = (path.name.removesuffix(".tar.gz") for path in folder.glob("releases/*.tar.gz"))
    return max((int(number) for number in numbers if number.isdecimal()), default=0) + 1


def _change(
    action: Literal["publish", "rollback"], bundle: Bundle, *, restores: int | None = None, **texts: str
) -> ChannelChange:
    return ChannelChange(
        time=to_seconds(time.time()),
        action=action,
        release=bundle.release,
        revision=bundle.revision,
        digest=bundle.digest,
        restores=restores,
        **texts,
    )


def _check_number(folder: Path, bundle: Bundle, current: ChannelChange | None) -> None:
    taken = _digest_of(_release_file(folder, bundle.release))
    if taken is not None and taken != bundle.digest:
        raise BundleError(
            f"release {bundle.release} was published already, with another content or signature: releases never change",
            hint=f"build it with --release {next_release(folder)}",
        )
    if current is not None and bundle.release < current.release:
        raise BundleError(
            f"release {bundle.release} is older than release {current.release} in the channel {current.channel}",
            hint="to go back, run: pdp bundle rollback",
        )


def _target(changes: Sequence[ChannelChange], to: int | None) -> ChannelChange:
    current, by_release = changes[-1], {change.release: change for change in changes}
    if to is not None:
        if to not in by_release:
            raise UsageError(f"the channel {current.channel} never had a release {to}", hint="see: pdp bundle list")
        if by_release[to].revision == current.revision:
            raise UsageError(f"the channel {current.channel} has the content of release {to} already")
        return by_release[to]
    # Where the current content first stood: a second rollback goes on from there, not back to what the first left.
    first = current
    while first.restores in by_release:
        first = by_release[first.restores]
    older = [change for change in changes if change.release < first.release and change.revision != current.revision]
    if not older:
        raise UsageError(
            f"the channel {current.channel} had no other content before this one", hint="there is nothing to go back to"
        )
    return max(older, key=lambda change: change.release)


def _commit(folder: Path, change: ChannelChange, packed: bytes, *, audit: AuditLog) -> None:
    # Before, so that no change goes unrecorded; and after, so that one which failed shows as such.
    _record(audit, change, outcome="unknown")
    outcome = "failed"
    try:
        # A release never changes: `_check_number` has seen that it is this file, where it is there already.
        if not _release_file(folder, change.release).exists():
            replace_file(_release_file(folder, change.release), packed)
        changes = history(folder)
        if change not in changes:
            lines = b"".join(entry.model_dump_json().encode() + b"\n" for entry in [*changes, change])
            replace_file(folder / _HISTORY, lines)
        (folder / "channels").mkdir(exist_ok=True)
        replace_file(_channel_file(folder, change.channel), packed)
        outcome = "succeeded"
    except OSError as error:
        raise RepositoryError(
            f"{folder}: cannot be changed: {error.strerror}; the channel is as it was before",
            hint="check the disk's space and the folder's permissions, and run the same again",
        ) from error
    finally:
        _record(audit, change, outcome=outcome)


def _record(audit: AuditLog, change: ChannelChange, *, outcome: str) -> None:
    audit.append(
        {
            "time": to_milliseconds(time.time()),
            "type": f"bundle.{change.action}",
            "subject": recordable(change.by),
            "arguments_digest": audit.digest(canonical(change.model_dump())),
            "bundle_revision": change.revision,
            "outcome": outcome,
        }
    )


@contextmanager
def _locked(folder: Path, *, begin: bool = False) -> Iterator[None]:
    """Hold the repository for a change. Others who want to change it wait; those who follow a channel do not."""
    try:
        if begin:
            folder.mkdir(exist_ok=True)
            if not any(path.name != _LOCK for path in folder.iterdir()):
                (folder / "releases").mkdir()
        if not (folder / "releases").is_dir():
            raise UsageError(
                f"{folder}: not a bundle repository",
                hint="it has no folder releases; name one, or a new or empty folder",
            )
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be used: {error.strerror}", hint="name a folder of yours") from error
    try:
        locked(lock, time.monotonic() + PATIENCE)
        # What a change that was killed left behind.
        for draft in folder.glob("**/.*"):
            if draft.name != _LOCK:
                draft.unlink(missing_ok=True)
        yield
    except BlockingIOError:
        raise RepositoryError(
            f"{folder}: somebody else has been changing it for {PATIENCE:g} s", hint="try again later"
        ) from None
    finally:
        os.close(lock)


def _release_file(folder: Path, release: int) -> Path:
    return folder / "releases" / f"{release}.tar.gz"


def _channel_file(folder: Path, channel: str) -> Path:
    return folder / "channels" / f"{channel}.tar.gz"


def _digest_of(path: Path) -> str | None:
    try:
        return digest(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", hint=_RESTORE) from error


def _check_texts(channel: str, **texts: str) -> None:
    if not _CHANNEL.fullmatch(channel):
        raise UsageError(f"channel: {channel!r:.80} is not a name", hint="small letters, digits, `-` and `_`")
    for name, text in texts.items():
        if not text.strip() or len(text) > _MAX_TEXT or not all(letter.isprintable() for letter in text):
            raise UsageError(
                f"{name}: not a line of text", hint=f"1 to {_MAX_TEXT} printable characters; it stands in the history"
            )
