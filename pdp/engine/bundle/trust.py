"""Which bundles an engine accepts: bundles signed by a trusted key and not older than the last accepted bundle.

A signature does not prevent a rollback, because an old bundle has a valid signature too. So the highest accepted
release number is kept in a file over restarts. To go back, release the old content under a new number
(`pdp bundle rollback`).
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

LOCK_SECONDS: Final = 10.0  # the number of seconds to wait until another process unlocks the floor file

_MAX_FLOOR: Final = 4096

_log = logging.getLogger("pdp.engine")


class StaleBundleError(BundleError):
    """The bundle is older than an accepted bundle, or its source did not confirm the bundle within `max_age`."""

    code: ClassVar[str] = "bundle.stale"


class ReleaseFloorError(BundleError):
    """The file with the newest release number cannot be read or written, so no bundle is accepted."""


class BundleTrust:
    """The rules for accepting a bundle. Safe for threads, and with a `floor` also for processes.

    Args:
        keys: trusted public keys, one of which must have signed the bundle. During a key rotation there are two keys.
            None: unsigned bundles are accepted; use this only if no one else can write the file.
        floor: a file that keeps the newest release number over restarts. None: this object keeps the number.
        audit: records each bundle that is loaded or rejected (`bundle.loaded`, `bundle.refused`). The event's
            `arguments_digest` is a keyed digest of the details.

    Examples:
        >>> from pathlib import Path
        >>> trust = BundleTrust()
        >>> bundle = trust.admit(Path("../../bundles/payments.tar.gz").read_bytes())
        >>> trust.loaded(bundle)
        >>> trust.newest() == (bundle.release, bundle.revision)
        True
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
        """Return release number and revision of the newest loaded bundle, or None if no bundle was loaded.

        Raises:
            ReleaseFloorError: the file `floor` is damaged.
        """
        return self._newest if self._floor is None else _read(self._floor)

    def admit(self, content: bytes) -> Bundle:
        """Read a bundle file's content and check that the bundle is accepted. Call `loaded` when an engine uses it.

        Raises:
            StaleBundleError: the bundle is older than the newest release, or another bundle with its number.
            BundleError: the bundle is damaged, changed, unsigned, or signed with another key.
        """
        bundle = read_bundle(content, keys=self.keys)
        _check_release(bundle, self.newest())
        return bundle

    def loaded(self, bundle: Bundle) -> None:
        """Record that an engine now decides with `bundle`.

        Raises:
            StaleBundleError: a newer bundle was loaded in the meantime.
            ReleaseFloorError: the file `floor` cannot be written.
        """
        with self._locked():
            newest = self.newest()
            _check_release(bundle, newest)
            self._newest = (bundle.release, bundle.revision)
            if self._floor is not None and newest != self._newest:
                content = canonical({"release": bundle.release, "revision": bundle.revision})
                try:
                    replace_file(self._floor, content, mode=0o600)
                except OSError as error:
                    raise _floor_error(self._floor, error) from error
        self._record("bundle.loaded", bundle.digest, bundle=bundle)

    def refused(self, digest: str, error: BundleError) -> None:
        """Record in the audit log that the bundle file with this digest was rejected."""
        self._record("bundle.refused", digest, error=error)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._floor is None:
            with self._lock:
                yield
            return
        try:
            # The lock file is opened for each lock, so that the lock also excludes other threads, and no child process
            # inherits it.
            lock = os.open(f"{self._floor}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _floor_error(self._floor, error) from error
        try:
            try:
                locked(lock, time.monotonic() + LOCK_SECONDS)
            except BlockingIOError:
                message = f"{self._floor}.lock: still locked by another process after {LOCK_SECONDS:g} s"
                raise ReleaseFloorError(message, hint="find the process with `lslocks`") from None
            yield
        finally:
            os.close(lock)

    def _record(
        self, kind: str, digest: str, *, bundle: Bundle | None = None, error: BundleError | None = None
    ) -> None:
        if self._audit is None:
            return
        # The values in a rejected bundle are not verified, so they are not recorded.
        revision, release = (None, None) if bundle is None else (bundle.revision, bundle.release)
        code, message = (None, None) if error is None else (error.code, error.message)
        details = {"type": kind, "digest": digest, "revision": revision, "release": release}
        details |= {"error_code": code, "message": message}
        try:
            self._audit.append(
                {
                    "time": to_milliseconds(time.time()),
                    "type": kind,
                    "arguments_digest": self._audit.digest(canonical(details)),
                    "bundle_revision": revision,
                    "outcome": "succeeded" if error is None else "failed",
                    "error_code": code,
                }
            )
        except Exception:  # noqa: BLE001 - the application's audit log may raise anything
            _log.exception("could not record the audit event %s", kind)


def _check_release(bundle: Bundle, newest: tuple[int, str] | None) -> None:
    release, revision = newest or (0, "")
    if bundle.release < release:
        raise StaleBundleError(
            f"release {bundle.release} is older than release {release}, with which this engine decided before",
            hint="use the newest bundle; `pdp bundle rollback` releases older content under a new number",
        )
    if bundle.release == release and bundle.revision != revision:
        raise StaleBundleError(
            f"the bundle has the same number as release {release}, with which this engine decided before, but "
            f"other content",
            hint="build the bundle with a new release number",
        )


def _read(path: Path) -> tuple[int, str] | None:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FLOOR)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _floor_error(path, error) from error
    try:
        document = parse_json(content)
        release, revision = document["release"], document["revision"]
    except (JsonValueError, TypeError, KeyError):
        release, revision = None, None
    if type(release) is not int or not 1 <= release <= MAX_NUMBER or type(revision) is not str:
        raise ReleaseFloorError(
            f"{path}: damaged: expected the newest release number and its revision",
            hint="restore the file; without it, older bundles would be accepted again",
        )
    return release, revision


def _floor_error(path: Path, error: OSError) -> ReleaseFloorError:
    return ReleaseFloorError(
        f"{path}: the newest release cannot be read or written: {error.strerror}",
        hint="choose a folder you can write to",
    )
