"""Mutants that a person has marked as equivalent: they change nothing that any scenario could notice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.documents import nearest, read_document, shown_name
from pdp.errors import FileFaultsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pdp.documents import Document
    from pdp.errors import Fault

NAME: Final = "mutants.yaml"
"""The file beside the scenarios."""

_KEYS: Final = ("mutant", "reason")
_SHAPE: Final = "write `- {mutant: ID, reason: why nothing can notice it}`"


@dataclass(frozen=True, slots=True)
class Marked:
    """One entry: the mutant's id, why it is equivalent, and where that is written."""

    mutant: str
    reason: str
    document: Document
    index: int

    def fault(self, message: str, hint: str) -> Fault:
        """Return a fault at the entry's mutant."""
        return self.document.fault((self.index, "mutant"), message, hint)


def beside(suites: Iterable[Path]) -> list[Path]:
    """Return the files of that name beside scenario files, each once."""
    found = {file.parent.resolve() / NAME: file.parent / NAME for file in suites}
    return [file for file in found.values() if file.is_file()]


def read_equivalents(files: Sequence[Path]) -> list[Marked]:
    """Read the entries of files.

    Raises:
        UsageError: a file cannot be read.
        FileFaultsError: a file is faulty; every fault of all of them.
    """
    marked: list[Marked] = []
    faults: list[Fault] = []
    for file in files:
        document = read_document(file)
        if not isinstance(document.value, list):
            faults.append(document.fault((), "must be a list", _SHAPE))
            continue
        for index, entry in enumerate(document.value):
            wrong = list(_faults(document, index, entry))
            faults += wrong
            if not wrong:
                marked.append(Marked(entry["mutant"], entry["reason"], document, index))
    seen: set[str] = set()
    for each in marked:
        if each.mutant in seen:
            faults.append(each.fault(f"`{each.mutant}` stands twice", "take one of them out"))
        seen.add(each.mutant)
    if faults:
        raise FileFaultsError(faults)
    return marked


def check_known(marked: Iterable[Marked], ids: Iterable[str]) -> list[Marked]:
    """Check that every entry names a mutant, and return those of files that are not broken here.

    Raises:
        FileFaultsError: the entries that name none, of files that are.
    """
    known = set(ids)
    files = {_file(each) for each in known}
    faults = [
        each.fault(
            f"no mutant `{each.mutant}`",
            nearest(each.mutant, _same_rule(each.mutant, known)) or "its text has changed: look again, or take it out",
        )
        for each in marked
        if each.mutant not in known and _file(each.mutant) in files
    ]
    if faults:
        raise FileFaultsError(faults)
    return [each for each in marked if _file(each.mutant) not in files]


def _file(identity: str) -> str:
    return identity.split(":", 1)[0]


def _same_rule(identity: str, known: set[str]) -> list[str]:
    """The mutants of the same file and rule: the others are no near miss, however alike their names."""
    start = ":".join(identity.split(":")[:2])
    return [each for each in known if each.startswith(f"{start}:")]


def _faults(document: Document, index: int, entry: Any) -> Iterable[Fault]:
    if not isinstance(entry, dict):
        yield document.fault((index,), "must be a mapping", _SHAPE)
        return
    for key in entry:
        if key not in _KEYS:
            yield document.fault((index, key), f"unknown key {shown_name(key)}", _SHAPE, key=True)
    for key in _KEYS:
        value = entry.get(key)
        if not isinstance(value, str) or not value.strip():
            yield document.fault((index, key), f"`{key}` must be a text that is not empty", _SHAPE)
