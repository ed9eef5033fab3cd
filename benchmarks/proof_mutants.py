"""Check the prover on mutants: a mutant that the engine sees admit more must never be proved equal or narrower.

    PDP_OPA=$(scripts/opa) python -m benchmarks.proof_mutants --mutants 200 --seed 1

The mutants are edits of the baseline and of the examples. The engine decides recorded calls with faults. A mutant
loosens if it decides a call less strictly, or if it loses an obligation. Then some head must not be proved. The
program exits with 1 if all changed heads of such a mutant are *equal* or *narrower*, or if there are none.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pdp.errors import UsageError
from pdp.opa.program import find_opa
from pdp.opa.rules import PARTS
from pdp.workbench.mutation.edits import rego_mutants
from pdp.workbench.mutation.mutant import RegoMutant
from pdp.workbench.proof.answers import HeadAnswer
from pdp.workbench.proof.compare import compare
from pdp.workbench.proof.witness import CallOnData, EnginePair
from tests.workbench.proof.cases import Case, Recorded, mutated_cases, recorded_cases
from tests.workbench.proof.oracle import modules_of

PROVED = ("equal", "narrower")


class Checked(NamedTuple):
    """A mutant, the calls that it decides less strictly, and what is known about its heads."""

    mutant: RegoMutant
    loosened: tuple[Case, ...]
    answers: tuple[HeadAnswer, ...]

    contradicted: tuple[str, ...]

    @property
    def is_wrong(self) -> bool:
        """Whether the engine contradicts a proof."""
        alike = all(answer.word in PROVED for answer in self.answers)
        return bool(self.contradicted) or (bool(self.loosened) and alike)


def check(opa: Path, recorded: Recorded, mutant: RegoMutant, cases: Sequence[Case], **options: Any) -> Checked:
    """Compare a mutant with the original policies, on the engine and in the prover, if it loosens."""
    old = modules_of(recorded.modules)
    new = modules_of({**recorded.modules, mutant.module: mutant.text})
    trials = [CallOnData(*case) for case in cases]
    with EnginePair(opa, old, new) as engines:
        loosened = tuple(case for case, looser in zip(cases, engines.loosens(trials), strict=True) if looser)
        answers = compare(old, new, opa=opa, **options) if loosened else ()
        proved = [
            f"{answer.concern}.{answer.head}" for answer in answers if answer.word in PROVED and answer.head in PARTS
        ]
        contradicted = tuple(
            head for head in proved if any(_admits(head, *pair) for pair in engines.answers(head, trials))
        )
    return Checked(mutant, loosened, answers, contradicted)


def _admits(head: str, old: Any, new: Any) -> bool:
    """Return whether a head of the new version admits a call that the old one does not admit."""
    part = head.rpartition(".")[2]
    if not (old.is_valid and new.is_valid):
        return False
    if part in ("allow", "obligations"):
        return bool(new.items - old.items if part == "allow" else old.items - new.items)
    return bool(old.items) and not new.items


def main() -> int:
    """Check the number of mutants that the arguments give."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--cases", type=int, default=400, help="calls that the engine decides for each mutant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="limit of a question to the solver")
    parser.add_argument("--until", type=float, default=0, help="stop after so many seconds")
    options = parser.parse_args()
    opa = find_opa()
    if opa is None:
        sys.exit("OPA is missing: run scripts/opa")
    started = time.monotonic()
    recorded = recorded_cases()
    mutants = rego_mutants(opa, modules_of(recorded.modules))
    random.Random(options.seed).shuffle(mutants)  # noqa: S311 - the same mutants for a seed
    words: Counter[str] = Counter()
    wrong = 0
    for number, mutant in enumerate(mutants[: options.mutants]):
        if options.until and time.monotonic() - started > options.until:
            break
        seed = options.seed + number
        every = [case for suite in recorded.suites for case in suite]
        cases = random.Random(seed).sample(every, min(options.cases // 2, len(every)))  # noqa: S311 - repeatable
        cases += mutated_cases(recorded.suites, options.cases - len(cases), seed)
        try:
            checked = check(opa, recorded, mutant, cases, seconds=options.seconds, known=None)
        except UsageError:
            words["does not compile"] += 1
            continue
        side = "loosens" if checked.loosened else "not seen to loosen"
        words.update(f"{side}, a head is {answer.word}" for answer in checked.answers)
        words[f"{side}, mutants"] += 1
        if checked.is_wrong:
            wrong += 1
            print(f"WRONG {mutant.id}\n{mutant.diff}\n{checked.loosened[0].given}")
            print(f"{checked.answers}\n{checked.contradicted}", flush=True)
    _report(words, wrong)
    return int(wrong > 0)


def _report(words: Mapping[str, int], wrong: int) -> None:
    for word, count in sorted(words.items()):
        print(f"{count:6} {word}")
    print(f"{wrong:6} mutants that loosen and are proved to be alike")


if __name__ == "__main__":
    sys.exit(main())
