"""Write docs/conformance.md from docs/conformance.yaml. Run it as `scripts/conformance`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pdp.documents import faults_of, read_document
from pdp.errors import FileFaultsError

ROOT: Final = Path(__file__).resolve().parents[1]
DATA: Final = ROOT / "docs/conformance.yaml"
PAGE: Final = ROOT / "docs/conformance.md"


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


def page(conformance: Conformance) -> str:
    """Return the text of docs/conformance.md."""
    counts = [document.counts() for document in conformance.documents]
    names = [f"[{one.title}](#{one.title.lower().replace(' ', '-')})" for one in conformance.documents]
    totals = [sum(numbers) for numbers in zip(*counts, strict=True)]
    summary = [[name, *numbers] for name, numbers in zip([*names, "all"], [*counts, totals], strict=True)]
    parts = [
        conformance.introduction,
        _table(("document", "statements", "in full", "in part"), summary),
        *(_section(document) for document in conformance.documents),
        conformance.closing,
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _section(document: SourceDocument) -> str:
    head = ("", "the document says", "holds", "condition, or missing part", "proof", "code")
    return f"## {document.title}\n\n" + _table(head, [_cells(row) for row in document.rows])


def _cells(row: Row) -> tuple[object, ...]:
    place = f"{row.section}, line {row.line}" if row.section else f"line {row.line}"
    quote = row.says.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    return (
        row.number,
        "<br>".join(part for part in (f"“{quote}”", f"({place})", row.means) if part),
        f"in {row.holds}",
        "<br>".join(part for part in (row.condition, row.missing and f"Missing: {row.missing}") if part),
        "<br>".join(f"[`{proof}`](../{_file(proof)})" for proof in row.proofs),
        "<br>".join(f"[`{module}`](../{module})" for module in row.modules),
    )


def _file(proof: str) -> str:
    return proof.partition("::")[0].partition(": ")[0]


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines: list[Sequence[object]] = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def main(arguments: list[str] | None = None) -> int:
    """Write the page; with `--check`, return 1 if the page differs from the data file."""
    options = argparse.ArgumentParser(prog="scripts/conformance", description="Writes docs/conformance.md.")
    options.add_argument("--check", action="store_true", help="change nothing: compare")
    check = options.parse_args(arguments).check
    try:
        text = page(read())
    except FileFaultsError as error:
        print(error.message, file=sys.stderr)
        return 2
    if not check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        print("docs/conformance.md is not what docs/conformance.yaml gives: run scripts/conformance", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
