"""Mutants of Rego: each edit of each module, as a mutant with its place and its diff."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pdp.harness.mutation.mutant import Identities, RegoMutant, difference
from pdp.harness.mutation.rego_edits import edits
from pdp.harness.mutation.syntax import Source
from pdp.rego.opa_tool import OpaTool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdp.rego.modules import Module


def rego_mutants(opa: Path, modules: Mapping[str, Module], wanted: Callable[[Module], bool]) -> list[RegoMutant]:
    """Return the mutants of the modules that are `wanted`, in the order of their places.

    A mutant whose text is that of another one is left out. Whether one compiles is not known yet.

    Raises:
        FileFaultsError: a module that is not Rego.
        UsageError: OPA cannot be run.
    """
    found: list[RegoMutant] = []
    with tempfile.TemporaryDirectory(prefix="pdp-mutants-") as temporary:
        folder = Path(temporary)
        tool = OpaTool(opa, folder, sources={path: module.file for path, module in modules.items()})
        for path, module in modules.items():
            if not wanted(module):
                continue
            staged = folder / path
            staged.parent.mkdir(parents=True, exist_ok=True)
            staged.write_text(module.text, encoding="utf-8", newline="\n")
            found += _of_module(path, module, Source(module.file, module.text), tool)
    return found


def _of_module(path: str, module: Module, source: Source, tool: OpaTool) -> list[RegoMutant]:
    identities = Identities(path)
    found: dict[str, RegoMutant] = {}
    for edit in edits(tool.parse(path), source):
        original = source.text[edit.span[0] : edit.span[1]]
        text = source.changed(edit.span, edit.text)
        # An insertion has no text of its own: the line tells which one it is.
        about = original or source.line(edit.span[0])
        identity = identities.of(edit.rule, edit.kind, about, edit.text)
        if text in found:
            continue
        found[text] = RegoMutant(
            id=identity,
            kind=edit.kind,
            owner=edit.rule,
            place=source.place(edit.span[0]),
            original=original,
            changed=edit.text,
            diff=difference(str(module.file), source.text, text),
            module=path,
            text=text,
            lines=None
            if edit.within is None
            else (source.place(edit.within[0]).line, source.place(edit.within[1]).line),
        )
    return list(found.values())
