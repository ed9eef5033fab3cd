"""Mutants of Rego: each edit of each module, as a mutant with its place and its diff."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pdp.workbench.mutation.asked import package_of
from pdp.workbench.mutation.mutant import Identities, RegoMutant, difference
from pdp.workbench.mutation.rego_edits import edits
from pdp.workbench.opa.syntax import Source
from pdp.workbench.reports.shown_file import shown_file

if TYPE_CHECKING:
    from pdp.workbench.opa.modules import Module
    from pdp.workbench.opa.syntax import Node


def rego_mutants(path: str, module: Module, tree: Node) -> list[RegoMutant]:
    """Return the mutants of a module, in the order of their places.

    A mutant whose text is that of another one is left out. Whether one compiles is not known yet.

    Args:
        path: its own in the bundle.
        module: the text.
        tree: of that text.
    """
    source = Source(Path(shown_file(module.file)), module.text)
    identities = Identities(path)
    found: dict[str, RegoMutant] = {}
    for edit in edits(tree, source):
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
            diff=difference(str(source.file), source.text, text),
            module=path,
            package=package_of(tree),
            text=text,
            lines=None
            if edit.within is None
            else (source.place(edit.within[0]).line, source.place(edit.within[1]).line),
        )
    return list(found.values())
