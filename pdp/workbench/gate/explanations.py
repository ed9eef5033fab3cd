"""Loosenings that a person has looked at and explained: a file, read with places.

explained:
  - difference: 3f2a9c1d04be     # the id that `pdp bundle diff` shows
    reason: purposes of look-ups are optional since the review of the directory
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.documents import read_document
from pdp.errors import Fault, FileFaultsError, Place

if TYPE_CHECKING:
    from pathlib import Path

    from pdp.documents.document import Document

_KEYS: Final = frozenset(("difference", "reason"))
_FORM: Final = "write `explained:` and below it a list of `{difference: ID, reason: TEXT}`"


@dataclass(frozen=True, slots=True)
class ExplainedLoosening:
    """Why one difference is meant, and where that is written."""

    difference: str
    reason: str
    place: Place


def read_explanations(file: Path) -> tuple[ExplainedLoosening, ...]:
    """Read a file of explanations.

    Raises:
        UsageError: it cannot be read.
        FileFaultsError: it is faulty: unknown keys, an empty reason, a difference that is explained twice.
    """
    document = read_document(file)
    faults: list[Fault] = []
    found: dict[str, ExplainedLoosening] = {}
    value = document.value
    listed = value.get("explained") if isinstance(value, dict) and value.keys() == {"explained"} else None
    if not isinstance(listed, list):
        raise FileFaultsError([document.fault((), "no list of explanations", _FORM)])
    for at, entry in enumerate(listed):
        fault = _fault(document, at, entry, found)
        if fault is not None:
            faults.append(fault)
            continue
        found[entry["difference"]] = ExplainedLoosening(
            entry["difference"], entry["reason"].strip(), document.place(("explained", at))
        )
    if faults:
        raise FileFaultsError(faults)
    return tuple(found.values())


def _fault(document: Document, at: int, entry: Any, found: dict[str, ExplainedLoosening]) -> Fault | None:
    path = ("explained", at)
    if not isinstance(entry, dict) or entry.keys() != _KEYS:
        return document.fault(path, "must have `difference` and `reason`, and nothing else", _FORM)
    for name in ("difference", "reason"):
        if not isinstance(entry[name], str) or not entry[name].strip():
            hint = "write it in quotes" if name == "difference" else "say why this is meant"
            return document.fault((*path, name), f"{name} must be a text, not empty", hint)
    if entry["difference"] in found:
        return document.fault((*path, "difference"), "is explained twice", "leave one of them out")
    return None
