"""What is wrong in one file: findings of the rules and of models, which become faults with places."""

import pathlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_snake

from pdp.documents import faults_of, read_document
from pdp.documents.document import Path
from pdp.errors import Fault, FileFaultsError

Model = TypeVar("Model", bound=BaseModel)

FROM_FILE: Final = {"from_file": True}
"""The validation context of what a file states: there, null is not absent."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong at one path of a manifest or governance file.

    `key`: the key at the end of the path is meant, not its value. `warning`: legal, yet likely a mistake. `rule`: what
    the governance file may accept it by (`accepts`).
    """

    path: Path
    message: str
    hint: str | None = None
    warning: bool = False
    key: bool = False
    rule: str | None = None


class FaultyFile:
    """One file that is being loaded: its document, and the faults and warnings found so far.

    UsageError: the file cannot be read. FileFaultsError: its value is not a mapping, or cannot be read to its end.
    """

    def __init__(self, path: pathlib.Path | str, text: bytes | None, kind: str) -> None:
        self.faults: list[Fault] = []
        self.document = read_document(path, text=text, faults=self.faults)
        if not isinstance(self.document.value, dict):
            self.faults.append(
                self.document.fault((), f"a {kind} must be a mapping", "check that it is the right file")
            )
            raise FileFaultsError(self.faults)
        self._unread = {(fault.place.line, fault.place.column) for fault in self.faults}
        self._seen: set[tuple[int, int, str]] = set()

    def add_findings(self, findings: Iterable[Finding], where: Callable[[Path], Path] = lambda path: path) -> None:
        """Add findings; `where` gives the path in the document for a finding's path."""
        self._add(
            self.document.fault(
                where(finding.path), finding.message, finding.hint, key=finding.key, warning=finding.warning
            )
            for finding in findings
        )

    def read(
        self, model: type[Model], value: Any, where: Callable[[Path], Path], stand_ins: Mapping[str, Any] | None = None
    ) -> tuple[Model | None, frozenset[str]]:
        """Return as much of a record as is valid, so that its rules can still be checked, and its faulty fields.

        `where` gives the path in the document for a path in the record; `stand_ins` stand for required fields that are
        faulty or absent. The record is None when nothing is left of it.
        """
        try:
            return model.model_validate(value, context=FROM_FILE), frozenset()
        except ValidationError as error:
            self.add_error(error, model, where)
            faulty = {str(detail["loc"][0]) for detail in error.errors(include_url=False) if detail["loc"]}
        if not isinstance(value, dict):
            return None, frozenset()
        left = {name: part for name, part in value.items() if name not in faulty}
        absent = {name: part for name, part in (stand_ins or {}).items() if name not in left}
        unusable = frozenset(to_snake(name) for name in (*faulty, *absent))
        try:
            return model.model_validate({**left, **absent}, context=FROM_FILE), unusable
        except ValidationError:
            return None, unusable

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
