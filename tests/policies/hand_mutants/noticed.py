"""Run OPA with a change of the baseline's policies to see whether its witness and the unit tests notice the change."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import orjson

from pdp.json import canonical
from pdp.opa.modules import baseline_policies_path, collect, write_texts
from pdp.opa.program import run_opa
from tests.policies.hand_mutants.mutants import HandMutant, baseline_modules, package_name
from tests.policies.hand_mutants.witnesses import PROBE, PROBE_FILE

_TIMEOUT: Final = 120.0
_ROOTS: Final = ("manifests", "directory", "settings", "config")
_WITNESS: Final = "witness_test"
_FIXTURE: Final = "authz.lib.fixture_test"


@dataclass(frozen=True, slots=True)
class UnitTests:
    """The result of a run with a change: whether the witness gets its new verdict, and which unit tests fail."""

    effect: bool
    failing: tuple[str, ...]


def not_decided_as_stated(opa: Path, mutants: Sequence[HandMutant]) -> list[str]:
    """Return the changes whose witness does not get its first stated verdict from the unchanged policies."""
    witnesses = [_witness(mutant, mutant.verdicts[0], number) for number, mutant in enumerate(mutants)]
    failing = _failing(opa, _texts("\n".join(witnesses)), rf"^data\.{_WITNESS}\.")
    return [mutant.name for number, mutant in enumerate(mutants) if f"data.{_WITNESS}.test_{number}" in failing]


def opens(opa: Path, mutant: HandMutant) -> bool:
    """Return whether the changed policies give the witness the second of its stated verdicts."""
    texts = {**_texts(_witness(mutant, mutant.verdicts[1], 0)), **mutant.modules}
    return not _failing(opa, texts, rf"^data\.{_WITNESS}\.")


def run_unit_tests(opa: Path, mutant: HandMutant) -> UnitTests:
    """Run the witness and the unit tests of the changed packages with the changed policies."""
    packages = "|".join(package.replace(".", r"\.") for package in mutant.packages)
    # OPA compiles every file that it is given, so unit tests of other packages are left out to save time.
    needed = {_FIXTURE, *(f"{package}_test" for package in mutant.packages)}
    tests = {path: text for path, text in _unit_tests().items() if package_name(text) in needed}
    texts = {**_texts(_witness(mutant, mutant.verdicts[1], 0)), **tests, **mutant.modules}
    failing = _failing(opa, texts, rf"^data\.(({packages})_test|{_WITNESS})\.")
    shown = f"data.{_WITNESS}.test_0"
    return UnitTests(shown not in failing, tuple(name for name in failing if name != shown))


def _witness(mutant: HandMutant, verdict: str, number: int) -> str:
    document = "data.authz.plan" if mutant.plan else "data.authz.decision"
    replaced = "".join(f" with data.{root} as {canonical(mutant.data[root]).decode()}" for root in _ROOTS)
    return f"""test_{number} if {{
	answer := {document} with input as {mutant.body.decode()}{replaced}
	answer.verdict == "{verdict}"
}}
"""


def _texts(witnesses: str) -> dict[str, str]:
    witness = f"package {_WITNESS}\n\n{witnesses}"
    return {**baseline_modules(), PROBE_FILE: PROBE, f"{_WITNESS}.rego": witness}


def _failing(opa: Path, texts: dict[str, str], only: str) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="pdp-unit-tests-") as name:
        write_texts(Path(name), texts)
        options = ["--format", "json", "--run", only, "--timeout", f"{_TIMEOUT:.0f}s"]
        done = run_opa(opa, ["test", *options, "."], folder=Path(name), timeout=_TIMEOUT)
    results = orjson.loads(done.stdout or b"null")
    if not results:
        raise AssertionError(f"no test was run: {done.stderr.decode()}")
    return [f"{result['package']}.{result['name']}" for result in results if result.get("fail") or result.get("error")]


@cache
def _unit_tests() -> dict[str, str]:
    baseline = baseline_policies_path()
    return {path: module.text for path, module in collect(baseline, [baseline], tests=True).items()}
