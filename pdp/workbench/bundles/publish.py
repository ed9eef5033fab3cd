"""Publish bundles in a repository: a folder that any web server can serve. Each change is audited.

    releases/N.tar.gz      release number N; the file never changes
    channels/NAME.tar.gz   the current release of the channel NAME: engines and OPAs load this file
    history.jsonl          who changed which channel, when and why; engines and OPAs do not read it

A change takes effect when the channel's file is replaced, which is atomic. If a command is killed before the file is
replaced, run the command again. A rollback publishes the old content under the next release number, because engines and
enforcement points reject a lower number. The revision is that of the old release, as it is a digest of the content.
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
from pdp.workbench.bundles.sign import SIGNING_VARIABLE, SigningKey, sign_bundle

PATIENCE: Final = 30.0
"""The maximum number of seconds that a change waits for another change to end."""

_HISTORY: Final = "history.jsonl"
_LOCK: Final = ".lock"
_MAX_TEXT: Final = 1000
_CHANNEL: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_RESTORE: Final = "restore the file from a copy of the repository"

Number = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
Sha256 = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class RepositoryError(PdpError):
    """The repository could not be changed, so the channel still has its previous release."""

    code = "bundle.repository_failed"


class ChannelChange(BaseModel):
    """A publication or rollback in a channel, with the digest of the bundle file. A rollback `restores` a release."""

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
    """Check that a result file of `pdp release check --result` is for this bundle and says that the bundle passed."""
    document = read_document(file)
    try:
        result = _GateResult.model_validate(document.value)
    except ValidationError as error:
        raise FileFaultsError(faults_of(error, document, _GateResult)) from error
    check = "run `pdp release check` for this bundle, with --result"
    if (result.revision, result.release) != (bundle.revision, bundle.release):
        raise UsageError(
            f"{file}: the result is for release {result.release} (revision {result.revision}), not for this bundle, "
            f"release {bundle.release} (revision {bundle.revision})",
            hint=check,
        )
    if not result.passed:
        raise UsageError(
            f"{file}: release {result.release} failed the gate", hint=f"fix the failed checks, then {check}"
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
    """Publish a bundle's file as the current release of a channel. Publishing the current release changes nothing.

    A missing or empty folder becomes a repository. `audit` gets an event before the change, and an event after it. One
    of `keys` must have signed the bundle; None accepts an unsigned bundle. Raises `AuditError` if the first event
    cannot be written, and `RepositoryError` if the repository cannot be changed; the channel is then unchanged.
    """
    _check_texts(channel, by=by, why=why)
    bundle = read_bundle(packed, keys=keys)
    with _locked(folder, begin=True):
        changes = [change for change in history(folder) if change.channel == channel]
        current = changes[-1] if changes else None
        _check_number(folder, bundle, current)
        if current is not None and current.digest == bundle.digest:
            # The channel's file may differ if an earlier command was killed before its last step.
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
    """Publish older content of a channel again under the next release number, as the current release of the channel.

    The content is that of release `to`, or by default the content that the channel had before its current content. If
    the old release is signed, `signing_key` is required, and one of `keys` (by default `signing_key`) must have signed
    the old release. Otherwise a person who can write into the repository could have their own content signed. Raises
    `AuditError` and `RepositoryError` as `publish_bundle` does.
    """
    _check_texts(channel, by=by, why=why)
    with _locked(folder):
        changes = [change for change in history(folder) if change.channel == channel]
        if not changes:
            raise UsageError(f"{folder}: the channel {channel} has no release", hint="run: pdp bundle publish")
        old = _target(changes, to)
        file = _release_file(folder, old.release)
        packed = read_packed(file)
        if digest(packed) != old.digest:
            raise BundleError(f"{file}: differs from the file that was published", hint=_RESTORE)
        trusted = (signing_key.public,) if signing_key is not None and keys is None else keys
        before = read_bundle(packed, keys=None if signing_key is None else trusted)
        if signing_key is None and before.signature is not None:
            raise UsageError(
                f"release {old.release} is signed, so the rollback must be signed as well",
                hint=f"pass --private-key, or set {SIGNING_VARIABLE}",
            )
        packed = pack_bundle(release=next_release(folder), wasm=before.wasm, data=before.data, modules=before.modules)
        if signing_key is not None:
            packed = sign_bundle(packed, signing_key)
        bundle = read_bundle(packed)
        change = _change("rollback", bundle, restores=old.release, channel=channel, by=by, why=why)
        _commit(folder, change, packed, audit=audit)
    return change


def history(folder: Path) -> list[ChannelChange]:
    """Return the changes of all channels in the order in which they were made; timestamps do not affect the order."""
    path = folder / _HISTORY
    changes: list[ChannelChange] = []
    try:
        changes.extend(map(ChannelChange.model_validate_json, path.read_bytes().splitlines()))
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise UsageError(f"{folder}: not a bundle repository", hint="pass the folder of a repository") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", hint=_RESTORE) from error
    except ValidationError as error:
        raise UsageError(f"{path}:{len(changes) + 1}: not a valid entry of the history", hint=_RESTORE) from error
    return changes


def next_release(folder: Path) -> int:
    """Return the next release number, which is higher than the number of every release in the repository."""
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
            f"release {bundle.release} is already published with other content or another signature",
            hint=f"build the bundle with --release {next_release(folder)}",
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
            raise UsageError(f"the channel {current.channel} has no release {to}", hint="run: pdp bundle list")
        if by_release[to].revision == current.revision:
            raise UsageError(f"the channel {current.channel} already has the content of release {to}")
        return by_release[to]
    # The search starts at the release that first had the current content, so that a second rollback goes further back.
    first = current
    while first.restores in by_release:
        first = by_release[first.restores]
    older = [change for change in changes if change.release < first.release and change.revision != current.revision]
    if not older:
        raise UsageError(
            f"the channel {current.channel} has no older content to roll back to", hint="run: pdp bundle list"
        )
    return max(older, key=lambda change: change.release)


def _commit(folder: Path, change: ChannelChange, packed: bytes, *, audit: AuditLog) -> None:
    # An event before the change ensures that no change is unrecorded, and an event after the change records its
    # outcome.
    _record(audit, change, outcome="unknown")
    outcome = "failed"
    try:
        # If the file already exists, `_check_number` has checked that it has the content of this release.
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
            f"{folder}: cannot be changed: {error.strerror}; the channel is unchanged",
            hint="check the disk space and the folder's permissions, then run the same command again",
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
    """Lock the repository for a change. Other changes wait for the lock; readers do not need the lock."""
    try:
        if begin:
            folder.mkdir(exist_ok=True)
            if not any(path.name != _LOCK for path in folder.iterdir()):
                (folder / "releases").mkdir()
        if not (folder / "releases").is_dir():
            raise UsageError(
                f"{folder}: not a bundle repository",
                hint="it has no folder `releases`; pass a repository, or a new or empty folder",
            )
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be used: {error.strerror}", hint="pass a writable folder") from error
    try:
        locked(lock, time.monotonic() + PATIENCE)
        # Remove temporary files that a killed command left behind.
        for draft in folder.glob("**/.*"):
            if draft.name != _LOCK:
                draft.unlink(missing_ok=True)
        yield
    except BlockingIOError:
        raise RepositoryError(
            f"{folder}: locked by another change for more than {PATIENCE:g} s", hint="try again later"
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
        raise UsageError(f"channel: {channel!r:.80} is not a valid name", hint="use small letters, digits, `-` and `_`")
    for name, text in texts.items():
        if not text.strip() or len(text) > _MAX_TEXT or not all(letter.isprintable() for letter in text):
            raise UsageError(f"{name}: must be one line of text", hint=f"use 1 to {_MAX_TEXT} printable characters")
