"""`pdp bundle inspect`: what is in a bundle, for people and as JSON."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from pdp.cli import Exit
from pdp.cli.bundle_keys import given_public_keys
from pdp.cli.output import print_json, printable, tell
from pdp.engine.bundle.file import read_bundle
from pdp.workbench.bundles.inspect import inspect_bundle

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pdp.workbench.bundles.inspect import ConcernSummary, Inspection, ManifestSummary


def inspect(file: Path, *, keys: Sequence[Path], as_json: bool) -> int:
    """Show what is in a bundle; with keys, its signature is verified.

    Raises:
        UsageError: a key that cannot be used.
        BundleError: no bundle, or with keys one that is not signed with any of them.
    """
    found = inspect_bundle(read_bundle(file, keys=given_public_keys(keys)))
    # A name that is no text, such as a lone byte 0xff, cannot stand in JSON.
    name = os.fsencode(file).decode(errors="replace")
    if as_json:
        print_json({"file": name, **asdict(found)})
    else:
        for line in _lines(name, found):
            # A bundle may be a stranger's: what is in it is shown, never obeyed.
            tell(printable(line))
    return Exit.OK


def _lines(name: str, found: Inspection) -> list[str]:
    data = ", ".join(f"{root} ({size} bytes)" for root, size in found.data.items())
    return [
        f"{name}: release {found.release}, {found.size} bytes",
        f"  revision   {found.revision}",
        f"  file       {found.digest}",
        f"  signature  {_signature(found)}",
        f"  policy     {found.modules} Rego modules, WebAssembly of {found.module_size} bytes",
        f"  data       {data or 'none'}",
        "",
        *(line for concern in found.concerns for line in _concern(concern)),
        *(line for manifest in found.manifests for line in _manifest(manifest)),
    ]


def _signature(found: Inspection) -> str:
    signature = found.signature
    if signature is None:
        return "none"
    claim = "verified" if signature.verified else "not verified: name a public key with --key"
    return f"{signature.algorithm}, key {signature.key_id} ({claim})"


def _concern(concern: ConcernSummary) -> list[str]:
    whose = "custom" if concern.custom else "baseline"
    notes = f"{whose}, required" if concern.required else whose
    return [f"concern {concern.name} ({notes})", *(f"  {code}" for code in concern.codes)]


def _manifest(manifest: ManifestSummary) -> list[str]:
    lines = ["", f"manifest {manifest.version or '(no version)'}  {manifest.digest}"]
    for tool in manifest.tools:
        version = f" {tool.version}" if tool.version else ""
        notes = [tool.effect_class or "no effect class", f"{tool.risk_tier or 'no'} risk"]
        notes += [", ".join(tool.scopes) or "no scope"]
        lines.append(f"  {tool.name}{version}: {'; '.join(notes)}")
    return lines
