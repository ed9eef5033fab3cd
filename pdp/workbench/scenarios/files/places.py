"""Where a field of an effective entry, or a datum, stands in the files that a suite names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdp.workbench.neighbours.values import GONE, JsonPath, as_list, at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.documents import Document
    from pdp.errors import Place
    from pdp.manifest.model import Tool


def place_of_field(tool: Tool, path: JsonPath, manifest: Document, governance: Sequence[Document]) -> Place:
    """Return the place of a part of an entry: in the manifest or, when it is not there, in the other file."""
    names = [at(entry, ("name",)) for entry in as_list(at(manifest.value, ("tools",)))]
    entry: JsonPath = ("tools", names.index(tool.name)) if tool.name in names else ()
    rules: JsonPath = ("actions", tool.pdp_action)
    if at(manifest.value, (*entry, path[0])) is GONE:
        for document in governance:
            if at(document.value, (*rules, path[0])) is not GONE:
                return document.place((*rules, *path))
    return manifest.place((*entry, *path))


def place_of_datum(documents: Sequence[Document], path: JsonPath) -> Place:
    """Return the place of a datum: in the last file that has it."""
    for document in reversed(documents):
        if at(document.value, path) is not GONE:
            return document.place(path)
    return documents[-1].place(path[:1])
