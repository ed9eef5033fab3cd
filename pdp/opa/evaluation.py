"""Evaluate many requests in one run of OPA, to measure coverage and to test mutants, not to decide real calls."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from pdp.errors import UsageError
from pdp.json import canonical
from pdp.opa.modules import write_texts
from pdp.opa.program import run_opa

TIMEOUT: Final = 300.0
_DECISION: Final = "data.authz.decision"
_AT_RUN_TIME: Final = "eval_"
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_MOST_FAILURES: Final = 16
_MARK: Final = "pdp-input"


class Lines(NamedTuple):
    """Line numbers of one module, from 1. A line is `missed` if it was evaluated only partly, or not at all."""

    covered: frozenset[int]
    missed: frozenset[int]


class Batch(NamedTuple):
    """Answers by input (None if undefined or failed), and with coverage, the lines of each module by path."""

    answers: Mapping[bytes, bytes | None]
    lines: Mapping[str, Lines] | None = None


def canonical_answer(document: Any) -> bytes:
    """Return a document with its top-level lists sorted, so that engines give equal bytes: sets have no order."""
    if not isinstance(document, dict):
        return canonical(document)
    return canonical(
        {key: sorted(item, key=canonical) if isinstance(item, list) else item for key, item in document.items()}
    )


class Evaluator(ExitStack):
    """Evaluates requests with modules in a folder, of which some can be replaced. Threads may share an evaluator.

    `timeout` limits one run of OPA in seconds. A run usually takes 0.1 to 0.5 s, but on a busy machine up to 50 s.
    """

    def __init__(
        self, opa: Path, modules: Mapping[str, str], data: Mapping[str, Any], *, timeout: float = TIMEOUT
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
        """Evaluate `document`, such as `data.authz.findings`, once for each distinct input (JSON).

        Modules in `changed` replace the modules with the same paths, or are added. `coverage` reports the lines of all
        other modules. If an input fails (for example, a rule has two values), the other inputs are evaluated in another
        run. After the sixteenth failure, the remaining inputs are not evaluated.

        Raises `EngineTimeoutError`, or `UsageError` if OPA rejects the Rego or cannot be run.
        """
        options = ["--coverage", "--coverage-runs="] if coverage else []
        # Each index is printed before its input is evaluated, so after an error the last printed index belongs to the
        # input that failed.
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
                    # A broken policy fails for each input, and each failure costs a run of OPA, so the remaining inputs
                    # are skipped.
                    del pending[failing:]
        return Batch(answers, coverage_lines(report) if coverage else None)

    def query(self, query: str, body: bytes, *options: str) -> dict[str, Any]:
        """Evaluate a query for one input and return OPA's complete output. `options` are added to the command line."""
        with tempfile.TemporaryDirectory(prefix="pdp-inputs-") as folder:
            file = Path(folder, "input.json")
            file.write_bytes(body)
            answer, _ = self._run(query, file, sorted(self._modules), *options)
        if "errors" in answer:
            raise UsageError(f"OPA cannot evaluate the query: {_message(answer['errors'])}")
        return answer

    def _run(self, query: str, file: Path, sources: Iterable[str], *options: str) -> tuple[dict[str, Any], str]:
        """Run OPA once. Return its answer, which may contain run-time errors, and the text that it printed."""
        # OPA gets a timeout of its own, which stops it even if this process has ended.
        arguments = ["eval", "--timeout", f"{2 * self._timeout:g}s", "--format", "json", "--input", str(file)]
        arguments += ["--data", "data.json", *options]
        arguments += [part for source in sources for part in ("--data", source)]
        done = run_opa(self._opa, [*arguments, query], folder=self._folder, timeout=self._timeout)
        complaint = done.stderr.decode(errors="replace")
        try:
            # The temporary folder is removed from the names, so that changed modules are named by their path like all
            # others.
            answer = orjson.loads(done.stdout.replace(f"{file.parent}/".encode(), b""))
        except ValueError:
            lines = complaint.strip().splitlines()
            raise UsageError(f"OPA rejected the evaluation: {lines[0] if lines else 'no message'}") from None
        errors = answer.get("errors", [])
        if errors and not all(str(error.get("code", "")).startswith(_AT_RUN_TIME) for error in errors):
            raise UsageError(f"OPA rejected the policies: {_message(errors)}")
        return answer, complaint


def coverage_lines(report: Mapping[str, Any]) -> dict[str, Lines]:
    """Return the covered and missed lines of each module, by path, from OPA's report for `--coverage`."""
    lines: dict[str, Lines] = {}
    for path, file in report.get("files", {}).items():
        missed = _rows(file.get("not_covered", ()))
        # A partly evaluated line counts as missed: `a contains x if y` is covered only if `y` was true.
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
