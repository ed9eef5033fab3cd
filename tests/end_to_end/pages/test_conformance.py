"""The quotes, tests and modules in every row of docs/reference/conformance.yaml exist."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from pydantic import ValidationError

from pdp.documents import read_document
from pdp.manifest.load import load_manifest
from scripts.reference.conformance import Conformance, Row, SourceDocument, read
from tests.support import ROOT

CONFORMANCE = read()
SEEDS = ROOT.parent / "shared/seeds"
DOCUMENTS = {document.title: document for document in CONFORMANCE.documents}


def text_of(document: SourceDocument) -> str:
    """Return the text of a document. Skip the test if the documents are not in the folder next to the repository."""
    file = SEEDS / document.file
    if not file.is_file():
        pytest.skip("the five documents are not part of the repository: put them into ../shared/seeds")
    return file.read_text(encoding="utf-8")


@cache
def names_of_tests(file: str) -> frozenset[str]:
    path = ROOT / file
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_bytes() if path.is_file() else b"")
    return frozenset(node.name for node in tree.body if isinstance(node, functions) and node.name.startswith("test_"))


@cache
def scenario_names(file: str) -> frozenset[str]:
    path = ROOT / file
    return frozenset(
        scenario["name"] for scenario in (read_document(path).value["scenarios"] if path.is_file() else ())
    )


def exists(proof: str) -> bool:
    test, scenario = proof.partition("::"), proof.partition(": ")
    return test[2] in names_of_tests(test[0]) if test[1] else scenario[2] in scenario_names(scenario[0])


def faults(row: Row) -> Iterator[str]:
    yield from (f"{path} does not exist" for path in row.modules if not (ROOT / path).exists())
    yield from (f"{proof} does not exist" for proof in row.proofs if not exists(proof))
    if (row.holds == "part") != bool(row.missing):
        yield f"in {row.holds}, and `missing` is {row.missing!r}"


def quote_fault(row: Row, text: str) -> str | None:
    """Return the fault if the document lacks the quote at the stated line, or None. White space is ignored."""
    lines = text.splitlines()[row.line - 1 :]
    first, rest = (" ".join("\n".join(part).split()) for part in (lines[:1], lines))
    at, latest = 0, len(first)
    for part in row.says.split("…"):
        words = " ".join(part.split())
        at = rest.find(words, at)
        if not 0 <= at <= latest:
            return f"not in the document from line {row.line} on: {words}"
        at, latest = at + len(words), len(rest)
    return None


@pytest.mark.parametrize("title", DOCUMENTS)
def test_each_conformance_row_has_a_number_tests_and_modules(title: str) -> None:
    rows = DOCUMENTS[title].rows

    assert [f"{row.number}: {fault}" for row in rows for fault in faults(row)] == []
    assert [row.number for row in rows] == [*range(1, len(rows) + 1)]


def test_each_specification_document_has_all_expected_conformance_rows() -> None:
    assert [len(document.rows) for document in CONFORMANCE.documents] == [61, 30, 21, 37, 21]


@pytest.mark.parametrize("title", DOCUMENTS)
def test_each_conformance_quote_is_in_its_document_at_the_stated_line(title: str) -> None:
    text = text_of(DOCUMENTS[title])

    assert [f"{row.number}: {fault}" for row in DOCUMENTS[title].rows if (fault := quote_fault(row, text))] == []


def test_manifest_in_the_registry_document_loads_and_equals_the_example() -> None:
    """Only the names of the test packs differ between the example and the document."""
    lines = text_of(DOCUMENTS["Tool registry"]).splitlines()
    printed = "\n".join(lines[lines.index("{") : lines.index("Manifest → LLM → PEP")])
    example = json.loads((ROOT / "examples/payments/manifest.json").read_bytes())
    packs = [tool.pop("eval_pack") for tool in example["tools"]]
    manifest = load_manifest("manifest.json", manifest_text=printed.encode())

    assert json.loads(printed) == example
    assert packs == [f"pack.tool.{tool.name}" for tool in manifest.tools]


def test_memory_example_has_the_tools_that_its_specification_document_lists() -> None:
    surface = text_of(DOCUMENTS["Tool boundary"]).partition("- Initial tool surface:")[2].partition("- Validation")[0]
    example = load_manifest(ROOT / "examples/memory/manifest.yaml")

    assert re.findall("`(.*)`", surface) == [tool.name for tool in example.tools]


PROOF = "tests/manifest/test_load.py::test_tool_record_printed_in_the_registry_document_loads"
SCENARIO = "examples/underwriting/scenarios.yaml: a quote is a draft"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"proofs": [PROOF, SCENARIO]}, []),
        ({"proofs": [f"{PROOF}_", f"tests/none.py{PROOF[28:]}"]}, [f"{PROOF}_", f"tests/none.py{PROOF[28:]}"]),
        ({"proofs": [f"{SCENARIO}s", "none.yaml: a quote is a draft"]}, [f"{SCENARIO}s", "none.yaml: a quote"]),
        ({"modules": ["pdp/manifest/export.py"]}, ["pdp/manifest/export.py does not exist"]),
        ({"holds": "part"}, ["in part, and `missing` is None"]),
        ({"missing": "a reason"}, ["in full, and `missing` is 'a reason'"]),
    ],
)
def test_conformance_check_reports_each_fault_in_a_row(changes: dict[str, Any], expected: list[str]) -> None:
    row = DOCUMENTS["Tool registry"].rows[0].model_copy(update=changes)

    found = list(faults(row))
    assert len(found) == len(expected)
    assert all(fault.startswith(start) for fault, start in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("line", "says", "found"),
    [
        (1, "Tools are typed. … audited", True),
        (1, "Tools are  typed. Every call is", True),
        (1, "Every call", False),
        (2, "Every call is … audited", True),
        (2, "Tools are typed.", False),
        (1, "are typed … Tools", False),
        (1, "Tools are audited", False),
    ],
)
def test_conformance_check_rejects_a_quote_that_the_stated_document_line_does_not_contain(
    line: int, says: str, found: bool
) -> None:
    row = DOCUMENTS["Tool registry"].rows[0].model_copy(update={"line": line, "says": says})

    assert (quote_fault(row, "Tools are typed.\nEvery call\nis logged and audited.") is None) == found


@pytest.mark.parametrize("changes", [{"holds": "mostly"}, {"says": "x" * 161}, {"proofs": []}, {"proof": ["x"]}])
def test_malformed_conformance_row_is_rejected(changes: dict[str, Any]) -> None:
    row = {**DOCUMENTS["Tool registry"].rows[0].model_dump(), **changes}
    document = {"title": "A", "file": "a.txt", "rows": [row]}

    with pytest.raises(ValidationError):
        Conformance.model_validate({"introduction": "", "documents": [document], "closing": ""})
