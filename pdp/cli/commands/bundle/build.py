"""`pdp bundle build` and `inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pdp.cli.commands.bundle.signing import BundleFile, PublicKeys, given_public_keys, shown
from pdp.cli.files import effective_manifests
from pdp.cli.options import AsJson, Data, Policies, file_option
from pdp.cli.output import print_json, tell
from pdp.engine.bundle.file import read_bundle
from pdp.workbench.bundles.build import compile_bundle, write_bundle
from pdp.workbench.bundles.inspect import inspect_bundle, inspection_lines
from pdp.workbench.opa.modules import baseline_policies_path
from pdp.workbench.opa.program import needed_opa
from pdp.workbench.reports.shown_file import printable


def build(
    output: Annotated[Path, file_option("--output", "-o", help="The bundle file to write.")],
    policies: Policies = None,
    data: Data = None,
    manifest: Annotated[
        list[Path] | None, file_option("--manifest", "-m", help="A manifest to decide for. May be repeated.")
    ] = None,
    governance: Annotated[
        list[Path] | None,
        file_option("--governance", "-g", help="The governance of the manifest at the same place in the line."),
    ] = None,
    release: Annotated[
        int, typer.Option(min=1, metavar="NUMBER", help="The release number; engines refuse to go back.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Build a bundle: policies, data and effective manifests in one file for both engines. Needs OPA."""
    effective = effective_manifests(manifest or [], governance or [])
    packed = compile_bundle(
        policies=[baseline_policies_path(), *(policies or [])],
        data=data or [],
        manifests={loaded.digest: loaded.document for loaded in effective},
        tools=[tool for loaded in effective for tool in loaded.tools.values()],
        release=release,
        opa=needed_opa("building a bundle"),
    )
    write_bundle(output, packed)
    bundle = read_bundle(packed)
    concerns = bundle.data["config"]["required_concerns"]
    if as_json:
        print_json(
            {
                "file": shown(output), "revision": bundle.revision, "release": bundle.release, "bytes": bundle.size,
                "manifests": {loaded.digest: loaded.version for loaded in effective}, "concerns": concerns,
            }
        )  # fmt: skip
        return
    tell(f"{shown(output)}: release {bundle.release}, {bundle.size} bytes")
    tell(f"  revision  {bundle.revision}")
    tell(f"  concerns  {', '.join(concerns)}")
    for loaded in effective:
        tell(f"  manifest  {loaded.version}  {loaded.digest}")


def inspect(
    file: BundleFile,
    key: PublicKeys = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in a bundle: concerns, manifests and tools, data, signature, size."""
    inspection = inspect_bundle(read_bundle(file, keys=given_public_keys(key or [])))
    if as_json:
        print_json({"file": shown(file), **inspection})
        return
    for line in inspection_lines(shown(file), inspection):
        # A bundle may be a stranger's: what is in it is shown, never obeyed.
        tell(printable(line))
