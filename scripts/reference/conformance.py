"""The page that compares the project with its five documents, from docs/reference/conformance.yaml."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pdp.documents import faults_of, read_document
from pdp.errors import FileFaultsError
from scripts.reference.markdown import ROOT, escaped, page, source, table

DATA: Final = ROOT / "docs/reference/conformance.yaml"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Row(_Record):
    """One statement of a document: a quote, and its proofs."""

    number: int
    section: str | None = None
    line: int
    says: Annotated[str, Field(max_length=160)]
    means: str | None = None
    holds: Literal["full", "part"]
    condition: str | None = None
    missing: str | None = None
    proofs: Annotated[list[str], Field(min_length=1)]
    modules: Annotated[list[str], Field(min_length=1)]


class SourceDocument(_Record):
    """One of the documents, with its statements in their order."""

    title: str
    file: str
    rows: list[Row]

    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of statements: all, fully met, partly met."""
        full = sum(row.holds == "full" for row in self.rows)
        return len(self.rows), full, len(self.rows) - full


class Conformance(_Record):
    """The data file: the documents, and the text around their tables."""

    introduction: str
    documents: list[SourceDocument]
    closing: str


def read(path: Path = DATA) -> Conformance:
    """Return the data file; FileFaultsError names each fault."""
    document = read_document(path)
    try:
        return Conformance.model_validate(document.value)
    except ValidationError as error:
        raise FileFaultsError(faults_of(error, document, Conformance)) from error


def pages() -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of the page."""
    yield "conformance.md", conformance_page(read())


def conformance_page(conformance: Conformance) -> str:
    """Return the page of all documents."""
    counts = [document.counts() for document in conformance.documents]
    names = [f"[{one.title}](#{one.title.lower().replace(' ', '-')})" for one in conformance.documents]
    totals = [sum(numbers) for numbers in zip(*counts, strict=True)]
    summary = [[name, *numbers] for name, numbers in zip([*names, "all"], [*counts, totals], strict=True)]
    return page(
        "Conformance",
        conformance.introduction,
        table(("document", "statements", "in full", "in part"), summary),
        *(_section(document) for document in conformance.documents),
        conformance.closing,
    )


def _section(document: SourceDocument) -> str:
    head = ("", "statement", "holds", "proofs and code")
    return f"## {document.title}\n\n" + table(head, [_cells(row) for row in document.rows])


def _cells(row: Row) -> tuple[object, ...]:
    place = f"{row.section}, line {row.line}" if row.section else f"line {row.line}"
    missing = row.missing and f"Missing: {row.missing}"
    links = [source(proof.partition("::")[0].partition(": ")[0], text=proof) for proof in row.proofs]
    return (
        row.number,
        "<br>".join(part for part in (f"“{escaped(row.says)}”", f"({place})", row.means) if part),
        "<br>".join(part for part in (f"in {row.holds}", row.condition, missing) if part),
        "<br>".join([*links, *map(source, row.modules)]),
    )
