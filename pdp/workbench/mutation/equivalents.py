"""Read the mutants that a person has marked as equivalent, which means that no scenario can detect them."""

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
_SHAPE: Final = "write `- {mutant: ID, reason: TEXT}`"
Holds = Literal["always", "loader", "embedded"]
"""Why a mutant is equivalent: by the Rego alone, by checks of the loader or build, or only on the embedded engine."""


class _MarkedMutant(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    mutant: Text
    reason: Text
    holds: Holds = "always"


@dataclass(frozen=True, slots=True)
class Marked:
    """An entry of `mutants.yaml`: the mutant's id, the reason why it is equivalent, and the entry's location."""

    mutant: str
    reason: str
    document: Document
    index: int

    @property
    def file(self) -> str:
        """The name of the file that the mutant changes."""
        return self.mutant.partition(":")[0]

    def fault(self, message: str, hint: str) -> Fault:
        """Return a fault located at the mutant's id in the entry."""
        return self.document.fault((self.index, "mutant"), message, hint)

    def faults(self, judgement: Judgement) -> Iterator[Fault]:
        """Yield a fault if the mutant did not survive, or if it decides a recorded request unlike the original."""
        name = f"`{self.mutant}`"
        if judgement.fate is not Fate.SURVIVED:
            fate = "killed by" if judgement.fate is Fate.KILLED else "invalid:"
            yield self.fault(f"{name} is listed as equivalent, but was {fate} {judgement.by}", "remove this entry")
        elif judgement.unnoticed:
            hint = "expect the difference in a scenario"
            yield self.fault(f"{name} is not equivalent: {different(judgement.unnoticed)}", hint)


def different(count: int) -> str:
    """Return text that says how many recorded requests a mutant decides differently."""
    return f"{count} recorded request{' is' if count == 1 else 's are'} decided differently"


def beside(suites: Iterable[Path]) -> list[Path]:
    """Return every `mutants.yaml` that is in the same folder as one of the scenario files."""
    files = {file.parent.resolve() / _NAME: file.parent / _NAME for file in suites}
    return [file for file in files.values() if file.is_file()]


def read_equivalents(files: Sequence[Path]) -> list[Marked]:
    """Return the entries of `mutants.yaml` files. Raises `FileFaultsError` with the faults of all files."""
    marked: dict[str, Marked] = {}
    faults: list[Fault] = []
    for file in files:
        document = read_document(file)
        if not isinstance(document.value, list):
            faults.append(document.fault((), "must be a list", _SHAPE))
            continue
        for index, value in enumerate(document.value):
            try:
                stated = _MarkedMutant.model_validate(value)
            except ValidationError as error:
                faults += faults_of(error, document, _MarkedMutant, base=(index,))
                continue
            entry = Marked(stated.mutant, stated.reason, document, index)
            if entry.mutant in marked:
                faults.append(entry.fault(f"`{entry.mutant}` is listed twice", "remove one entry"))
            marked[entry.mutant] = entry
    if faults:
        raise FileFaultsError(faults)
    return list(marked.values())
