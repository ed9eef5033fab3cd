"""What a scenario file and those that it extends state: the nearest statement of each setting, and what it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pdp.engine.data import read_data
from pdp.errors import FileFaultsError, UsageError
from pdp.manifest.load import load_effective
from pdp.workbench.scenarios.files.scenario import Scenario, ScenarioFile
from pdp.workbench.scenarios.files.tools_file import ToolsFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pdp.documents.document import Path as Steps
    from pdp.manifest.effective import EffectiveManifest
    from pdp.workbench.scenarios.files.read import ScenarioSource

_Read = TypeVar("_Read")


class Settings:
    """What the files of a chain state, the nearest first; and its faults, in the file that states it.

    Args:
        chain: the files.
        whole: whether the last one extends no other; else what is not stated may stand where nobody could look.
    """

    def __init__(self, chain: Sequence[ScenarioSource], *, whole: bool) -> None:
        self._chain = chain
        self._whole = whole
        for source in chain:
            settings = source.settings
            if settings.bundle is not None and settings.policies:
                message = "`bundle` stands beside `policies`"
                source.find(("bundle",), message, "a bundle holds its policies: leave one of them out", key=True)

    def model(self, session: dict[str, Any], scenarios: tuple[Scenario, ...]) -> ScenarioFile:
        """Return the settings as one file would state them; paths as they are written."""
        stated = {
            name: getattr((self._source(name) or self._chain[0]).settings, name)
            for name in ("manifest", "governance", "data", "policies", "bundle", "tools")
        }
        extends = self._chain[0].settings.extends
        return ScenarioFile.model_construct(**stated, extends=extends, session=session, scenarios=scenarios)

    def manifest(self) -> EffectiveManifest | None:
        """Return the effective manifest; None when its files are missing or faulty."""
        source = self._source("manifest")
        if source is None:
            if self._whole and not any({"manifest", "extends"} & each.unusable for each in self._chain):
                self._chain[0].find(
                    (), "names no manifest", "state `manifest: FILE`, beside `scenarios:` or where it extends"
                )
            return None
        manifest, governance = self.file("manifest"), self.file("governance")
        if manifest is None or (governance is None and self._source("governance") is not None):
            return None
        return self._read(source, "manifest", lambda: load_effective(manifest, governance))

    def file(self, name: str) -> Path | None:
        """Return the file that a setting names, if it is there."""
        source = self._source(name)
        if source is None:
            return None
        path = source.path.parent / getattr(source.settings, name)
        return path if self._is_there(source, (name,), path) else None

    def data(self) -> dict[str, Any]:
        """Return the data, read and merged."""
        source = self._source("data")
        if source is None:
            return {}
        paths = [source.path.parent / name for name in source.settings.data]
        there = [self._is_there(source, ("data", at), path) for at, path in enumerate(paths)]
        return (self._read(source, "data", lambda: read_data(paths)) if all(there) else None) or {}

    def folders(self) -> tuple[Path, ...]:
        """Return the folders with the user's policies."""
        source = self._source("policies")
        if source is None:
            return ()
        folders = tuple(source.path.parent / name for name in source.settings.policies)
        for at, folder in enumerate(folders):
            if not folder.is_dir():
                source.find(("policies", at), f"{folder}: no such folder", "name a folder with Rego files")
        return folders

    def tools(self) -> Path | None:
        """Return the tools file, if it is Python."""
        source, path = self._source("tools"), self.file("tools")
        if source is not None and path is not None:
            self._read(source, "tools", lambda: ToolsFile(path))
        return path

    def _source(self, name: str) -> ScenarioSource | None:
        """The nearest file that states a setting; whoever states `bundle` has said what decides, and so `policies`."""
        together = ("bundle", "policies") if name in ("bundle", "policies") else (name,)
        for source in self._chain:
            if source.settings.model_fields_set.intersection(together):
                return source if getattr(source.settings, name) else None
        return None

    @staticmethod
    def _read(source: ScenarioSource, name: str, read: Callable[[], _Read]) -> _Read | None:
        """Return what `read` returns, or None where it finds faults: they are those of the setting `name`."""
        try:
            return read()
        except FileFaultsError as error:
            source.add(list(error.faults))
        except UsageError as error:
            source.find((name,), error.message, error.hint)
        return None

    @staticmethod
    def _is_there(source: ScenarioSource, at: Steps, path: Path) -> bool:
        if path.is_file():
            return True
        source.find(at, f"{path}: no such file", "paths are relative to the file that states them")
        return False
