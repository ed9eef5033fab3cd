"""The released bundles: built from their sources and compared with them. Run it as `scripts/release-bundles`.

    bundles/NAME.tar.gz   as `pdp bundle build` gives it, unsigned: the same bytes on every machine

The release number stands in the bundle. A content that differs from the bundle at hand gets the next number: engines
refuse two contents under one number.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pdp.engine.bundle.file import read_bundle, read_packed
from pdp.errors import PdpError, UsageError
from pdp.manifest.load import load_effective
from pdp.workbench.bundles.build import compile_bundle, write_bundle
from pdp.workbench.gate.gate import Gate, release_check
from pdp.workbench.opa.program import OPA_VERSION, needed_opa, opa_version
from pdp.workbench.scenarios.files.suite import find_suites, load_suites

ROOT: Final = Path(__file__).resolve().parents[1]

EXAMPLES: Final = {"baseline": None, "payments": "examples/payments"}
"""The released bundles: the baseline alone, or with an example's policies, manifest and governance."""


def built(root: Path, name: str, release: int, opa: Path) -> bytes:
    """Build a bundle of the repository from its sources; errors as of `pdp.workbench.bundles.build.compile_bundle`."""
    example = EXAMPLES[name]
    policies, manifests = [root / "policies"], {}
    if example is not None:
        folder = root / example
        policies.append(folder / "policies")
        effective = load_effective(folder / "manifest.json", folder / "governance.yaml")
        manifests[effective.digest] = effective.document
    return compile_bundle(policies=policies, manifests=manifests, release=release, opa=opa)


def release(root: Path, opa: Path) -> None:
    """Write every bundle whose sources give another content than it has, under its next release number."""
    for name in EXAMPLES:
        file = root / "bundles" / f"{name}.tar.gz"
        if not file.exists():
            packed, change = built(root, name, 1, opa), "new"
        else:
            before = read_bundle(file)
            packed, change = built(root, name, before.release, opa), "unchanged"
            if packed != read_packed(file):
                packed, change = built(root, name, before.release + 1, opa), f"was release {before.release}"
        if change != "unchanged":
            write_bundle(file, packed)
        bundle = read_bundle(packed)
        print(f"bundles/{name}.tar.gz: {change}; release {bundle.release}, {bundle.revision}")


def check(root: Path, opa: Path) -> list[str]:
    """Return the bundles that their sources do not give, byte by byte, and what keeps one from passing the gate."""
    faults = []
    for name in EXAMPLES:
        packed = read_packed(root / "bundles" / f"{name}.tar.gz")
        bundle = read_bundle(packed)
        if built(root, name, bundle.release, opa) != packed:
            faults.append(f"bundles/{name}.tar.gz: its sources give another one (run: scripts/release-bundles)")
        else:
            faults += gate_faults(root, name)
        print(f"bundles/{name}.tar.gz: release {bundle.release}, {bundle.revision}")
    return faults


def gate_faults(root: Path, name: str) -> list[str]:
    """Return what `pdp release check` objects to in an example's bundle; the baseline alone has no tools to check."""
    example = EXAMPLES[name]
    if example is None:
        return []
    suites = load_suites(find_suites([root / example]))
    # Against the release before it a person runs the gate: its loosenings need a person's explanation.
    result = release_check(Gate(root / "bundles" / f"{name}.tar.gz", suites, skip=("loosening",)))
    return [f"bundles/{name}.tar.gz: {done.name}: {reason}" for done in result.checks for reason in done.reasons]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Do what the command line says; return 0, 1 when the check failed, 2 when something cannot be used."""
    options = argparse.ArgumentParser(prog="scripts/release-bundles", description="Builds the released bundles.")
    options.add_argument("--check", action="store_true", help="change nothing: rebuild, and compare bytes")
    chosen = options.parse_args(arguments)
    try:
        opa = needed_opa("building bundles")
        if opa_version(opa) != OPA_VERSION:  # another one may write other bytes
            raise UsageError(f"{opa} is not OPA {OPA_VERSION}", hint=f"name OPA {OPA_VERSION} in PDP_OPA")
        if not chosen.check:
            release(root, opa)
            return 0
        faults = check(root, opa)
    except PdpError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for fault in faults:
        print(f"fault: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
