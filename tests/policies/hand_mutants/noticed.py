"""The effect of changes of the baseline's policies, and the unit tests that notice them, each in one run of OPA."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import orjson

from pdp.json import canonical
from pdp.workbench.opa.modules import baseline_policies_path, collect, write_texts
from pdp.workbench.opa.program import run_opa
from tests.policies.hand_mutants.mutants import HandMutant, baseline_modules, package_name
from tests.policies.hand_mutants.witnesses import PROBE, PROBE_FILE

_TIMEOUT: Final = 120.0
_ROOTS: Final = ("manifests", "directory", "settings", "config")
_WITNESS: Final = "witness_test"
_FIXTURE: Final = "authz.lib.fixture_test"


@dataclass(frozen=True, slots=True)
class UnitTests:
    """What a run says of one change: whether its witness is decided as stated, and which unit tests fail."""

    effect: bool
    failing: tuple[str, ...]


def not_decided_as_stated(opa: Path, mutants: Sequence[HandMutant]) -> list[str]:
    """Return the names of changes whose witness the policies as they are do not decide as the files state."""
    witnesses = [_witness(mutant, mutant.verdicts[0], number) for number, mutant in enumerate(mutants)]
    failing = _failing(opa, _texts("\n".join(witnesses)), rf"^data\.{_WITNESS}\.")
    return [mutant.name for number, mutant in enumerate(mutants) if f"data.{_WITNESS}.test_{number}" in failing]


def opens(opa: Path, mutant: HandMutant) -> bool:
    """Tell whether the witness is decided as stated with the change."""
    texts = {**_texts(_witness(mutant, mutant.verdicts[1], 0)), **mutant.modules}
    return not _failing(opa, texts, rf"^data\.{_WITNESS}\.")


def run_unit_tests(opa: Path, mutant: HandMutant) -> UnitTests:
    """Run the witness and the unit tests of the changed packages with the change."""
    packages = "|".join(package.replace(".", r"\.") for package in mutant.packages)
    # OPA compiles all that it is given, whatever it is told to run.
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
