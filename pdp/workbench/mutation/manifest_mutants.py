"""Mutants of an effective manifest: each weakening of each entry, and the pins taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from pdp.manifest.effective import made_of
from pdp.workbench.mutation.manifest_edits import Weakening, weakenings
from pdp.workbench.mutation.mutant import Identities, ManifestMutant, difference, file_name

if TYPE_CHECKING:
    from pdp.manifest.effective import EffectiveManifest
    from pdp.manifest.model import Tool
    from pdp.workbench.mutation.stated_files import StatedFiles


def manifest_mutants(manifest: EffectiveManifest, files: StatedFiles) -> list[ManifestMutant]:
    """Return the mutants of an effective manifest, none twice.

    Args:
        manifest: what manifest and governance file state together.
        files: both, for places.
    """
    identities = Identities(file_name(files.manifest))
    agents = manifest.document.get("agents")
    found: dict[str, ManifestMutant] = {}
    for tool in manifest.tools.values():
        before = _written(tool)
        for weakening in weakenings(tool):
            tools = {**manifest.tools, tool.name: weakening.tool}
            changed = made_of(manifest.version, tools, agents=agents)
            if changed.digest == manifest.digest:
                continue
            identity = identities.of(tool.name, weakening.kind, _named(weakening), weakening.changed)
            found.setdefault(
                changed.digest,
                ManifestMutant(
                    id=identity,
                    kind=weakening.kind,
                    owner=tool.name,
                    place=files.place_of(tool.name, tool.pdp_action, weakening.path),
                    original=weakening.original,
                    changed=weakening.changed,
                    diff=difference(f"{files.manifest}, {tool.name} in effect", before, _written(weakening.tool)),
                    manifest=changed,
                    tool=tool.name,
                ),
            )
    mutants = list(found.values())
    if agents is not None:
        mutants.append(_unpinned(manifest, agents, files, identities))
    return mutants


def _unpinned(
    manifest: EffectiveManifest, agents: dict[str, Any], files: StatedFiles, identities: Identities
) -> ManifestMutant:
    before = yaml.safe_dump({"agents": agents}, sort_keys=False)
    return ManifestMutant(
        id=identities.of("agents", "pins removed", before, ""),
        kind="pins removed",
        owner="agents",
        place=files.place(("agents",)),
        original=before,
        changed="",
        diff=difference(str(files.manifest), before, ""),
        manifest=made_of(manifest.version, manifest.tools, agents=None),
        tool=None,
    )


def _named(weakening: Weakening) -> str:
    """The way there without positions, which change with edits elsewhere, and what stood there."""
    way = ".".join(step for step in weakening.path if isinstance(step, str))
    return f"{way} {weakening.original}"


def _written(tool: Tool) -> str:
    entry = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    return yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=100)
