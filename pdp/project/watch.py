"""Reload a project while its files are edited, for development. In production, use `FollowingEngine`."""

import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from weakref import ref

from pdp.engine.bundle.follow import refresh_periodically
from pdp.engine.protocol import Engine
from pdp.errors import PdpError, UsageError
from pdp.json import canonical, digest
from pdp.manifest.effective import EffectiveManifest
from pdp.project.file import Project, engine_of_project, manifest_of_project, read_project

EVERY: Final = 1.0  # seconds between two checks of the files, on average

_log = logging.getLogger("pdp.project")


class ProjectWatch:
    """Checks the files of a project, and passes manifest and engine to `swap` when the content has changed.

    All files are read and compiled before `swap` is called. If a file is faulty or `swap` fails, the old manifest and
    engine stay in use, and `error` has the fault; otherwise `error` is None. Store and type of engine never change.
    """

    def __init__(self, file: Path, project: Project, swap: Callable[[EffectiveManifest, Engine], None]) -> None:
        self._file = file
        self._swap = swap
        self._content = _content(file, project)
        self.error: PdpError | None = None
        self._owned = ExitStack()
        self._refreshing = threading.Lock()
        self._process = os.getpid()
        self._ended = threading.Event()
        threading.Thread(
            target=refresh_periodically, args=(ref(self), self._ended, EVERY), name="pdp-project", daemon=True
        ).start()

    def refresh(self) -> PdpError | None:
        """Check the project's files now, and return the current `error`. Faults of the files are not raised."""
        with self._refreshing:
            if not self._ended.is_set():
                self._refresh()
        return self.error

    def close(self) -> None:
        """Stop checking the files, and close the last engine that the watch created."""
        self._ended.set()
        # In a forked child the lock is not taken, because the thread that held it may not exist there.
        if self._process == os.getpid():
            with self._refreshing:
                self._owned.close()

    def _refresh(self) -> None:
        content, error = "", None
        with ExitStack() as opened:
            try:
                project = read_project(self._file)
                content = _content(self._file, project)
                if content == self._content:
                    return
                manifest = manifest_of_project(self._file, project)
                engine = engine_of_project(project, manifest, opened, "embedded")
                if (read_project(self._file), _content(self._file, project)) != (project, content):
                    return  # a file is being written, so the next check reads all files again
                self._swap(manifest, engine)
                # Another thread may still be using the old engine, so it is not closed here; it is freed with its last
                # reference.
                self._owned.pop_all()
                self._owned = opened.pop_all()
                _log.info("%s: calls are now decided with manifest %s", self._file, manifest.version)
            except Exception as caught:  # noqa: BLE001 - any error keeps the previous files in use
                if content and _content(self._file, project) != content:
                    return  # a file is being written, so the error is ignored
                error = caught if isinstance(caught, PdpError) else UsageError(f"{type(caught).__name__}: {caught}")
                if str(error) != str(self.error):
                    _log.warning("%s: the changed files are not used: %s", self._file, error)
            self._content, self.error = content, error


def _content(file: Path, project: Project) -> str:
    """Return a digest of all files that affect decisions. Editing, adding or removing a file changes the digest."""
    policies = [rego for folder in project.policies for rego in sorted(folder.rglob("*.rego"))]
    stated = [path for path in (project.manifest, project.governance, project.bundle) if path is not None]
    contents: list[list[str | None]] = []
    for path in (file, *stated, *project.data, *policies):
        try:
            contents.append([str(path), digest(path.read_bytes())])
        except OSError:
            contents.append([str(path), None])
    return digest(canonical(contents))
