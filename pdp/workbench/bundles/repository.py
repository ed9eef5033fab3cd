"""A bundle repository as a folder that is written: one change at a time, whole or not at all.

`pdp.engine.bundle.repository_index` has the layout. A change writes the bundle under its digest, then replaces the
index, then the channel's copy for OPA. Who is killed in between leaves the old state or
the new one; the next change puts the copies right and sweeps up what was left lying about.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pdp.engine.bundle.file import MAX_BUNDLE
from pdp.engine.bundle.repository_index import CHANNELS, INDEX, MAX_INDEX, Index, parse_index
from pdp.errors import BundleError, PdpError, UsageError
from pdp.json import digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdp.engine.bundle.repository_index import Published

PATIENCE: Final = 30.0
"""How long a change waits for another one to end, in seconds."""

_LOCK: Final = ".lock"
_DRAFT: Final = ".draft-"
_PAUSE: Final = 0.05


class RepositoryError(PdpError):
    """The repository could not be changed. It is as it was before."""

    code = "bundle.repository_failed"


class Repository:
    """A repository, locked for a change. `changing` makes one.

    Attributes:
        folder: where it is.
        index: as it is now.
    """

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder = folder
        self.index = index

    def read(self, published: Published) -> bytes:
        """Return the file of a bundle.

        Raises:
            BundleError: it is not there, or not the one that the index pins.
        """
        path = self.folder / published.path
        try:
            with path.open("rb") as file:
                content = file.read(MAX_BUNDLE + 1)
        except OSError as error:
            raise BundleError(f"{path}: cannot be read: {error.strerror}", hint=_RESTORE) from error
        if digest(content) != published.digest:
            raise BundleError(f"{path}: not the file that the index names", hint=_RESTORE)
        return content

    def commit(self, index: Index, published: Published, content: bytes) -> None:
        """Add a bundle and replace the index, all of it or nothing.

        Raises:
            RepositoryError: it cannot be written, as when the disk is full; nothing has changed.
            BundleError: another file stands in its place; nothing has changed.
        """
        packed = index.to_bytes()
        if len(packed) > MAX_INDEX:
            raise RepositoryError(f"{self.folder}: the index would be larger than {MAX_INDEX} bytes", hint=_NEW)
        try:
            if not (self.folder / published.path).exists():
                _replace(self.folder / published.path, content)
            # Read back from where it will be served: what is there already never changes, and must be whole.
            self.read(published)
            # What nobody could read again must not be written either.
            parse_index(packed, str(self.folder / INDEX))
            _replace(self.folder / INDEX, packed)
        except OSError as error:
            raise RepositoryError(
                f"{self.folder}: cannot be changed: {error.strerror}; it is as it was before",
                hint="check the disk's space, and the permissions of the folder",
            ) from error
        self.index = index
        # The change has happened. Where this fails, the next change makes up for it, and says so now.
        self.copy_channels()

    def copy_channels(self) -> None:
        """Make each channel's copy for OPA that of its current bundle.

        Raises:
            RepositoryError: a copy cannot be written; the index stands nevertheless.
            BundleError: a current bundle is lost or damaged.
        """
        for channel in CHANNELS:
            current = self.index.current(channel)
            if current is None:
                continue
            path = self.folder / "channels" / f"{channel}.tar.gz"
            try:
                if _digest_of(path) != current.digest:
                    _replace(path, self.read(current))
            except OSError as error:
                raise RepositoryError(
                    f"{path}: cannot be written: {error.strerror}; OPA gets the release before from there",
                    hint="make room, and publish the same bundle once more: that puts the copy right",
                ) from error


_RESTORE: Final = "restore the file from a copy of the repository, or publish a new release"
_NEW: Final = "begin a new repository, and keep this one for its history"


@contextmanager
def changing(folder: Path, *, make: bool = False, patience: float = PATIENCE) -> Iterator[Repository]:
    """Hold the repository for a change. Others who want to change it wait; those who read it do not.

    Args:
        folder: the repository.
        make: begin one where there is none; the folder itself may be missing, the one above it not.
        patience: how long to wait for another change, in seconds.

    Raises:
        UsageError: no repository, or a folder that cannot be used as one.
        BundleError: its index is damaged.
        RepositoryError: another change does not end.
    """
    try:
        if make and not folder.exists():
            folder.mkdir()
        if not (folder / INDEX).exists() and (not make or any(_strangers(folder))):
            raise UsageError(
                f"{folder}: not a bundle repository", hint=f"it has no {INDEX}; name one, or a new or empty folder"
            )
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be used: {error.strerror}", hint="name a folder of yours") from error
    try:
        _wait(lock, folder, patience)
        repository = Repository(folder, _index(folder))
        _sweep(folder)
        # A bundle that is lost must not keep the next release from being published.
        with suppress(BundleError):
            repository.copy_channels()
        yield repository
    finally:
        os.close(lock)


def _strangers(folder: Path) -> Iterator[Path]:
    """What stands in a folder and is not left over from a first publish that was broken off."""
    ours = {_LOCK, "bundles", "channels"}
    return (path for path in folder.iterdir() if path.name not in ours and not path.name.startswith(_DRAFT))


def _wait(lock: int, folder: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise RepositoryError(
                    f"{folder}: somebody else has been changing it for {patience:g} s", hint="try again later"
                ) from None
            time.sleep(_PAUSE)
        else:
            return


def _index(folder: Path) -> Index:
    path = folder / INDEX
    try:
        with path.open("rb") as file:
            return parse_index(file.read(MAX_INDEX + 1), str(path))
    except FileNotFoundError:
        return Index()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _sweep(folder: Path) -> None:
    """Remove the drafts of changes that were broken off. Bundles that no index names lie there unseen, and whole."""
    for place in (folder, folder / "bundles", folder / "channels"):
        for draft in place.glob(f"{_DRAFT}*"):
            with suppress(OSError):
                draft.unlink()


def _digest_of(path: Path) -> str | None:
    try:
        return digest(path.read_bytes())
    except FileNotFoundError:
        return None


def _replace(path: Path, content: bytes) -> None:
    """Write a file aside, have the disk hold it, and put it in its place at once."""
    path.parent.mkdir(exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_DRAFT)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(0o644)
        _date(draft, path)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _date(draft: Path, path: Path) -> None:
    """Date a file later, in whole seconds, than the one that it replaces.

    Web servers make an ETag of seconds and size. Two releases may have one size, and be published within a second, or
    with a clock that was set back in between: whoever polls would be told that nothing has changed.
    """
    try:
        before = int(path.stat().st_mtime)
    except FileNotFoundError:
        return
    later = max(int(draft.stat().st_mtime), before + 1)
    os.utime(draft, (later, later))
