"""`pdp release`: whether a bundle may go out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdp.cli import Exit
from pdp.cli.output import print_json, printable, tell, write_report
from pdp.documents import nearest
from pdp.errors import UsageError
from pdp.workbench.gate.explanations import read_explanations
from pdp.workbench.gate.gate import NAMES, Gate, release_check
from pdp.workbench.gate.report import junit, lines, summary
from pdp.workbench.scenarios.files.suite import find_suites, load_suites

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pdp.workbench.gate.outcome import Check


def check(
    paths: Sequence[Path],
    *,
    bundle: Path,
    last: Path | None,
    explanations: Path | None,
    coverage: float | None,
    mutation: float | None,
    packs: Sequence[Path],
    audit: Sequence[Path],
    skip: Sequence[str],
    grid: int,
    junit_file: Path | None,
    as_json: bool,
) -> int:
    """Make every check of the release gate, a line each, and return the exit code.

    Raises:
        UsageError: options or files that cannot be used.
        BundleError: a bundle that cannot be used.
        EngineError: no room for an engine.
    """
    for name in skip:
        if name not in NAMES:
            hint = nearest(name, NAMES) or f"the checks are {', '.join(NAMES)}"
            raise UsageError(f"--skip {printable(name)}: no check of that name", hint=hint)
    if explanations is not None and last is None:
        raise UsageError("--explanations says nothing without --last", hint="name the bundle of the last release")
    gate = Gate(
        bundle=bundle,
        suites=load_suites(find_suites(paths)),
        last=last,
        explanations=read_explanations(explanations) if explanations is not None else (),
        coverage=coverage,
        mutation=mutation,
        packs=packs,
        audit=audit,
        skip=frozenset(skip),
        grid=grid,
    )
    found = release_check(gate, None if as_json else _tell)
    if junit_file is not None:
        write_report(junit_file, junit(found))
    if as_json:
        print_json(found.as_json())
    else:
        tell(summary(found))
    return Exit.OK if found.passed else Exit.FAILED


def _tell(one: Check) -> None:
    for line in lines(one):
        tell(printable(line))
