"""`pdp bundle`: what an engine decides by."""

from __future__ import annotations

import os
from itertools import zip_longest
from typing import TYPE_CHECKING

from pdp.cli import Exit
from pdp.cli.engines import needed_opa
from pdp.cli.files import check_standard_input
from pdp.cli.output import print_json, tell
from pdp.errors import UsageError
from pdp.manifest.load import load_effective
from pdp.workbench.bundles.build import build_bundle
from pdp.workbench.opa.modules import baseline_policies_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def build(
    output: Path,
    *,
    policies: Sequence[Path],
    data: Sequence[Path],
    manifests: Sequence[Path],
    governance: Sequence[Path],
    release: int,
    as_json: bool,
) -> int:
    """Build a bundle file and say what is in it.

    Raises:
        UsageError: options or files that cannot be used, or OPA is not there.
        BundleError: what was built would not be usable.
    """
    check_standard_input(*manifests, *governance)
    if governance and len(governance) != len(manifests):
        raise UsageError(
            f"{len(manifests)} manifests and {len(governance)} governance files",
            hint="name a governance file for every manifest, in the same order, or none at all",
        )
    effective = [load_effective(*pair) for pair in zip_longest(manifests, governance)]
    for at, each in enumerate(effective):
        if each.digest in [other.digest for other in effective[:at]]:
            raise UsageError(
                f"{manifests[at]}: this manifest is named twice, as version {each.version} with digest {each.digest}",
                hint="leave one of them out; with another governance file it would be another manifest",
            )
    bundle = build_bundle(
        policies=[baseline_policies_path(), *policies],
        data=data,
        manifests={each.digest: each.document for each in effective},
        release=release,
        opa=needed_opa("building a bundle"),
        out=output,
    )
    if data:
        from pdp.cli.data_warnings import tell_data_warnings  # noqa: PLC0415

        tell_data_warnings(data, bundle.data)
    # A name that is no text, such as a lone byte 0xff, cannot stand in JSON.
    file = os.fsencode(output).decode(errors="replace")
    concerns = bundle.data["config"]["required_concerns"]
    if as_json:
        print_json(
            {
                "file": file, "revision": bundle.revision, "release": bundle.release, "bytes": bundle.size,
                "manifests": {each.digest: each.version for each in effective}, "concerns": concerns,
            }
        )  # fmt: skip
    else:
        tell(f"{file}: release {bundle.release}, {bundle.size} bytes")
        tell(f"  revision  {bundle.revision}")
        tell(f"  concerns  {', '.join(concerns)}")
        for each in effective:
            tell(f"  manifest  {each.version}  {each.digest}")
    return Exit.OK
