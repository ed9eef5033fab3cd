"""Measure what the prover says of changes that change no decision: `python -m benchmarks.proof [NAME...]`.

Each refactoring of tests/workbench/proof/refactorings.yaml is compared with the policies that it changes. The exit code
is 1 if less than 17 of 19 are proved equal, or a comparison takes longer than 30 seconds.
"""

import sys
import time
from typing import Final

from pdp.opa.program import needed_opa
from pdp.workbench.proof.compare import compare
from tests.workbench.proof.changes import all_modules, changed, refactorings

_EQUAL: Final = 17 / 19
_SECONDS: Final = 30.0


def main() -> int:
    opa, wanted = needed_opa("measuring proofs"), set(sys.argv[1:])
    names = [name for name in refactorings() if not wanted or name in wanted]
    equal, slowest = 0, 0.0
    for name in names:
        start = time.perf_counter()
        # The concern that calculates is outside of what can be translated, with every change of a library.
        answers = [
            answer
            for answer in compare(all_modules(), changed(refactorings()[name]), opa=opa)
            if not answer.concern.endswith(".calculates")
        ]
        seconds = time.perf_counter() - start
        equal, slowest = equal + all(answer.word == "equal" for answer in answers), max(slowest, seconds)
        found = ", ".join(f"{answer.concern}.{answer.head} {answer.word} {answer.term}".strip() for answer in answers)
        print(f"{seconds:6.1f} s  {name}: {found or 'the same forms'}", flush=True)
    print(f"{equal} of {len(names)} equal, at most {slowest:.1f} s (bound: {_SECONDS:.0f} s)")
    return int(equal < _EQUAL * len(names) or slowest > _SECONDS)


if __name__ == "__main__":
    sys.exit(main())
