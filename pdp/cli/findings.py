"""Faults in the formats of CI: workflow commands of GitHub, and SARIF 2.1.0."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import typer

from pdp import __version__
from pdp.cli import Exit
from pdp.cli.options import CiFormat
from pdp.cli.output import print_json, print_line
from pdp.errors import Fault, FileFaultsError
from pdp.installed import code_url, documentation_url

_RULE: Final = re.compile(r"\((not_a_tool\.[a-z_]+)\)")
SCENARIO: Final = "pdp.scenario_failed"


@contextmanager
def reported(form: CiFormat) -> Iterator[list[tuple[str, Fault]]]:
    """Print the faults that the block adds or raises, each with its code. In SARIF, nothing else is printed."""
    found: list[tuple[str, Fault]] = []
    try:
        yield found
    except FileFaultsError as error:
        _print_findings(form, [*found, *coded(error.faults)])
        if form == "sarif":
            raise typer.Exit(Exit.USAGE) from None
        raise
    _print_findings(form, found)


def coded(faults: Sequence[Fault]) -> list[tuple[str, Fault]]:
    """Return faults with their codes."""
    rules = [_RULE.search(fault.message) for fault in faults]
    return [(rule[1] if rule else FileFaultsError.code, fault) for rule, fault in zip(rules, faults, strict=True)]


def _print_findings(form: CiFormat, found: Sequence[tuple[str, Fault]]) -> None:
    if form == "sarif":
        print_json(_sarif(found))
    for code, fault in found if form == "github" else ():
        at = fault.place
        level = "warning" if fault.warning else "error"
        names = {"file": _path(at.file), "line": at.line, "col": at.column, "title": code}
        properties = ",".join(f"{name}={_escaped(str(value), '%:,')}" for name, value in names.items())
        print_line(f"::{level} {properties}::{_escaped(_text(fault), '%')}")


def _escaped(text: str, special: str) -> str:
    return "".join(f"%{ord(letter):02X}" if letter in special + "\r\n" else letter for letter in text)


def _text(fault: Fault) -> str:
    return f"{fault.message}\nhint: {fault.hint}" if fault.hint else fault.message


def _path(file: str) -> str:
    """Return a path relative to the repository, as GitHub expects it."""
    return os.path.relpath(file, os.environ.get("GITHUB_WORKSPACE") or None)


def _sarif(found: Sequence[tuple[str, Fault]]) -> object:
    codes = sorted({code for code, _ in found})
    results = [
        {
            "ruleId": code,
            "level": "warning" if fault.warning else "error",
            "message": {"text": _text(fault)},
            "locations": [{"physicalLocation": {
                "artifactLocation": {"uri": quote(Path(_path(fault.place.file)).as_posix())},
                "region": {"startLine": fault.place.line, "startColumn": fault.place.column},
            }}],
        }
        for code, fault in found
    ]  # fmt: skip
    rules = [{"id": code, "helpUri": code_url(code)} for code in codes]
    driver = {"name": "pdp", "version": __version__, "informationUri": documentation_url(), "rules": rules}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return {"$schema": schema, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
