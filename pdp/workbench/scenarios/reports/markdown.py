"""A run as Markdown for a pull request: what failed first, the rest folded away."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.reports.shown_file import markdown_code, markdown_text, printable
from pdp.workbench.scenarios.reports.text import failure_text, one_line, summary_text, verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.workbench.scenarios.results import RunResult, ScenarioResult

_FIRST: Final = 4
"""How many failures are open at first sight: they fit one screen."""


def markdown_report(run: RunResult, coverage: Mapping[str, Any] | None = None) -> str:
    """Return the comment of a run; `coverage` is plain JSON, as `Coverage.as_json` gives it."""
    return "\n".join(_lines(run, coverage)) + "\n"


def _lines(run: RunResult, coverage: Mapping[str, Any] | None) -> Iterator[str]:
    yield f"## {verdict_text(run)}"
    failed = [card for card in run.cards if not card.passed]
    for card in failed[:_FIRST]:
        yield from _failed(card)
    for message in (missing["message"] for missing in (coverage or {"missing": ()})["missing"]):
        yield from ("", f"**missing** {markdown_text(message)}")
    for card in failed:
        name = markdown_text(one_line(card.name))
        yield from ("", f"<details><summary>{name}</summary>", "")
        # Indented code ends only with the indentation, whatever it contains.
        yield from (f"    {printable(line)}" for line in failure_text(card).split("\n"))
        yield from ("", "</details>")
    yield from ("", "<details><summary>every scenario</summary>", "")
    for card in run.cards:
        mark = "passed" if card.passed else "**failed**"
        yield f"- {mark} {markdown_text(one_line(card.name))} {markdown_code(f'{card.place.file}:{card.place.line}')}"
    yield from ("", *map(markdown_text, summary_text(run).split("\n")), "", "</details>")


def _failed(card: ScenarioResult) -> Iterator[str]:
    where = markdown_code(f"{card.place.file}:{card.place.line}")
    yield from ("", f"**{markdown_text(one_line(card.name))}** {where} ({card.engine})", "")
    if card.error is not None:
        yield f"> {markdown_text(one_line(card.error))}"
    for step in card.steps:
        if step.mismatches:
            yield from (f"- {name} {_code(value)}" for name, value in step.given.items())
            yield from (
                f"- **{markdown_text(differing.key)}** {_code(differing.expected)}, and came {_code(differing.actual)}"
                for differing in step.mismatches
            )


def _code(value: Any) -> str:
    return markdown_code(one_line(json.dumps(value, ensure_ascii=False)))
