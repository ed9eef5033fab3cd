"""Reading the files that commands are given, each fault with its place."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError, model_validator

from pdp.audit.chain import MemoryAudit
from pdp.audit.file import FileAudit
from pdp.cli.output import complain
from pdp.documents import FieldError, faults_of, read_document
from pdp.errors import AuditError, FileFaultsError, UsageError
from pdp.json import MAX_BYTES
from pdp.manifest.fields import Name, Term, Text
from pdp.manifest.load import load_effective
from pdp.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdp.audit.chain import AuditLog
    from pdp.errors import Fault
    from pdp.manifest.effective import EffectiveManifest

STANDARD_INPUT: Final = "-"
"""The name by which standard input is given instead of a file."""


def check_standard_input(*names: Path | str | None) -> None:
    """Check that standard input can serve for those of a command's files that are named `-`.

    Raises:
        UsageError: more than one of them is, or it is closed.
    """
    asked = sum(str(name) == STANDARD_INPUT for name in names)
    if asked > 1:
        raise UsageError(f"standard input (-) is named {asked} times", hint="only one file can come from it")
    if asked and sys.stdin is None:
        raise UsageError("standard input (-) is closed", hint="name a file, or pipe one in")


def read_rules(manifest: Path, governance: Path | None) -> "EffectiveManifest":
    """Read both files, and tell on standard error what is likely a mistake in the governance file.

    Such a mistake decides, in silence: rules for a misspelt action are rules for none. What the manifest could say
    better is for `pdp manifest lint`.

    Raises:
        UsageError: a file is missing or faulty.
    """
    warnings: list[Fault] = []
    effective = load_effective(manifest, governance, warnings=warnings)
    for warning in warnings:
        if warning.place.file == str(governance):
            complain(str(warning))
    return effective


def read_session(path: Path) -> Session:
    """Read a session file.

    Raises:
        UsageError: the file is missing or faulty.
    """
    document = read_document(path)
    try:
        return Session.model_validate(document.value)
    except ValidationError as error:
        raise FileFaultsError(faults_of(error, document, Session)) from None


def read_proposal(name: str) -> bytes:
    """Return the bytes of a proposal, from a file or, for `-`, from standard input. What they say is the PEP's matter.

    Raises:
        UsageError: the file is missing, a folder or not readable.
    """
    # One byte more than is admitted is enough to know that it is too large.
    if name == STANDARD_INPUT:
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        with Path(name).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{name}: cannot be read: {error.strerror}", hint="name a file with a proposal, or -"
        ) from None


def open_audit(path: Path | None) -> "AuditLog":
    """Open the audit file, or a stream in memory when there is none.

    Raises:
        UsageError: the file cannot be opened or continued.
    """
    if path is None:
        return MemoryAudit()
    try:
        return FileAudit(path)
    except AuditError as error:
        raise UsageError(error.message, hint=error.hint) from None


class _Open(BaseModel):
    """A part of the directory; keys that it does not name are the application's own."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Corpus(_Open):
    markings: list[str] = []


class _Document(_Corpus):
    corpus: str = ""
    restricted: bool = False


class _Entitled(_Open):
    corpora: list[str] = []
    documents: list[str] = []


class _PlanningRule(BaseModel):
    """A rule about which tools a plan has together, how often, or in which order (docs/contracts.md)."""

    model_config = ConfigDict(extra="forbid")

    rule: Text | None = None
    purposes: Annotated[tuple[Term, ...], Field(min_length=1)] | None = None
    requires: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    tool: Name | None = None
    at_most: Annotated[StrictInt, Field(ge=0, le=1000)] | None = None
    only_after: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _of_one_form(self) -> "_PlanningRule":
        stated = {name for name in ("requires", "tool", "at_most", "only_after") if getattr(self, name) is not None}
        if stated not in ({"requires"}, {"tool", "at_most"}, {"tool", "only_after"}):
            forms = "write one of `requires: [...]`, `tool` with `at_most`, `tool` with `only_after: [...]`"
            raise FieldError("is not a planning rule", forms)
        return self


class _Directory(_Open):
    corpora: dict[str, _Corpus] = {}
    documents: dict[str, _Document] = {}
    entitlements: dict[str, _Entitled] = {}
    planning: dict[Name, _PlanningRule] = {}


class _DataFile(BaseModel):
    directory: _Directory = _Directory()


def warn_of_data(paths: "Sequence[Path]", data: "Mapping[str, Any]") -> None:
    """Show on standard error what the policy cannot read in the directory, with its places.

    The policy fails closed on all of it: who is mistyped is entitled to nothing, markings are unreadable, no plan is
    accepted. So these are warnings, and not faults.

    Args:
        paths: the data files, which can be read.
        data: their content, merged. Where nothing is wrong with it, no file is read again for its places.
    """
    if _data_error(data) is None:
        return
    for path in paths:
        if not path.is_file():
            continue
        document = read_document(path)
        error = _data_error(document.value)
        for fault in [] if error is None else faults_of(error, document, _DataFile):
            complain(str(replace(fault, warning=True)))


def _data_error(value: Any) -> ValidationError | None:
    try:
        _DataFile.model_validate(value)
    except ValidationError as error:
        return error
    return None
