"""The manifest, governance and data files that a suite states, and where in them an entry stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdp.documents import read_document

if TYPE_CHECKING:
    from pathlib import Path

    from pdp.documents import Document
    from pdp.errors import Place
    from pdp.workbench.scenarios.files.suite import Suite

_Way = tuple[str | int, ...]


def stated(suite: Suite, setting: str) -> tuple[Path, ...]:
    """Return the files that a suite, or what it extends, states under `setting`; none when nobody does."""
    file = suite.file
    while True:
        settings = read_document(file).value
        if setting in settings:
            named = settings[setting]
            names = [named] if isinstance(named, str) else named or []
            return tuple(file.parent / name for name in names)
        if "extends" not in settings:
            return ()
        file = file.parent / settings["extends"]


class StatedFiles:
    """The manifest file of a suite, and its governance file if there is one."""

    def __init__(self, suite: Suite) -> None:
        self.manifest = stated(suite, "manifest")[0]
        self._manifest = read_document(self.manifest)
        governance = stated(suite, "governance")
        self._governance: Document | None = read_document(governance[0]) if governance else None

    def place(self, way: _Way) -> Place:
        """Return where something stands in the manifest file."""
        return self._manifest.place(way)

    def place_of(self, tool: str, action: str, way: _Way) -> Place:
        """Return where a part of an effective entry stands: in the manifest or, when it is not there, in the other."""
        value = self._manifest.value
        entries = value.get("tools") if isinstance(value, dict) else None
        index = next(
            (at for at, entry in enumerate(entries or ()) if isinstance(entry, dict) and entry.get("name") == tool),
            None,
        )
        base: _Way = () if index is None else ("tools", index)
        rules: _Way = ("actions", action)
        stated_here = _has(value, (*base, way[0]))
        if self._governance is not None and not stated_here and _has(self._governance.value, (*rules, way[0])):
            return self._governance.place((*rules, *way))
        return self._manifest.place((*base, *way))


def _has(value: Any, way: _Way) -> bool:
    for step in way:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return False
    return True
