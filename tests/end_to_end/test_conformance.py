"""docs/conformance.md: every proof that it names is there, every module as well, and its counts are right."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest

from pdp.documents import read_document
from tests.support import ROOT

PAGE = (ROOT / "docs/conformance.md").read_text(encoding="utf-8")


class Statement(NamedTuple):
    """One line of a document's table."""

    number: str
    text: str
    places: str
    proofs: str
    holds: str


def rows(table: str) -> list[list[str]]:
    """The cells of a table's lines, without its head."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@cache
def names_of_tests(file: str) -> frozenset[str]:
    """The names of a file's tests, read and not collected."""
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


def is_there(proof: str) -> bool:
    test, scenario = proof.partition("::"), proof.partition(": ")
    return test[2] in names_of_tests(test[0]) if test[1] else scenario[2] in scenario_names(scenario[0])


def faults(page: str) -> Iterator[str]:
    """What is wrong with the page: one line for each."""
    head, *sections = page.split("\n## ")
    tables = {title: rows(table) for title, _, table in (section.partition("\n") for section in sections)}
    counted = []
    for cells in rows(head)[:-1]:
        document = re.sub(r"^\[(.*)\]\(.*\)$", r"\1", cells[0])
        statements = [Statement(*line) for line in tables[document]]
        in_part = [statement for statement in statements if not statement.holds.startswith("in full")]
        counted.append([len(statements), len(statements) - len(in_part), len(in_part)])
        if cells[1:] != [str(count) for count in counted[-1]]:
            yield f"{document}: the head has {cells[1:]}, the table {counted[-1]}"
        if [statement.number for statement in statements] != [str(number + 1) for number in range(len(statements))]:
            yield f"{document}: its statements are not numbered from 1"
        for statement in statements:
            yield from (f"{document} {statement.number}: {fault}" for fault in faults_of(statement))
    if rows(head)[-1][1:] != [str(sum(counts)) for counts in zip(*counted, strict=True)]:
        yield "all: not the sum of the documents"


def faults_of(statement: Statement) -> Iterator[str]:
    places, proofs = (re.findall("`(.*?)`", cell) for cell in (statement.places, statement.proofs))
    if not places:
        yield "no place"
    yield from (f"{place} is not there" for place in places if not (ROOT / place).exists())
    yield from (f"{proof} is not there" for proof in proofs if not is_there(proof))
    holds, _, reason = statement.holds.partition(":")
    if holds not in ("in full", "in part"):
        yield f"neither in full nor in part: {holds}"
    if holds == "in full" and not proofs:
        yield "in full, without a proof"
    if holds == "in part" and not reason.strip():
        yield "in part, without a reason"


def test_every_proof_is_there_and_every_count_right() -> None:
    assert list(faults(PAGE)) == []
    assert [cells[1] for cells in rows(PAGE.partition("\n## ")[0])] == ["61", "30", "21", "37", "21", "170"]


PROOF = "tests/manifest/test_load.py::test_the_registry_record_loads_as_printed"


@pytest.mark.parametrize(
    ("text", "instead", "fault"),
    [
        (PROOF, f"{PROOF}_", f"{PROOF}_ is not there"),
        (PROOF, f"tests/none.py{PROOF[28:]}", f"tests/none.py{PROOF[28:]} is not there"),
        (": a quote is a draft`", ": no scenario`", "examples/underwriting/scenarios.yaml: no scenario is not there"),
        (
            "`examples/underwriting/scenarios.yaml: a quote",
            "`none.yaml: a quote",
            "none.yaml: a quote is a draft is not",
        ),
        ("`pdp/manifest/exports.py`", "`pdp/manifest/export.py`", "pdp/manifest/export.py is not there"),
        ("`pdp/manifest/exports.py`", "", "Tool registry 3: no place"),
        ("| 7 |", "| 8 |", "Tool registry: its statements are not numbered from 1"),
        ("| in full |", "| in part:  |", "Tool registry 2: in part, without a reason"),
        ("| in full |", "| mostly |", "Tool registry 2: neither in full nor in part: mostly"),
        ("| in full |", "| in part: a reason |", "Tool registry: the head has"),
        ("| 170 |", "| 171 |", "all: not the sum of the documents"),
        (f"`{PROOF}`", "none", "in full, without a proof"),
    ],
)
def test_what_is_wrong_is_said(text: str, instead: str, fault: str) -> None:
    assert text in PAGE
    changed = PAGE.replace(text, instead)

    assert [line for line in faults(changed) if fault in line] != []
