"""One batch of requests for OPA: the query that asks them all, and what its answer says of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.errors import FileFaultsError
from pdp.json import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pdp.workbench.opa.evaluation import Evaluator

_MOST_FAILURES: Final = 16
_MARK: Final = "pdp-input"


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of one module, from 1: those that were evaluated wholly, and those of which something was not."""

    covered: frozenset[int]
    missed: frozenset[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """What a run came to.

    Attributes:
        answers: for each input in its place the document as canonical bytes (see `canonical_answer`); None when it was
            undefined or failed.
        errors: why, by the input's index: OPA's code and message; `undefined` when the document was.
        lines: by the module's path, when coverage was asked for; only of inputs that did not fail.
    """

    answers: tuple[bytes | None, ...]
    errors: Mapping[int, str] = field(default_factory=dict)
    lines: Mapping[str, Lines] | None = None


def canonical_answer(document: bytes | Any) -> bytes:
    """Return a decision or findings document, JSON bytes or parsed, in one form for all engines.

    Rego's sets have no order (reasons, obligations): whatever list stands at the top of the document is sorted.
    """
    value = orjson.loads(document) if isinstance(document, bytes) else document
    if isinstance(value, dict):
        value = {key: sorted(item, key=canonical) if isinstance(item, list) else item for key, item in value.items()}
    return canonical(value)


class BatchRun:
    """One batch: run, and run again behind each input that fails."""

    def __init__(
        self,
        evaluator: Evaluator,
        folder: Path,
        changed: Mapping[str, str],
        document: str,
        *,
        coverage: bool = False,
    ) -> None:
        self._evaluator = evaluator
        self._folder = folder
        self._sources = evaluator.sources(folder, changed)
        self._options = ["--coverage", "--coverage-runs="] if coverage else []
        # The index is printed before an input is evaluated: where a run fails, the last one printed is at fault.
        marked = f'some i, e in input; print("{_MARK}", i)'
        self._query = f"[[i, x] | {marked}; x := [d | d := {document} with input as e]]"
        self._reports: list[dict[str, Any]] = []
        self.answers: list[bytes | None] = []
        self.errors: dict[int, str] = {}

    def evaluate(self, inputs: Sequence[bytes]) -> None:
        """Run OPA as often as it takes, and put what is known of each input into `answers` or `errors`."""
        self.answers = [None] * len(inputs)
        pending = list(range(len(inputs)))
        while pending:
            answer, printed = self._ask([inputs[index] for index in pending])
            if "errors" not in answer:
                self._take(answer, pending)
                return
            failing = _last_marked(printed, len(pending))
            self.errors[pending[failing]] = self._plain(message_of(answer["errors"]))
            if len(self.errors) < _MOST_FAILURES:
                del pending[failing]
            else:
                # A policy that is broken fails for each input, and each costs a run: that much is known by now.
                self.errors |= dict.fromkeys(
                    pending[failing + 1 :], f"not evaluated: {_MOST_FAILURES} before it failed"
                )
                del pending[failing:]

    def _ask(self, inputs: Sequence[bytes]) -> tuple[dict[str, Any], str]:
        file = self._folder / "inputs.json"
        file.write_bytes(b"[" + b",".join(inputs) + b"]")
        try:
            return self._evaluator.run(self._query, file, list(self._sources.values()), *self._options)
        except FileFaultsError as error:
            raise FileFaultsError(
                [
                    replace(fault, place=replace(fault.place, file=self._plain(fault.place.file)))
                    for fault in error.faults
                ]
            ) from None

    def _plain(self, text: str) -> str:
        """Name modules by their path alone, wherever this run has put them."""
        return text.replace(f"{self._folder}/", "")

    def _take(self, answer: dict[str, Any], pending: Sequence[int]) -> None:
        for position, values in answer["result"][0]["expressions"][0]["value"]:
            if values:
                self.answers[pending[position]] = canonical_answer(values[0])
            else:
                self.errors[pending[position]] = "undefined"
        if "coverage" in answer:
            self._reports.append(answer["coverage"])

    def lines(self) -> dict[str, Lines]:
        """Put the reports together: a line is covered when one run covered it wholly."""
        path_of = {source.removeprefix("/"): path for path, source in self._sources.items()}
        found: dict[str, Lines] = {}
        for report in self._reports:
            for source, file in report["files"].items():
                path = path_of.get(source.removeprefix("/"))
                if path is not None:
                    found[path] = _lines(file)
        return found


def _lines(file: Mapping[str, Any]) -> Lines:
    missed = _rows(file.get("not_covered", ()))
    # A line of which a part was not evaluated is missed: `a contains x if y` counts only when y held.
    return Lines(frozenset(_rows(file.get("covered", ())) - missed), frozenset(missed))


def _rows(ranges: Sequence[Mapping[str, Any]]) -> set[int]:
    return {row for part in ranges for row in range(part["start"]["row"], part["end"]["row"] + 1)}


def _last_marked(printed: str, count: int) -> int:
    marked = [line.removeprefix(_MARK) for line in printed.splitlines() if line.startswith(_MARK)]
    return min(int(marked[-1]), count - 1) if marked else 0


def message_of(errors: Sequence[Mapping[str, Any]]) -> str:
    """Return what OPA says of an error, the first of several, in one line."""
    first = errors[0]
    location = first.get("location") or {}
    where = f" ({location['file']}:{location['row']})" if location.get("file") else ""
    return f"{first.get('code', 'error')}: {' '.join(str(first.get('message', '')).split())}{where}"
