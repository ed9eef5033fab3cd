"""`pdp bundle build` and `inspect`."""

from __future__ import annotations

from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer

from pdp.cli.commands.bundle.signing import BundleFile, PublicKeys, given_public_keys, shown
from pdp.cli.data_warnings import tell_data_warnings
from pdp.cli.files import check_standard_input
from pdp.cli.options import AsJson, Data, Policies
from pdp.cli.output import print_json, printable, tell
from pdp.engine.bundle.file import read_bundle
from pdp.errors import UsageError
from pdp.manifest.load import load_effective
from pdp.workbench.bundles.build import build_bundle
from pdp.workbench.bundles.inspect import ConcernSummary, Inspection, ManifestSummary, inspect_bundle
from pdp.workbench.opa.modules import baseline_policies_path
from pdp.workbench.opa.program import needed_opa

GovernanceFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--governance",
        "-g",
        metavar="FILE",
        readable=False,
        help="The governance of the manifest at the same place in the line.",
    ),
]


def build(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", readable=False, help="The bundle file to write.")
    ],
    policies: Policies = None,
    data: Data = None,
    manifest: Annotated[
        list[Path] | None,
        typer.Option(
            "--manifest", "-m", metavar="FILE", readable=False, help="A manifest to decide for. May be repeated."
        ),
    ] = None,
    governance: GovernanceFiles = None,
    release: Annotated[
        int, typer.Option(min=1, metavar="NUMBER", help="The release number; engines refuse to go back.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Build a bundle: policies, data and effective manifests in one file for both engines. Needs OPA."""
    manifests, governances = manifest or [], governance or []
    check_standard_input(*manifests, *governances)
    if governances and len(governances) != len(manifests):
        raise UsageError(
            f"{len(manifests)} manifests and {len(governances)} governance files",
            hint="name a governance file for every manifest, in the same order, or none at all",
        )
    effective = [load_effective(*pair) for pair in zip_longest(manifests, governances)]
    for at, each in enumerate(effective):
        if each.digest in [other.digest for other in effective[:at]]:
            raise UsageError(
                f"{manifests[at]}: this manifest is named twice, as version {each.version} with digest {each.digest}",
                hint="leave one of them out; with another governance file it would be another manifest",
            )
    bundle = build_bundle(
        policies=[baseline_policies_path(), *(policies or [])],
        data=data or [],
        manifests={each.digest: each.document for each in effective},
        release=release,
        opa=needed_opa("building a bundle"),
        out=output,
    )
    if data:
        tell_data_warnings(data, bundle.data)
    concerns = bundle.data["config"]["required_concerns"]
    if as_json:
        print_json(
            {
                "file": shown(output), "revision": bundle.revision, "release": bundle.release, "bytes": bundle.size,
                "manifests": {each.digest: each.version for each in effective}, "concerns": concerns,
            }
        )  # fmt: skip
        return
    tell(f"{shown(output)}: release {bundle.release}, {bundle.size} bytes")
    tell(f"  revision  {bundle.revision}")
    tell(f"  concerns  {', '.join(concerns)}")
    for each in effective:
        tell(f"  manifest  {each.version}  {each.digest}")


def inspect(
    file: BundleFile,
    key: PublicKeys = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in a bundle: concerns and codes, manifests and tools, data, signature, size."""
    inspection = inspect_bundle(read_bundle(file, keys=given_public_keys(key or [])))
    if as_json:
        print_json({"file": shown(file), **asdict(inspection)})
        return
    for line in _lines(shown(file), inspection):
        # A bundle may be a stranger's: what is in it is shown, never obeyed.
        tell(printable(line))


def _lines(name: str, inspection: Inspection) -> list[str]:
    data = ", ".join(f"{root} ({size} bytes)" for root, size in inspection.data.items())
    return [
        f"{name}: release {inspection.release}, {inspection.size} bytes",
        f"  revision   {inspection.revision}",
        f"  file       {inspection.digest}",
        f"  signature  {_signature(inspection)}",
        f"  policy     {inspection.modules} Rego modules, WebAssembly of {inspection.module_size} bytes",
        f"  data       {data or 'none'}",
        "",
        *(line for concern in inspection.concerns for line in _concern(concern)),
        *(line for manifest in inspection.manifests for line in _manifest(manifest)),
    ]


def _signature(inspection: Inspection) -> str:
    signature = inspection.signature
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
