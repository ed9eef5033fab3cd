"""Measure what the prover says of changes that admit more: `python -m benchmarks.proof_loosenings [TEXT...]`.

Each loosening of tests/workbench/proof/loosenings.yaml is compared with the policies that it changes, with the recorded
calls of the first example or suite that has the module. With a TEXT, only loosenings that contain it are tried. The
exit code is 1 if a loosening is proved to be equal or narrower.
"""

import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from pdp.opa.program import needed_opa
from pdp.workbench.mutation.trial import record
from pdp.workbench.proof.compare import compare
from pdp.workbench.scenarios.files.suite import Suite, find_suites, load_suite, policy_modules
from pdp.workbench.scenarios.running.engines import whole_data
from tests.support import ROOT


def main() -> int:
    """Compare the loosenings that the arguments name."""
    opa, found = needed_opa("measuring proofs"), Counter[str]()
    files = [*sorted(ROOT.glob("examples/*/scenarios.yaml")), *find_suites([ROOT / "tests/scenarios"])]
    files.sort(key=lambda file: "payments" not in str(file))
    suites = [load_suite(file) for file in files]
    every = yaml.safe_load((ROOT / "tests/workbench/proof/loosenings.yaml").read_text())
    for edit in every:
        if sys.argv[1:] and not any(text in edit["about"] for text in sys.argv[1:]):
            continue
        start = time.perf_counter()
        (suite, *_) = (suite for suite in suites if edit["file"] in policy_modules(suite))
        words = _words(opa, suite, edit)
        word = next((word for word in ("wider", "bounded", "not proved") if word in words), "WRONG")
        found[word] += 1
        print(f"{time.perf_counter() - start:6.1f} s  {edit['about']}: {words}", flush=True)
    print(dict(found))
    return int("WRONG" in found)


def _words(opa: Path, suite: Suite, edit: dict[str, Any]) -> dict[str, list[str]]:
    (ran,) = record([suite])
    known = {answer.body: None for result in ran.results for step in result.steps for answer in step.answers}
    before = policy_modules(suite)
    text, old = before[edit["file"]].text, edit.get("old")
    if old is not None and old not in text:
        raise ValueError(edit["about"])
    changed = f"{text}\n{edit['new']}" if old is None else text.replace(old, edit["new"], 1)
    after = {**before, edit["file"]: replace(before[edit["file"]], text=changed)}
    words: dict[str, list[str]] = {}
    for answer in compare(before, after, opa=opa, known=list(known), data=whole_data(suite)):
        words.setdefault(answer.word, []).append(f"{answer.concern}.{answer.head} {answer.term}".strip())
    return words


if __name__ == "__main__":
    sys.exit(main())
