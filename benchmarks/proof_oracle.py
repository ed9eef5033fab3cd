"""Compare the prover's reading of rules with the engine, on many requests with faults.

    PDP_OPA=$(scripts/opa) python -m benchmarks.proof_oracle --requests 5000 --seed 1 [--mutants 200]

Every head of the baseline and of the examples is read on recorded calls in which paths are dropped, and types and
values changed, in the request and in the data. With `--mutants`, the same is done for mutants of the policies, because
these contain conditions that no author wrote. The program exits with 1 if a term says otherwise than the engine.
"""

import argparse
import json
import random
import sys
from collections.abc import Mapping

from pdp.errors import UsageError
from pdp.opa.program import find_opa
from pdp.workbench.mutation.edits import rego_mutants
from tests.workbench.proof.cases import mutated_cases, recorded_cases
from tests.workbench.proof.oracle import Agreement, agreement, modules_of

_SHOWN = 10


def main() -> int:
    """Run the comparison that the arguments describe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000, help="requests for each head")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutants", type=int, default=0, help="mutants of the policies, 200 requests each")
    options = parser.parse_args()
    opa = find_opa()
    if opa is None:
        sys.exit("OPA is missing: run scripts/opa")
    recorded = recorded_cases()
    total = agreement(opa, recorded.modules, list(mutated_cases(recorded.suites, options.requests, options.seed)))
    for name, count in sorted(total.compared.items()):
        print(f"{name:48} {count:7} requests, fires in {total.fired[name]}")
    _report(total, "")
    failed = bool(total.different)
    if options.mutants:
        mutants = rego_mutants(opa, modules_of(recorded.modules))
        random.Random(options.seed).shuffle(mutants)  # noqa: S311 - repeatable
        compared = rejected = outside = 0
        for number, mutant in enumerate(mutants[: options.mutants]):
            cases = list(mutated_cases(recorded.suites, 200, options.seed + number))
            try:
                found = agreement(opa, {**recorded.modules, mutant.module: mutant.text}, cases)
            except UsageError:
                rejected += 1
                continue
            compared += sum(found.compared.values())
            outside += len(found.outside)
            if found.different:
                failed = True
                _report(found, f"{mutant.id}\n{mutant.diff}")
        print(
            f"mutants: {compared} requests compared; {rejected} mutants do not compile; {outside} heads not translated"
        )
    return int(failed)


def _report(found: Agreement, title: str) -> None:
    unread: Mapping[str, int] = found.unread
    print(f"{title}{sum(found.compared.values())} compared, {len(found.different)} different, unread: {dict(unread)}")
    for name, reason in found.outside.items():
        print(f"not translated: {name}: {reason}")
    for name, case, expected in found.different[:_SHOWN]:
        print(f"DIFFERENT {name}: the engine says {expected} for {json.dumps(case.given)}")
        print(f"    with the data {json.dumps(case.data)[:2000]}")


if __name__ == "__main__":
    sys.exit(main())
