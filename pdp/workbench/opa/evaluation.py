"""Many requests evaluated in one run of the OPA program: for coverage, and for policies that are broken on purpose.

It is no way to decide a call: an engine does that, by a bundle that was built and checked.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from pdp.errors import UsageError
from pdp.json import canonical
from pdp.workbench.opa.modules import write_texts
from pdp.workbench.opa.program import run_opa

_TIMEOUT: Final = 300.0
_DECISION: Final = "data.authz.decision"
_AT_RUN_TIME: Final = "eval_"
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_MOST_FAILURES: Final = 16
_MARK: Final = "pdp-input"


class Lines(NamedTuple):
    """Lines of one module, from 1: those that were evaluated wholly, and those of which something was not."""

    covered: frozenset[int]
    missed: frozenset[int]


class Batch(NamedTuple):
    """The result of a run.

    Attributes:
        answers: by input the document as canonical bytes (see `canonical_answer`); None when it was undefined or
            failed. What was not evaluated is not in it.
        lines: by the module's path, when coverage was asked for; only of inputs that did not fail.
    """

    answers: Mapping[bytes, bytes | None]
    lines: Mapping[str, Lines] | None = None


def canonical_answer(document: Any) -> bytes:
    """Return a decision or findings document in one form for all engines.

    Rego's sets have no order (reasons, obligations): whatever list stands at the top of the document is sorted.
    """
    if not isinstance(document, dict):
        return canonical(document)
    return canonical(
        {key: sorted(item, key=canonical) if isinstance(item, list) else item for key, item in document.items()}
    )


class Evaluator(ExitStack):
    """Modules and data staged for OPA, to be evaluated again and again, each time with some modules exchanged.

    Safe to share between threads: a run writes only into a folder of its own.

        with Evaluator(opa, modules, data) as evaluator:
            original = evaluator.evaluate(inputs)
            broken = evaluator.evaluate(inputs, changed={"authz/concerns/limits/limits.rego": text})

    Args:
        modules: texts by their path in the bundle.
        data: the whole data: `config`, `manifests`, `directory`, `settings`.
        timeout: seconds that one run may take. Usual ones take 0.1 to 0.5, on a busy machine a hundred times that.
    """

    def __init__(
        self, opa: Path, modules: Mapping[str, str], data: Mapping[str, Any], *, timeout: float = _TIMEOUT
    ) -> None:
        self._opa, self._modules, self._timeout = opa, frozenset(modules), timeout
        super().__init__()
        self._folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="pdp-evaluate-")))
        write_texts(self._folder, modules)
        (self._folder / "data.json").write_bytes(canonical(dict(data)))

    def evaluate(
        self,
        inputs: Sequence[bytes],
        *,
        changed: Mapping[str, str] = _NOTHING,
        document: str = _DECISION,
        coverage: bool = False,
    ) -> Batch:
        """Evaluate a document for every input; equal inputs are evaluated once.

        An input whose evaluation fails (two values for one rule) costs a run more, and takes nothing
        from the others; what stands behind the sixteenth such input is not evaluated.

        Args:
            inputs: JSON each.
            changed: modules instead of those of the same path, or beside them.
            document: what to evaluate, such as `data.authz.findings`.
            coverage: whether to report which lines were evaluated; of modules that are not changed.

        Raises:
            EngineTimeoutError: not finished in time.
            UsageError: OPA refuses the Rego, or cannot be run.
        """
        options = ["--coverage", "--coverage-runs="] if coverage else []
        # The index is printed before an input is evaluated: where a run fails, the last one printed is at fault.
        marked = f'some i, e in input; print("{_MARK}", i)'
        query = f"[[i, x] | {marked}; x := [d | d := {document} with input as e]]"
        answers: dict[bytes, bytes | None] = {}
        report: dict[str, Any] = {}
        pending = list(dict.fromkeys(inputs))
        with tempfile.TemporaryDirectory(prefix="pdp-inputs-") as name:
            folder = Path(name)
            write_texts(folder, changed)
            sources = [str(folder / path) if path in changed else path for path in sorted({*self._modules, *changed})]
            while pending:
                file = folder / "inputs.json"
                file.write_bytes(b"[" + b",".join(pending) + b"]")
                answer, printed = self._run(query, file, sources, *options)
                if "errors" not in answer:
                    for position, values in answer["result"][0]["expressions"][0]["value"]:
                        answers[pending[position]] = canonical_answer(values[0]) if values else None
                    report = answer.get("coverage", {})
                    break
                failing = _last_marked(printed, len(pending))
                answers[pending.pop(failing)] = None
                if len(answers) >= _MOST_FAILURES:
                    # A policy that is broken fails for each input, and each costs a run: that much is known by now.
                    del pending[failing:]
        return Batch(answers, coverage_lines(report) if coverage else None)

    def query(self, query: str, body: bytes, *options: str) -> dict[str, Any]:
        """Evaluate one query for one input and return what OPA writes, whole; `options` are added to its own."""
        with tempfile.TemporaryDirectory(prefix="pdp-inputs-") as folder:
            file = Path(folder, "input.json")
            file.write_bytes(body)
            answer, _ = self._run(query, file, sorted(self._modules), *options)
        if "errors" in answer:
            raise UsageError(f"OPA cannot evaluate this: {_message(answer['errors'])}")
        return answer

    def _run(self, query: str, file: Path, sources: Iterable[str], *options: str) -> tuple[dict[str, Any], str]:
        """Run OPA once, and return its answer and what it printed; the answer may hold errors of the run time."""
        # OPA's own bound is for when nobody is left to stop it.
        arguments = ["eval", "--timeout", f"{2 * self._timeout:g}s", "--format", "json", "--input", str(file)]
        arguments += ["--data", "data.json", *options]
        arguments += [part for source in sources for part in ("--data", source)]
        done = run_opa(self._opa, [*arguments, query], folder=self._folder, timeout=self._timeout)
        complaint = done.stderr.decode(errors="replace")
        try:
            # An exchanged module is named by its path, as all others are.
            answer = orjson.loads(done.stdout.replace(f"{file.parent}/".encode(), b""))
        except ValueError:
            lines = complaint.strip().splitlines()
            raise UsageError(f"OPA refuses to evaluate: {lines[0] if lines else 'no message'}") from None
        errors = answer.get("errors", [])
        if errors and not all(str(error.get("code", "")).startswith(_AT_RUN_TIME) for error in errors):
            raise UsageError(f"OPA refuses the policies: {_message(errors)}")
        return answer, complaint


def coverage_lines(report: Mapping[str, Any]) -> dict[str, Lines]:
    """Return the lines of each module, by its path, of a report that OPA writes with `--coverage`."""
    lines: dict[str, Lines] = {}
    for path, file in report.get("files", {}).items():
        missed = _rows(file.get("not_covered", ()))
        # A line of which a part was not evaluated is missed: `a contains x if y` counts only when y held.
        lines[path] = Lines(_rows(file.get("covered", ())) - missed, missed)
    return lines


def _rows(ranges: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    return frozenset(row for part in ranges for row in range(part["start"]["row"], part["end"]["row"] + 1))


def _last_marked(printed: str, count: int) -> int:
    marked = [line.removeprefix(_MARK) for line in printed.splitlines() if line.startswith(_MARK)]
    return min(int(marked[-1]), count - 1) if marked else 0


def _message(errors: Sequence[Mapping[str, Any]]) -> str:
    first = errors[0]
    location = first.get("location") or {}
    where = f" ({location['file']}:{location['row']})" if location.get("file") else ""
    return f"{first.get('code', 'error')}: {' '.join(str(first.get('message', '')).split())}{where}"
