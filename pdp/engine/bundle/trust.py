"""Which bundles an engine accepts: signed by a trusted key, and no older than what it decided by before.

An old bundle is signed as well as a new one, so its signature says nothing against it. A file keeps the highest release
number that was decided by, over restarts; to go below it takes an explicit word, which is reported before it is done.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from pdp.audit.event import recordable
from pdp.clock import to_milliseconds
from pdp.engine.bundle.file import read_bundle, replace_file
from pdp.errors import BundleError
from pdp.json import MAX_NUMBER, JsonValueError, canonical, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pdp.audit.chain import AuditLog
    from pdp.engine.bundle.file import Bundle
    from pdp.engine.bundle.signature import VerificationKey

_MAX_FLOOR: Final = 4096

_log = logging.getLogger("pdp.engine")


class StaleBundleError(BundleError):
    """A bundle that is older than one decided by before, or older than the operator admits."""

    code: ClassVar[str] = "bundle.stale"


class ReleaseFloorError(BundleError):
    """Which release was the newest is not known, or cannot be written: no bundle is taken until it is mended."""


@dataclass(frozen=True, slots=True)
class BundleEvent:
    """What became of a bundle: decided by from now on, refused, or an older one taken on the operator's word.

    Attributes:
        type: which of these.
        revision: of the bundle; None where it was refused, since nothing that it states is sure.
        release: likewise.
        digest: of the file.
        previous_release: what was decided by before, or None.
        error_code: why it was refused, or None.
        message: likewise.
    """

    type: Literal["bundle.loaded", "bundle.refused", "bundle.rollback"]
    revision: str | None = None
    release: int | None = None
    digest: str | None = None
    previous_release: int | None = None
    error_code: str | None = None
    message: str | None = None


def audited(audit: AuditLog, *, clock: Callable[[], float] = time.time) -> Callable[[BundleEvent], None]:
    """Return a report for `BundleTrust` that records every event.

    An event has the bundle's revision, the code of a refusal, and as `arguments_digest` the keyed digest of the whole
    event, release numbers among it. What it raises (`AuditError`) keeps an engine from going back to an older bundle.
    """

    def report(event: BundleEvent) -> None:
        audit.append(
            {
                "time": to_milliseconds(clock()),
                "type": event.type,
                "arguments_digest": audit.digest(canonical(asdict(event))),
                "bundle_revision": recordable(event.revision),
                "outcome": "failed" if event.type == "bundle.refused" else "succeeded",
                "error_code": event.error_code,
            }
        )

    return report


class ReleaseFloor:
    """The newest release that was decided by. Safe for threads, and with a file for processes as well.

    Args:
        path: the file that keeps it over restarts; None: as long as the object lives.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._newest: tuple[int, str] | None = None

    def newest(self) -> tuple[int, str] | None:
        """Return release and revision of the newest, or None when there was none yet.

        Raises:
            ReleaseFloorError: the file is damaged or cannot be read. It is never taken for an empty one.
        """
        return self._newest if self._path is None else _read(self._path)

    @contextmanager
    def locked(self) -> Iterator[Callable[[Bundle], None]]:
        """Hold the floor; what is handed out sets it to a bundle, be it higher or lower.

        Raises:
            ReleaseFloorError: the file cannot be locked or written.
        """
        if self._path is None:
            with self._lock:
                yield self._set
            return
        try:
            # Opened anew each time, so that it keeps threads from each other as well, and no child inherits it locked.
            lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(self._path, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._set
        finally:
            os.close(lock)

    def _set(self, bundle: Bundle) -> None:
        if self._path is not None:
            content = canonical({"release": bundle.release, "revision": bundle.revision})
            try:
                replace_file(self._path, content, mode=0o600)
            except OSError as error:
                raise _unusable(self._path, error) from error
        self._newest = (bundle.release, bundle.revision)


class BundleTrust:
    """What an engine demands of a bundle.

    Args:
        keys: public keys, each of which may have signed it: two while keys are rotated. None: unsigned ones are taken,
            as is right where only the operator can write the file.
        floor: the newest release so far; without it, kept as long as the object lives.
        report: called with what becomes of bundles. What it raises stops a rollback, and no other bundle.
    """

    def __init__(
        self,
        keys: Sequence[VerificationKey] | None = None,
        *,
        floor: ReleaseFloor | None = None,
        report: Callable[[BundleEvent], None] | None = None,
    ) -> None:
        self.keys = None if keys is None else tuple(keys)
        self.floor = floor or ReleaseFloor()
        self._report = report

    def admit(self, source: Path | bytes, *, rollback: bool = False) -> Bundle:
        """Return the bundle if it may be decided by. Call `loaded` as soon as it is.

        Args:
            source: the file, or its content.
            rollback: take an older release than the newest so far; it takes somebody to report to.

        Raises:
            StaleBundleError: an older release, or another bundle with the newest one's number.
            BundleError: unsigned, signed by somebody else, changed or no bundle.
        """
        bundle = read_bundle(source, keys=self.keys)
        self._check(bundle, str(source) if isinstance(source, Path) else "bundle", rollback=rollback)
        return bundle

    def loaded(self, bundle: Bundle, *, previous_release: int | None = None, rollback: bool = False) -> None:
        """Note that `bundle` is decided by. A rollback is reported first, and not made when that fails.

        Raises:
            StaleBundleError: a newer one came in between.
            ReleaseFloorError: the floor cannot be written.
        """
        with self.floor.locked() as set_floor:
            newest = self._check(bundle, "bundle", rollback=rollback)
            if newest is not None and bundle.release < newest[0]:
                if self._report is None:
                    raise BundleError(
                        f"a rollback to release {bundle.release} has nobody to report to", hint="give `report`"
                    )
                self._report(BundleEvent("bundle.rollback", bundle.revision, bundle.release, bundle.digest, newest[0]))
            if newest != (bundle.release, bundle.revision):
                set_floor(bundle)
        self._send(BundleEvent("bundle.loaded", bundle.revision, bundle.release, bundle.digest, previous_release))

    def refused(self, digest: str, error: BundleError, *, previous_release: int | None = None) -> None:
        """Report that the file with this digest is not decided by."""
        self._send(
            BundleEvent(
                "bundle.refused",
                digest=digest,
                previous_release=previous_release,
                error_code=error.code,
                message=error.message,
            )
        )

    def _send(self, event: BundleEvent) -> None:
        if self._report is None:
            return
        try:
            self._report(event)
        except Exception:  # noqa: BLE001 - a report is the application's, and may raise anything
            _log.exception("%s could not be reported", event.type)

    def _check(self, bundle: Bundle, name: str, *, rollback: bool) -> tuple[int, str] | None:
        newest = self.floor.newest()
        if newest is None:
            return None
        release, revision = newest
        if bundle.release < release and not rollback:
            raise StaleBundleError(
                f"{name}: release {bundle.release} is older than release {release}, which was decided by before",
                hint="take the newest one; `pdp bundle rollback` releases an old content anew",
            )
        if bundle.release == release and bundle.revision != revision:
            raise StaleBundleError(
                f"{name}: it has the number of release {release}, which was decided by before, and another content",
                hint="build it with a release number of its own",
            )
        return newest


def _read(path: Path) -> tuple[int, str] | None:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FLOOR)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        document = parse_json(content)
        release, revision = document["release"], document["revision"]
    except (JsonValueError, TypeError, KeyError):
        release, revision = None, None
    if type(release) is not int or not 1 <= release <= MAX_NUMBER or type(revision) is not str:
        raise ReleaseFloorError(
            f"{path}: does not say which release was the newest",
            hint="restore it; whoever removes it lets every older bundle in once more",
        )
    return release, revision


def _unusable(path: Path, error: OSError) -> ReleaseFloorError:
    return ReleaseFloorError(
        f"{path}: the newest release cannot be read or written: {error.strerror}",
        hint="name a file in a folder of yours",
    )
