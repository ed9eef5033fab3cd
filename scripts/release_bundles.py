"""Build the released bundles from their sources, and compare them. Run it as `scripts/release-bundles`.

    bundles/NAME.tar.gz   the output of `pdp bundle build`, unsigned: the same bytes on every machine

The bundle contains its release number. If its content changes, it gets the next number, because engines reject two
contents under one number.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pdp.engine.bundle.file import read_bundle, read_packed
from pdp.errors import PdpError, UsageError
from pdp.manifest.load import load_effective
from pdp.opa.build import compile_bundle, write_bundle
from pdp.opa.program import OPA_VERSION, needed_opa, opa_version
from pdp.workbench.gate.gate import Gate, release_check
from pdp.workbench.scenarios.files.suite import find_suites, load_suites

ROOT: Final = Path(__file__).resolve().parents[1]

EXAMPLES: Final = {"baseline": None, "payments": "examples/payments"}
"""The released bundles: the baseline alone, or with an example's policies, manifest and governance."""


def built(root: Path, name: str, release: int, opa: Path) -> bytes:
    """Build a bundle of the repository from its sources. Raise the errors of `pdp.opa.build.compile_bundle`."""
    example = EXAMPLES[name]
    policies, manifests = [root / "policies"], {}
    if example is not None:
        folder = root / example
        policies.append(folder / "policies")
        effective = load_effective(folder / "manifest.json", folder / "governance.yaml")
        manifests[effective.digest] = effective.document
    return compile_bundle(policies=policies, manifests=manifests, release=release, opa=opa)


def release(root: Path, opa: Path) -> None:
    """Write each bundle whose content has changed, under its next release number."""
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
    """Return the bundles that differ from their sources, and the faults that keep a bundle from passing the gate."""
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
    """Return the findings of `pdp release check` in an example's bundle; the baseline has no tools to check."""
    example = EXAMPLES[name]
    if example is None:
        return []
    suites = load_suites(find_suites([root / example]))
    # The comparison with the last release is made by a person, who has to explain each loosening.
    result = release_check(Gate(root / "bundles" / f"{name}.tar.gz", suites, skip=("loosening",)))
    return [f"bundles/{name}.tar.gz: {done.name}: {reason}" for done in result.checks for reason in done.reasons]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command line; return 0, or 1 if the check failed, or 2 if an input cannot be used."""
    options = argparse.ArgumentParser(prog="scripts/release-bundles", description="Builds the released bundles.")
    options.add_argument("--check", action="store_true", help="change nothing: rebuild, and compare bytes")
    chosen = options.parse_args(arguments)
    try:
        opa = needed_opa("building bundles")
        if opa_version(opa) != OPA_VERSION:  # Another release of OPA may write other bytes.
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
