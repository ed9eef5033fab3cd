"""Mutants of the data that a suite states: numbers ten times larger, flags turned, lists shorter, keys gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from pdp.documents import read_document
from pdp.workbench.mutation.mutant import DataMutant, Identities, difference, file_name
from pdp.workbench.neighbours.values import GONE, at, edited

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdp.documents import Document
    from pdp.errors import Place
    from pdp.workbench.neighbours.values import JsonPath
    from pdp.workbench.scenarios.files.suite import Suite

MOST: Final = 400
"""How many mutants of one suite's data are made at most: directories may be large, and their entries are alike."""

_TIMES: Final = 10


def data_mutants(suite: Suite) -> list[DataMutant]:
    """Return the mutants of a suite's data, at most `MOST`, evenly chosen."""
    data, files = suite.data, suite.files.get("data", ())
    if not data or not files:
        return []
    documents = [read_document(file) for file in files]
    changes = [change for root in data for change in _changes(data[root], (root,))]
    if len(changes) > MOST:
        changes = [changes[number * len(changes) // MOST] for number in range(MOST)]
    identities = Identities(file_name(files[-1]))
    mutants = []
    for kind, path, before, after in changes:
        owner = ".".join(str(step) for step in path if isinstance(step, str))
        changed = edited(dict(data), (path, after))
        mutants.append(
            DataMutant(
                **identities.of(owner, kind, _text(before), "" if after is GONE else _text(after)),
                place=_place(documents, path),
                diff=difference(str(files[-1]), _around(data, path), _around(changed, path)),
                data=changed,
            )
        )
    return mutants


def _changes(value: Any, path: JsonPath) -> Iterator[tuple[str, JsonPath, Any, Any]]:
    if isinstance(value, bool):
        yield "flag turned", path, value, not value
    elif isinstance(value, int | float):
        yield "number ten times larger", path, value, value * _TIMES if value else 1
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield "key dropped", (*path, key), inner, GONE
            yield from _changes(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield "element dropped", (*path, index), inner, GONE
            yield from _changes(inner, (*path, index))


def _place(documents: Sequence[Document], path: JsonPath) -> Place:
    """Where a datum stands: in the last file that has it."""
    for document in reversed(documents):
        if at(document.value, path) is not GONE:
            return document.place(path)
    return documents[-1].place(path[:1])


def _around(data: Mapping[str, Any], path: JsonPath) -> str:
    """The part of the data in which the change stands, small enough to read."""
    value: Any = data
    for step in path[:2]:
        value = value[step] if isinstance(value, dict) and step in value else value
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def _text(value: Any) -> str:
    return str(
        yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True).removesuffix("...\n")
    ).strip()
