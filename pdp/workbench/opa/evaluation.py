"""Many requests evaluated in one run of the OPA program: for coverage, and for policies that are broken on purpose.

An engine decides by a bundle that was built and checked; this evaluates Rego as it stands, module by module, so that
one of them can be exchanged at the cost of a run. It is no way to decide a call.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.errors import EngineTimeoutError, Fault, FileFaultsError, Place, UsageError
from pdp.json import canonical
from pdp.workbench.opa.batch import Batch, BatchRun, message_of
from pdp.workbench.opa.run import run_opa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self


TIMEOUT: Final = 60.0
"""Default time for one run, in seconds; usual ones take 0.1 to 0.5."""

DECISION: Final = "data.authz.decision"
"""What is evaluated when nothing else is asked for."""

_AT_RUN_TIME: Final = "eval_"
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Evaluator:
    """Modules and data staged for OPA, to be evaluated again and again, each time with some modules exchanged.

    A builtin that fails is undefined, as in the embedded engine; with the baseline's policies none does.

    Safe to share between threads: a run writes only into a folder of its own.

        with Evaluator(opa, modules, data) as evaluator:
            original = evaluator.evaluate(inputs)
            broken = evaluator.evaluate(inputs, changed={"authz/concerns/limits/limits.rego": text})

    Args:
        opa: the program.
        modules: their texts by their path in the bundle.
        data: the whole data: `config`, `manifests`, `directory`, `settings`.
        timeout: seconds that one run may take.
    """

    def __init__(
        self, opa: Path, modules: Mapping[str, str], data: Mapping[str, Any], *, timeout: float = TIMEOUT
    ) -> None:
        self._opa = opa.resolve()
        self._modules = dict(modules)
        self._data = canonical(dict(data))
        self._timeout = timeout
        self._staged: tempfile.TemporaryDirectory[str] | None = None
        self._folder = Path()

    def __enter__(self) -> Self:
        self._staged = tempfile.TemporaryDirectory(prefix="pdp-evaluate-")
        self._folder = Path(self._staged.name)
        for path, text in self._modules.items():
            _write(self._folder / path, text)
        (self._folder / "data.json").write_bytes(self._data)
        return self

    def __exit__(self, *_: object) -> None:
        if self._staged is not None:
            self._staged.cleanup()
            self._staged = None

    def evaluate(
        self,
        inputs: Sequence[bytes],
        *,
        changed: Mapping[str, str] = _NOTHING,
        document: str = DECISION,
        coverage: bool = False,
    ) -> Batch:
        """Evaluate a document for every input; equal inputs are evaluated once.

        An input whose evaluation fails (two values for one rule) costs a run more, and takes nothing
        from the others; behind the sixteenth such input, the rest counts as failed.

        Args:
            inputs: JSON each.
            changed: modules instead of those of the same path, or beside them.
            document: what to evaluate, such as `data.authz.findings`.
            coverage: whether to tell which lines were evaluated.

        Raises:
            FileFaultsError: Rego that OPA refuses; places are those of the staged modules.
            EngineTimeoutError: not finished in time.
            UsageError: OPA cannot be run.
        """
        distinct = list(dict.fromkeys(inputs))
        with tempfile.TemporaryDirectory(prefix="pdp-inputs-") as folder:
            run = BatchRun(self, Path(folder), changed, document, coverage=coverage)
            run.evaluate(distinct)
        place = {body: index for index, body in enumerate(distinct)}
        places = [place[body] for body in inputs]
        return Batch(
            answers=tuple(run.answers[index] for index in places),
            errors={position: run.errors[index] for position, index in enumerate(places) if index in run.errors},
            lines=run.lines() if coverage else None,
        )

    def query(self, query: str, body: bytes, *options: str) -> dict[str, Any]:
        """Evaluate one query for one input and return what OPA writes, whole; `options` are added to its own.

        Raises:
            FileFaultsError, EngineTimeoutError, UsageError: as of `evaluate`; UsageError as well when it fails.
        """
        with tempfile.TemporaryDirectory(prefix="pdp-inputs-") as folder:
            file = Path(folder, "input.json")
            file.write_bytes(body)
            answer, _ = self.run(query, file, sorted(self._modules), *options)
        if "errors" in answer:
            raise UsageError(f"OPA cannot evaluate this: {message_of(answer['errors'])}")
        return answer

    def sources(self, folder: Path, changed: Mapping[str, str]) -> dict[str, str]:
        """Write the changed modules into `folder`, and return the file of each module by its path."""
        for path, text in changed.items():
            _write(folder / path, text)
        return {path: str(folder / path) if path in changed else path for path in sorted({*self._modules, *changed})}

    def run(self, query: str, file: Path, sources: Sequence[str], *options: str) -> tuple[dict[str, Any], str]:
        """Run OPA once, and return its answer and what it printed; the answer may hold errors of the run time."""
        arguments = ["eval", "--format", "json", "--input", str(file), "--data", "data.json", *options]
        arguments += [part for source in sources for part in ("--data", source)]
        try:
            # A run is short: collecting garbage often would only cost time.
            done = run_opa(
                self._opa,
                [*arguments, query],
                folder=self._folder,
                timeout=self._timeout,
                variables={"GOGC": "off", "GOMEMLIMIT": "512MiB"},
            )
        except subprocess.TimeoutExpired as error:
            raise EngineTimeoutError(f"OPA did not finish within {self._timeout:g} s") from error
        complaint = done.stderr.decode(errors="replace")
        try:
            answer = orjson.loads(done.stdout)
        except ValueError:
            lines = complaint.strip().splitlines()
            raise UsageError(f"OPA refuses to evaluate: {lines[0] if lines else 'no message'}") from None
        errors = answer.get("errors", [])
        if errors and not all(str(error.get("code", "")).startswith(_AT_RUN_TIME) for error in errors):
            raise _refused(errors)
        return answer, complaint


def _refused(errors: Sequence[Mapping[str, Any]]) -> UsageError:
    faults = []
    for error in errors:
        location = error.get("location")
        if not isinstance(location, dict) or not location.get("file"):
            return UsageError(f"OPA refuses the policies: {message_of(errors)}")
        place = Place(str(location["file"]), max(int(location["row"]), 1), max(int(location["col"]), 1))
        faults.append(Fault(place, " ".join(str(error.get("message", "")).split())))
    return FileFaultsError(faults)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8", newline="\n")
