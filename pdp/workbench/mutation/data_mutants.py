"""Mutants of the data that a suite states: numbers ten times larger, flags turned, lists shorter, keys gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from pdp.documents import read_document
from pdp.workbench.mutation.mutant import DataMutant, Identities, difference, file_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.documents import Document
    from pdp.errors import Place

MOST: Final = 400
"""How many mutants of one suite's data are made at most: directories may be large, and their entries are alike."""

_TIMES: Final = 10
_Way = tuple[str | int, ...]


def data_mutants(data: Mapping[str, Any], files: Sequence[Path]) -> list[DataMutant]:
    """Return the mutants of a suite's data, at most `MOST`, evenly chosen.

    Args:
        data: the roots `directory` and `settings`, as the files come to together.
        files: the data files, for places; the last one that has a datum states it.
    """
    if not data or not files:
        return []
    documents = [read_document(file) for file in files]
    changes = [change for root in data for change in _changes(data[root], (root,))]
    if len(changes) > MOST:
        changes = [changes[at * len(changes) // MOST] for at in range(MOST)]
    identities = Identities(file_name(files[-1]))
    found = []
    for kind, way, before, after in changes:
        owner = ".".join(str(step) for step in way if isinstance(step, str))
        root = str(way[0])
        changed = dict(data) | {root: _put(data[root], way[1:], after)}
        was, now = _text(before), "" if after is _GONE else _text(after)
        found.append(
            DataMutant(
                id=identities.of(owner, kind, was, now),
                kind=kind,
                owner=owner,
                place=_place(documents, way),
                original=was,
                changed=now,
                diff=difference(str(files[-1]), _around(data, way), _around(changed, way)),
                data=changed,
            )
        )
    return found


_GONE: Final = object()


def _changes(value: Any, way: _Way) -> Iterator[tuple[str, _Way, Any, Any]]:
    if isinstance(value, bool):
        yield "flag turned", way, value, not value
    elif isinstance(value, int | float):
        yield "number ten times larger", way, value, value * _TIMES if value else 1
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield "key dropped", (*way, key), inner, _GONE
            yield from _changes(inner, (*way, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield "element dropped", (*way, index), inner, _GONE
            yield from _changes(inner, (*way, index))


def _put(value: Any, way: _Way, new: Any) -> Any:
    """Return `value` with `new` at `way`, or without what stands there; nothing is changed in place."""
    if not way:
        return new
    step, rest = way[0], way[1:]
    if isinstance(value, list):
        inner = [] if not rest and new is _GONE else [_put(value[int(step)], rest, new)]
        return [*value[: int(step)], *inner, *value[int(step) + 1 :]]
    if not rest and new is _GONE:
        return {key: each for key, each in value.items() if key != step}
    return value | {step: _put(value[step], rest, new)}


def _place(documents: Sequence[Document], way: _Way) -> Place:
    for document in reversed(documents):
        value = document.value
        for step in way:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                break
        else:
            return document.place(way)
    return documents[-1].place(way[:1])


def _around(data: Mapping[str, Any], way: _Way) -> str:
    """The part of the data in which the change stands, small enough to read."""
    value: Any = data
    for step in way[:2]:
        value = value[step] if isinstance(value, dict) and step in value else value
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def _text(value: Any) -> str:
    return str(
        yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True).removesuffix("...\n")
    ).strip()
