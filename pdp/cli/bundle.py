"""`pdp bundle`: what an engine decides by."""

from __future__ import annotations

import sys
from itertools import zip_longest
from typing import TYPE_CHECKING

import orjson

from pdp.bundle.build import baseline_policies_path, build_bundle
from pdp.cli import Exit
from pdp.cli.engines import needed_opa
from pdp.errors import UsageError
from pdp.manifest.loading import load_effective

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
    """Build a bundle file and say what is in it."""
    if governance and len(governance) != len(manifests):
        raise UsageError(
            f"{len(manifests)} manifests and {len(governance)} governance files",
            hint="name a governance file for every manifest, in the same order, or none at all",
        )
    effective = [load_effective(*pair) for pair in zip_longest(manifests, governance)]
    bundle = build_bundle(
        policies=[baseline_policies_path(), *policies],
        data=data,
        manifests={each.digest: each.document for each in effective},
        release=release,
        opa=needed_opa(),
        out=output,
    )
    if as_json:
        summary = {
            "file": str(output), "revision": bundle.revision, "release": bundle.release, "bytes": bundle.size,
            "manifests": {each.digest: each.version for each in effective},
            "concerns": bundle.data["config"]["required_concerns"],
        }  # fmt: skip
        sys.stdout.write(orjson.dumps(summary, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        concerns = ", ".join(bundle.data["config"]["required_concerns"])
        print(f"{output}: release {bundle.release}, {bundle.size} bytes")
        print(f"  revision  {bundle.revision}")
        print(f"  concerns  {concerns}")
        for each in effective:
            print(f"  manifest  {each.version}  {each.digest}")
    return Exit.OK
