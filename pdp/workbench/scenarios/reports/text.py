"""Report a run as text: a summary and, for each failure, the expected result, the actual result and the reason."""

import json
import textwrap
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any, Final

from pdp.workbench.scenarios.results import Diagnosis, Fired, Missed, RunResult, ScenarioResult
from pdp.workbench.shown_file import markdown_code, markdown_text, printable

_COLUMN: Final = 44
_KEY: Final = 11
_LONGEST: Final = 500


def failure_text(result: ScenarioResult) -> str:
    """Return the report of a failed scenario. Text from scenarios and tools is escaped and kept on one line."""
    return "\n".join(line.rstrip() for line in _failure(result))


def summary_text(run: RunResult) -> str:
    """Return a summary of the run in one line, and a second line about the golden scenarios if there are any."""
    results = run.results
    engines = ", ".join(dict.fromkeys(result.engine for result in results))
    files = len({result.place.file for result in results})
    passed = len(results) - run.failed
    seconds = sum(suite.seconds for suite in run.suites)
    text = f"{passed} passed, {run.failed} failed" if run.failed else f"{passed} passed"
    text += f": {files} {'file' if files == 1 else 'files'}, {engines}, {seconds:.2f} s"
    golden = run.golden
    if golden.total:
        text += f"\ngolden: {golden.total}, of which {golden.schema_valid} schema-valid and {golden.in_manifest}"
        text += " in the manifest"
        text += "".join(
            f"; {score.right} of {score.of} have the expected {name}"
            for name, score in (("tool", golden.tools), ("arguments", golden.arguments))
            if score.of
        )
    return text


def one_line(text: str) -> str:
    """Return a text truncated to 500 characters, with unprintable characters escaped."""
    return printable(text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "...")


def _failure(result: ScenarioResult) -> Iterator[str]:
    yield f"FAILED {one_line(result.name)} [{result.engine}]"
    failed = next(((at, step) for at, step in enumerate(result.steps) if step.mismatches), None)
    yield f"  {result.place.file}:{result.place.line}"
    if result.why:
        yield f"  why: {one_line(result.why)}"
    if result.error is not None:
        yield f"  error: {one_line(result.error)}"
    if failed is not None:
        at, step = failed
        if at or len(result.steps) > 1 or step.place != result.place:
            yield f"  step {at + 1}, {step.action}: {step.place.file}:{step.place.line}"
        yield from (f"  {name}: {_value(value)}" for name, value in step.given.items())
        yield ""
        yield from _table([(mismatch.key, mismatch.expected, mismatch.actual) for mismatch in step.mismatches])
        for evaluation in step.evaluations:
            failure = evaluation.outcome.failure
            if failure is not None:
                yield ""
                # The exception's text is shown here, because the model gets only its class but the tool's author needs
                # the text.
                raised = "" if evaluation.error is None else str(evaluation.error)
                text = "" if raised in failure.message else f" ({one_line(raised)})"
                yield f"  the tool failed: {failure.code}: {one_line(failure.message)}{text}"
    if result.diagnosis is not None:
        yield from _diagnosis(result.diagnosis)
    for line in result.log:
        yield f"  log: {one_line(line)}"


def _table(rows: Iterable[tuple[str, Any, Any]]) -> Iterator[str]:
    yield f"  {'':<{_KEY}} {'expected':<{_COLUMN}} | actual"
    for key, expected, actual in rows:
        cells = textwrap.wrap(key, _KEY), _cell(expected), _cell(actual)
        for name, left, right in zip_longest(*cells, fillvalue=""):
            yield f"  {name:<{_KEY}} {left:<{_COLUMN}} | {right}"


def _cell(value: Any) -> list[str]:
    items = value if isinstance(value, list) and value else [value]
    return [line for item in items for line in textwrap.wrap(_value(item), _COLUMN, drop_whitespace=False) or ['""']]


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return one_line(text)


def _diagnosis(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.stopped is not None:
        yield ""
        yield f"  stopped by the enforcement point: {one_line(diagnosis.stopped)}"
    if diagnosis.fired:
        yield ""
        yield "  rules that fired:"
        for fired in diagnosis.fired:
            yield from _fired(fired)
    if diagnosis.missed:
        yield ""
        yield "  rules that should have fired:"
        for missed in diagnosis.missed:
            yield from _missed(missed)
        if diagnosis.unknown is not None:
            yield f"  rules that did not fire: not known{one_line(diagnosis.unknown)}"


def _fired(fired: Fired) -> Iterator[str]:
    yield f"    {fired.part:<11} {one_line(fired.code)}  {fired.where or ''}"
    details = f"  {_value(fired.details)}" if fired.details else ""
    yield f"    {'':<11} {one_line(fired.message)}{details}"
    if fired.remedy:
        yield f"    {'':<11} {one_line(fired.remedy)}"


def _missed(missed: Missed) -> Iterator[str]:
    yield f"    {one_line(missed.code)}  {missed.where}"
    if missed.condition is not None:
        yield f"      stopped at: {one_line(missed.condition)}"
        for name, value in (missed.seen or {}).items():
            yield f"      {one_line(name)} = {_value(value)}"


_OPEN: Final = 2
"""The number of failures that are unfolded at first, so that they fit on one screen."""


def markdown_report(run: RunResult) -> str:
    """Return the report of a run as Markdown, for a comment on a pull request."""
    return "\n".join(_lines(run)) + "\n"


def _lines(run: RunResult) -> Iterator[str]:
    summary, *golden = map(markdown_text, summary_text(run).split("\n"))
    yield f"## {summary}"
    failed = [card for card in run.cards if not card.passed]
    for number, card in enumerate(failed):
        unfolded = " open" if number < _OPEN else ""
        yield from ("", f"<details{unfolded}><summary>{markdown_text(one_line(card.name))}</summary>", "")
        # The text is shown as an indented block, which ends only with the indentation, so no text can break out of it.
        yield from (f"    {printable(line)}" for line in failure_text(card).split("\n"))
        yield from ("", "</details>")
    for missing in (run.coverage or {"missing": ()})["missing"]:
        yield from ("", f"**missing** {markdown_text(missing['message'])}")
    yield from ("", "<details><summary>every scenario</summary>", "")
    for card in run.cards:
        mark = "passed" if card.passed else "**failed**"
        yield f"- {mark} {markdown_text(one_line(card.name))} {markdown_code(f'{card.place.file}:{card.place.line}')}"
    yield from ("", *golden, "", "</details>")
