"""Which bundles an engine accepts: signed by a trusted key, and no older than what it decided by before.

An old bundle is signed as well as a new one, so its signature says nothing against it. A file keeps the highest release
number that was decided by, over restarts. To go back, an old content is released anew (`pdp bundle rollback`).
"""

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

from pdp.audit.chain import AuditLog
from pdp.audit.file import locked, replace_file
from pdp.clock import to_milliseconds
from pdp.engine.bundle.file import Bundle, read_bundle
from pdp.engine.bundle.signature import VerificationKey
from pdp.errors import BundleError
from pdp.json import MAX_NUMBER, JsonValueError, canonical, parse_json

LOCK_SECONDS: Final = 10.0  # how long a bundle to be decided by waits for another process that holds the floor's lock

_MAX_FLOOR: Final = 4096

_log = logging.getLogger("pdp.engine")


class StaleBundleError(BundleError):
    """A bundle that is older than one decided by before, or older than the operator admits."""

    code: ClassVar[str] = "bundle.stale"


class ReleaseFloorError(BundleError):
    """The file with the newest release cannot be read or written; no bundle is taken until it is repaired."""


class BundleTrust:
    """What an engine demands of a bundle. Safe for threads, and with a `floor` for processes as well.

    Args:
        keys: public keys, each of which may have signed it: two while keys are rotated. None: unsigned ones are taken,
            as is right where only the operator can write the file.
        floor: the file that keeps the newest release so far over restarts; None: as long as the object lives.
        audit: gets an event for each bundle that is decided by or refused (`bundle.loaded`, `bundle.refused`). Its
            `arguments_digest` is the keyed digest of all that is known of it, release numbers among it.
    """

    def __init__(
        self,
        keys: Sequence[VerificationKey] | None = None,
        *,
        floor: Path | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self.keys = None if keys is None else tuple(keys)
        self._floor = floor
        self._audit = audit
        self._lock = threading.Lock()
        self._newest: tuple[int, str] | None = None

    def newest(self) -> tuple[int, str] | None:
        """Return release and revision of the newest bundle so far, or None; ReleaseFloorError: its file is damaged."""
        return self._newest if self._floor is None else _read(self._floor)

    def admit(self, content: bytes) -> Bundle:
        """Return the bundle in a file's content if it may be decided by. Call `loaded` as soon as it is.

        StaleBundleError: an older release, or another bundle with the newest one's number; BundleError: unsigned,
        signed by somebody else, changed or no bundle.
        """
        bundle = read_bundle(content, keys=self.keys)
        _check(bundle, self.newest())
        return bundle

    def loaded(self, bundle: Bundle) -> None:
        """Note that `bundle` is decided by.

        StaleBundleError: a newer one came in between; ReleaseFloorError: the floor cannot be written.
        """
        with self._locked():
            newest = self.newest()
            _check(bundle, newest)
            self._newest = (bundle.release, bundle.revision)
            if self._floor is not None and newest != self._newest:
                content = canonical({"release": bundle.release, "revision": bundle.revision})
                try:
                    replace_file(self._floor, content, mode=0o600)
                except OSError as error:
                    raise _unusable(self._floor, error) from error
        self._record("bundle.loaded", bundle.digest, bundle=bundle)

    def refused(self, digest: str, error: BundleError) -> None:
        """Record that the file with this digest is not decided by."""
        self._record("bundle.refused", digest, error=error)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._floor is None:
            with self._lock:
                yield
            return
        try:
            # Opened anew each time, so that it keeps threads from each other as well, and no child inherits it locked.
            lock = os.open(f"{self._floor}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(self._floor, error) from error
        try:
            try:
                locked(lock, time.monotonic() + LOCK_SECONDS)
            except BlockingIOError:
                message = f"{self._floor}.lock was held by another process for {LOCK_SECONDS:g} s"
                raise ReleaseFloorError(message, hint="`lslocks` names it") from None
            yield
        finally:
            os.close(lock)

    def _record(
        self, kind: str, digest: str, *, bundle: Bundle | None = None, error: BundleError | None = None
    ) -> None:
        if self._audit is None:
            return
        # Of a bundle that is refused, nothing that it states is sure.
        revision, release = (None, None) if bundle is None else (bundle.revision, bundle.release)
        code, message = (None, None) if error is None else (error.code, error.message)
        known = {"type": kind, "digest": digest, "revision": revision, "release": release}
        known |= {"error_code": code, "message": message}
        try:
            self._audit.append(
                {
                    "time": to_milliseconds(time.time()),
                    "type": kind,
                    "arguments_digest": self._audit.digest(canonical(known)),
                    "bundle_revision": revision,
                    "outcome": "succeeded" if error is None else "failed",
                    "error_code": code,
                }
            )
        except Exception:  # noqa: BLE001 - an audit log is the application's, and may raise anything
            _log.exception("%s could not be recorded", kind)


def _check(bundle: Bundle, newest: tuple[int, str] | None) -> None:
    release, revision = newest or (0, "")
    if bundle.release < release:
        raise StaleBundleError(
            f"release {bundle.release} is older than release {release}, which was decided by before",
            hint="take the newest one; `pdp bundle rollback` releases an old content anew",
        )
    if bundle.release == release and bundle.revision != revision:
        raise StaleBundleError(
            f"it has the number of release {release}, which was decided by before, and another content",
            hint="build it with a release number of its own",
        )


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
