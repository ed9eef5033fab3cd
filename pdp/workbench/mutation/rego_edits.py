"""Mutants of Rego: a module broken in one place by an edit of its text."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pdp.workbench.mutation.mutant import Identities, RegoMutant, difference
from pdp.workbench.opa.edits import edits
from pdp.workbench.opa.syntax import Node, Source, package_of, parse_modules
from pdp.workbench.opa.tool import OpaTool
from pdp.workbench.reports.shown_file import shown_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.workbench.opa.modules import Module

_DECISION: Final = "data.authz.decision"


def rego_mutants(opa: Path, modules: Mapping[str, Module]) -> list[RegoMutant]:
    """Return the mutants of modules by their places, without those of rules that no decision asks for.

    A mutant whose text is that of another one is left out. Whether one compiles is not known yet.

    Raises:
        FileFaultsError: a module is not Rego.
        UsageError: OPA cannot be run.
    """
    trees = parse_modules(opa, modules)
    with tempfile.TemporaryDirectory(prefix="pdp-mutants-") as folder:
        asked = OpaTool(opa, Path(folder), modules).dependencies(_DECISION)
    return [
        mutant
        for path, module in modules.items()
        for mutant in _of_module(path, module, trees[path])
        if f"data.{mutant.package}.{mutant.owner.split('.')[0]}" in asked
    ]


def _of_module(path: str, module: Module, tree: Node) -> list[RegoMutant]:
    source = Source(Path(shown_file(module.file)), module.text)
    identities = Identities(path)
    mutants: dict[str, RegoMutant] = {}
    for edit in edits(tree, source):
        original = source.text[edit.span[0] : edit.span[1]]
        text = source.changed(edit.span, edit.text)
        # An insertion has no text of its own: the line tells which one it is.
        fields = identities.of(edit.rule, edit.kind, original, edit.text, about=original or source.line(edit.span[0]))
        if text in mutants:
            continue
        mutants[text] = RegoMutant(
            **fields,
            place=source.place(edit.span[0]),
            diff=difference(str(source.file), source.text, text),
            module=path,
            package=package_of(tree),
            text=text,
        )
    return list(mutants.values())
