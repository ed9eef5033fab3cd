"""What is wrong in one file: findings of the rules, which become faults with places; and what is left of a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from pdp.documents import faults_of, read_document
from pdp.errors import Fault, FileFaultsError

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterable, Mapping

    from pdp.documents.document import Path

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong at one path of a manifest or governance file.

    `key`: the key at the end of the path is meant, not its value. `warning`: legal, yet likely a mistake.
    """

    path: Path
    message: str
    hint: str | None = None
    warning: bool = False
    key: bool = False


class FaultyFile:
    """One file that is being loaded: its document, and the faults and warnings found so far.

    Raises:
        UsageError: the file cannot be read.
        FileFaultsError: it cannot be read further, or its value is not a mapping.
    """

    def __init__(self, path: pathlib.Path | str, text: bytes | None, what: str) -> None:
        self.faults: list[Fault] = []
        self.document = read_document(path, text=text, faults=self.faults)
        if not isinstance(self.document.value, dict):
            self.faults.append(
                self.document.fault((), f"a {what} must be a mapping", "check that it is the right file")
            )
            raise FileFaultsError(self.faults)
        self._unread = {(fault.place.line, fault.place.column) for fault in self.faults}
        self._seen: set[tuple[int, int, str]] = set()

    def add_findings(self, findings: Iterable[Finding], where: Callable[[Path], Path] = lambda path: path) -> None:
        """Add findings; `where` gives the path in the document for a finding's path."""
        self._add(
            self.document.fault(where(one.path), one.message, one.hint, key=one.key, warning=one.warning)
            for one in findings
        )

    def add_error(self, error: ValidationError, model: type[BaseModel], where: Callable[[Path], Path]) -> None:
        """Add what a model found wrong."""
        self._add(faults_of(error, self.document, model, where=where))

    def _add(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            place = (fault.place.line, fault.place.column)
            # What could not be read has its fault; a second one would only say what stands in for it.
            if place in self._unread or (*place, fault.message) in self._seen:
                continue
            self._seen.add((*place, fault.message))
            self.faults.append(fault)


class Salvaged(Generic[Model]):
    """A record, or as much of it as is valid, so that the rules across its fields can still be checked.

    Attributes:
        model: the record; faulty fields and list items are left out of it. None when nothing is left.
        error: what was wrong.
        unusable: the fields that are left out.
    """

    def __init__(self, model: type[Model], value: Any, required: Mapping[str, Any]) -> None:
        self.model: Model | None = None
        self.error: ValidationError | None = None
        self.unusable: frozenset[str] = frozenset()
        self._positions: dict[str, list[int]] = {}
        try:
            self.model = model.model_validate(value)
        except ValidationError as error:
            self.error = error
            if isinstance(value, dict):
                self._read_on(model, value, required)

    def where(self, path: Path) -> Path:
        """Return the path in the whole value of what is at `path` in what is left of it."""
        if len(path) > 1 and isinstance(path[0], str) and isinstance(path[1], int) and path[0] in self._positions:
            return (path[0], self._positions[path[0]][path[1]], *path[2:])
        return path

    def _read_on(self, model: type[Model], value: dict[str, Any], required: Mapping[str, Any]) -> None:
        left, unusable = dict(value), set()
        faulty_items: dict[str, set[int]] = {}
        for detail in self.error.errors(include_url=False) if self.error else ():
            field, rest = str(detail["loc"][0]) if detail["loc"] else "", detail["loc"][1:]
            if rest and isinstance(rest[0], int) and isinstance(value.get(field), list):
                faulty_items.setdefault(field, set()).add(rest[0])
            else:
                left.pop(field, None)
                unusable.add(field)
        for field, faulty in faulty_items.items():
            if field in left:
                kept = [at for at in range(len(left[field])) if at not in faulty]
                left[field] = [left[field][at] for at in kept]
                self._positions[field] = kept
                # An empty list would say something else than the list did.
                if not kept:
                    del left[field]
                    unusable.add(field)
        for field, stand_in in required.items():
            if field not in left:
                left[field] = stand_in
                unusable.add(field)
        self.unusable = frozenset(unusable)
        try:
            self.model = model.model_validate(left)
        except ValidationError:
            self.model = None
