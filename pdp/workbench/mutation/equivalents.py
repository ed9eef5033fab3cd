"""Mutants that a person has marked as equivalent: they change nothing that any scenario could notice."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pdp.documents import Document, faults_of, read_document
from pdp.errors import Fault, FileFaultsError
from pdp.manifest.fields import Text
from pdp.workbench.mutation.mutant import Fate, Judgement

_NAME: Final = "mutants.yaml"
_SHAPE: Final = "write `- {mutant: ID, reason: why nothing can notice it}`"
Holds = Literal["always", "loader", "embedded"]
"""Where a mutant is equivalent: by the Rego itself, by what loading or the build refuses, or on the embedded engine."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    mutant: Text
    reason: Text
    holds: Holds = "always"


@dataclass(frozen=True, slots=True)
class Marked:
    """One entry: the mutant's id, why it is equivalent, and where that is written."""

    mutant: str
    reason: str
    document: Document
    index: int

    @property
    def file(self) -> str:
        """The file in which its mutant is made."""
        return self.mutant.partition(":")[0]

    def fault(self, message: str, hint: str) -> Fault:
        """Return a fault at the entry's mutant."""
        return self.document.fault((self.index, "mutant"), message, hint)

    def faults(self, judgement: Judgement) -> Iterator[Fault]:
        """Yield what speaks against this entry: its mutant has to survive, and nothing may be decided differently."""
        name = f"`{self.mutant}`"
        if judgement.fate is not Fate.SURVIVED:
            fate = "killed by" if judgement.fate is Fate.KILLED else "no mutant:"
            yield self.fault(f"{name} is not equivalent but {fate} {judgement.by}", "take this entry out")
        elif judgement.unnoticed:
            yield self.fault(f"{name} is not equivalent: {different(judgement.unnoticed)}", "expect what differs")


def different(count: int) -> str:
    """Say how many recorded requests a mutant decides differently."""
    return f"{count} recorded request{' is' if count == 1 else 's are'} decided differently"


def beside(suites: Iterable[Path]) -> list[Path]:
    """Return the `mutants.yaml` beside scenario files, each once."""
    files = {file.parent.resolve() / _NAME: file.parent / _NAME for file in suites}
    return [file for file in files.values() if file.is_file()]


def read_equivalents(files: Sequence[Path]) -> list[Marked]:
    """Read the entries of files.

    UsageError: a file cannot be read. FileFaultsError: a file is faulty; every fault of all of them.
    """
    marked: dict[str, Marked] = {}
    faults: list[Fault] = []
    for file in files:
        document = read_document(file)
        if not isinstance(document.value, list):
            faults.append(document.fault((), "must be a list", _SHAPE))
            continue
        for index, value in enumerate(document.value):
            try:
                stated = _Entry.model_validate(value)
            except ValidationError as error:
                faults += faults_of(error, document, _Entry, base=(index,))
                continue
            entry = Marked(stated.mutant, stated.reason, document, index)
            if entry.mutant in marked:
                faults.append(entry.fault(f"`{entry.mutant}` stands twice", "take one of them out"))
            marked[entry.mutant] = entry
    if faults:
        raise FileFaultsError(faults)
    return list(marked.values())
