"""A project that is watched while it is being written: what its files say now decides, once all of it is sound.

For development. In production, `FollowingEngine` follows bundles that were signed.
"""

import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from weakref import ref

from pdp.engine.bundle.follow import look_again
from pdp.engine.protocol import Engine
from pdp.errors import PdpError, UsageError
from pdp.json import canonical, digest
from pdp.manifest.effective import EffectiveManifest
from pdp.project.file import Project, engine_of_project, manifest_of_project, read_project

EVERY: Final = 1.0
"""Seconds between two looks, about."""

_log = logging.getLogger("pdp.project")


class ProjectWatch:
    """Looks at the files of a project, and hands out manifest and engine when their content has changed.

    The whole set is read and compiled aside first. While a file of it is being written, or is faulty, the set before
    stays; `error` says why, and is None where the files as they are now decide. Store and engine's name stay those that
    the application started with.

    `swap` takes what is to be in force from now on; it raises for what cannot be.
    """

    def __init__(self, file: Path, project: Project, swap: Callable[[EffectiveManifest, Engine], None]) -> None:
        self._file = file
        self._swap = swap
        self._content = _content(file, project)
        self.error: PdpError | None = None
        self._owned = ExitStack()
        self._looking = threading.Lock()
        self._process = os.getpid()
        self._ended = threading.Event()
        threading.Thread(
            target=look_again, args=(ref(self), self._ended, EVERY), name="pdp-project", daemon=True
        ).start()

    def refresh(self) -> PdpError | None:
        """Look at the files now, and return `error`. What is wrong with them is not raised."""
        with self._looking:
            if not self._ended.is_set():
                self._refresh()
        return self.error

    def close(self) -> None:
        """End the looking, and close the engine that came of it."""
        self._ended.set()
        # Whoever was looking when this process was forked is not here to give the lock back.
        if self._process == os.getpid():
            with self._looking:
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
                    return  # somebody is writing; the next look takes it
                self._swap(manifest, engine)
                # The engine before is not closed, as somebody may be about to ask it: it goes with its last user.
                self._owned.pop_all()
                self._owned = opened.pop_all()
                _log.info("%s: manifest %s is in force", self._file, manifest.version)
            except Exception as caught:  # noqa: BLE001 - whatever it is, the set before stays
                if content and _content(self._file, project) != content:
                    return  # likewise
                error = caught if isinstance(caught, PdpError) else UsageError(f"{type(caught).__name__}: {caught}")
                if str(error) != str(self.error):
                    _log.warning("%s: the files as they were stay in force: %s", self._file, error)
            self._content, self.error = content, error


def _content(file: Path, project: Project) -> str:
    """Return a digest of all that decides; it changes when a file does, comes or goes."""
    policies = [rego for folder in project.policies for rego in sorted(folder.rglob("*.rego"))]
    stated = [path for path in (project.manifest, project.governance, project.bundle) if path is not None]
    contents: list[list[str | None]] = []
    for path in (file, *stated, *project.data, *policies):
        try:
            contents.append([str(path), digest(path.read_bytes())])
        except OSError:
            contents.append([str(path), None])
    return digest(canonical(contents))
