"""The bundle diff: its speed, and how many mutants of the baseline it finds. `python -m benchmarks.bundle_diff`.

Goals: 50,000 generated requests decided by both bundles within 20 s on two cores, and at least 95 % of a sample of
the mutants of Rego that `pdp mutate` makes, found without any scenario. `--mutants NUMBER` says how many (0: none).
"""

import argparse
import random
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from pdp.engine.bundle.file import Bundle, pack_bundle, read_bundle
from pdp.engine.protocol import DECISION, FINDINGS, PLAN
from pdp.errors import PdpError
from pdp.workbench.diff.bundle_diff import bundle_diff
from pdp.workbench.diff.generated import GeneratedCalls
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.mutation.edits import rego_mutants
from pdp.workbench.mutation.equivalents import beside, read_equivalents
from pdp.workbench.mutation.mutant import RegoMutant
from pdp.workbench.opa.modules import Module, baseline_policies_path, collect
from pdp.workbench.opa.program import find_opa
from pdp.workbench.opa.tool import OpaTool

REQUESTS = 50_000
SECONDS = 20.0
FOUND = 95.0
ROOT = Path(__file__).parents[1]
BUNDLE = ROOT / "bundles/baseline.tar.gz"
SCENARIOS = ROOT / "tests/scenarios/base.yaml"


def speed(bundle: Path) -> bool:
    """Compare a bundle with itself, and say how long that took."""
    started, used = time.perf_counter(), time.process_time()
    found = bundle_diff(bundle, bundle, most=REQUESTS)
    wall, used = time.perf_counter() - started, time.process_time() - used
    scaled = wall * REQUESTS / found.extent.requests
    print(
        f"{found.extent.requests} requests in {wall:.1f} s ({used:.1f} s of processors): {scaled:.1f} s for {REQUESTS}"
    )
    print(f"goal: at most {SECONDS:g} s: {'reached' if scaled <= SECONDS else 'missed, or the machine is busy'}")
    return scaled <= SECONDS


def mutants(count: int) -> bool:
    """Let generated calls find a sample of mutants, and say how many it did."""
    opa = find_opa()
    if opa is None:
        print("mutants need OPA: pdp opa install")
        return False
    baseline = baseline_policies_path()
    # With concerns of a user, or what the decision makes of such could not be seen.
    modules = collect(baseline, [baseline, SCENARIOS.parent / "concerns"])
    equivalent = {each.mutant for each in read_equivalents(beside([SCENARIOS]))}
    every = [
        mutant
        for mutant in rego_mutants(opa, modules)
        if not modules[mutant.module].custom and mutant.id not in equivalent
    ]
    original = read_bundle(_packed(opa, modules, read_bundle(BUNDLE)))
    tried, missed = 0, []
    sample = random.Random(0).sample(every, min(count, len(every)))  # noqa: S311 - a choice, and no secret
    for mutant in sample:
        changed = _mutated(opa, modules, original, mutant)
        if changed is None:
            continue
        tried += 1
        if not _differ(original, changed, opa):
            missed.append(mutant)
            print(f"not found: {mutant.id}: {mutant.original[:60]!r} -> {mutant.changed[:60]!r}", flush=True)
    percent = 100 * (tried - len(missed)) / tried if tried else 0.0
    print(f"{tried - len(missed)} of {tried} mutants found, {percent:.1f} % (of {len(every)} in all)")
    print(f"goal: at least {FOUND:g} %: {'reached' if percent >= FOUND else 'missed'}")
    return percent >= FOUND


def _differ(old: Bundle, new: Bundle, opa: Path) -> bool:
    """Whether a generated call is decided differently."""
    generated = GeneratedCalls(BundlePair.of(opa, old, new))
    with (
        generated.comparison as comparison,
        closing(comparison.differences(generated.calls(REQUESTS))) as differences,
    ):
        return next(differences, None) is not None


def _mutated(opa: Path, modules: dict[str, Module], original: Bundle, mutant: RegoMutant) -> Bundle | None:
    """The bundle of a mutant; None when OPA refuses it."""
    module = modules[mutant.module]
    try:
        changed = {**modules, mutant.module: type(module)(module.file, mutant.text, module.custom)}
        return read_bundle(_packed(opa, changed, original))
    except PdpError:
        return None


def _packed(opa: Path, modules: dict[str, Module], like: Bundle) -> bytes:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "policies")
        wasm = OpaTool(opa, folder, modules).compile([DECISION, FINDINGS, PLAN])
    data = {
        **like.data,
        "config": {name: value for name, value in like.data["config"].items() if name != "bundle"},
    }
    return pack_bundle(release=1, wasm=wasm, data=data, modules={path: module.text for path, module in modules.items()})


def main() -> int:
    """Print what was measured; return 1 when a goal is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mutants", type=int, default=60)
    chosen = options.parse_args()
    reached = [speed(ROOT / "bundles/payments.tar.gz")]
    if chosen.mutants:
        reached.append(mutants(chosen.mutants))
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
