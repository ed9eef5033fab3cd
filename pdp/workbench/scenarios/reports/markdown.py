"""A run as Markdown for a pull request: what failed first, the rest folded away."""

from collections.abc import Iterator
from typing import Final

from pdp.workbench.reports.shown_file import markdown_code, markdown_text, printable
from pdp.workbench.scenarios.reports.text import failure_text, one_line, summary_text
from pdp.workbench.scenarios.results import RunResult

_OPEN: Final = 2
"""How many failures are open at first sight: they fit one screen."""


def markdown_report(run: RunResult) -> str:
    """Return the comment of a run."""
    return "\n".join(_lines(run)) + "\n"


def _lines(run: RunResult) -> Iterator[str]:
    summary, *golden = map(markdown_text, summary_text(run).split("\n"))
    yield f"## {summary}"
    failed = [card for card in run.cards if not card.passed]
    for number, card in enumerate(failed):
        unfolded = " open" if number < _OPEN else ""
        yield from ("", f"<details{unfolded}><summary>{markdown_text(one_line(card.name))}</summary>", "")
        # Indented code ends only with the indentation, whatever it contains.
        yield from (f"    {printable(line)}" for line in failure_text(card).split("\n"))
        yield from ("", "</details>")
    for missing in (run.coverage or {"missing": ()})["missing"]:
        yield from ("", f"**missing** {markdown_text(missing['message'])}")
    yield from ("", "<details><summary>every scenario</summary>", "")
    for card in run.cards:
        mark = "passed" if card.passed else "**failed**"
        yield f"- {mark} {markdown_text(one_line(card.name))} {markdown_code(f'{card.place.file}:{card.place.line}')}"
    yield from ("", *golden, "", "</details>")
