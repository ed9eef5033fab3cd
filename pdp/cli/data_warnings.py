"""What is likely a mistake in a data file: the policy reads it as less than was meant, and would not say so."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pdp.cli.output import complain
from pdp.contract.planning import PlanningRule
from pdp.documents import faults_of, read_document
from pdp.manifest.fields import Name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.errors import Fault


class _Open(BaseModel):
    """What it does not name is the application's own."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Corpus(_Open):
    markings: list[str] = []


class _Document(_Corpus):
    corpus: str = ""
    restricted: bool = False


class _Entitled(_Open):
    corpora: list[str] = []
    documents: list[str] = []


class _Directory(_Open):
    corpora: dict[str, _Corpus] = {}
    documents: dict[str, _Document] = {}
    entitlements: dict[str, _Entitled] = {}


class _Planning(BaseModel):
    model_config = ConfigDict(extra="allow")

    planning: dict[Name, PlanningRule] = {}


class _DataFile(BaseModel):
    directory: _Directory = _Directory()


class _PlanningFile(BaseModel):
    directory: _Planning = _Planning()


def tell_data_warnings(paths: "Sequence[Path]", data: "Mapping[str, Any]") -> None:
    """Show on standard error what the policy cannot read in the directory, with its places.

    The policy fails closed on all of it: who is mistyped is entitled to nothing, markings are unreadable, no plan is
    accepted. So these are warnings, and not faults.

    Args:
        paths: the data files, which can be read.
        data: their content, merged. Where nothing is wrong with it, no file is read again for its places.
    """
    if not _errors(data):
        return
    for path in paths:
        if path.is_file():
            for warning in _warnings(path):
                complain(str(warning))


def _errors(value: Any) -> list[tuple[type[BaseModel], ValidationError]]:
    found: list[tuple[type[BaseModel], ValidationError]] = []
    for model in (_DataFile, _PlanningFile):
        try:
            model.model_validate(value)
        except ValidationError as error:
            found.append((model, error))
    return found


def _warnings(path: "Path") -> "Iterator[Fault]":
    document = read_document(path)
    faults = [fault for model, error in _errors(document.value) for fault in faults_of(error, document, model)]
    for fault in sorted(faults, key=lambda each: (each.place.line, each.place.column)):
        yield replace(fault, warning=True)
