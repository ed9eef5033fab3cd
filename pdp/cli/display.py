"""Output on a terminal: styled lines, evaluations, and progress on standard error."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

import typer

from pdp.cli.output import print_line
from pdp.flow.evaluation import Evaluation
from pdp.json import canonical
from pdp.workbench.shown_file import printable

if TYPE_CHECKING:
    from rich.progress import Progress

STYLES: Final = {"ALLOW": "bold green", "STEP_UP": "bold yellow", "DENY": "bold red", "REJECTED": "bold red"}


def word(evaluation: Evaluation) -> str:
    """Return the evaluation's verdict, or REJECTED if the policy was not asked."""
    return evaluation.verdict or "REJECTED"


def show(*parts: str | tuple[str, str]) -> None:
    """Print the parts as one line; a part is a text, or a text and its style. Unprintable characters are escaped."""
    print_line("".join(printable(part) if isinstance(part, str) else _styled(*part) for part in parts))


def _styled(text: str, style: str) -> str:
    if sys.stdout is None or not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return printable(text)
    words = set(style.split())
    color = words - {"bold", "dim"}
    return typer.style(printable(text), bold="bold" in words, dim="dim" in words, fg=color.pop() if color else None)


def print_evaluation(evaluation: Evaluation) -> None:
    """Print the verdict, tool, reasons and versions of an evaluation, with unprintable characters as escapes."""
    trace, decision, rejection = evaluation.trace, evaluation.decision, evaluation.outcome.rejection
    show((word(evaluation), STYLES[word(evaluation)]), (f"  {trace.tool_name or '(no tool)'}", "bold"))
    if decision is None and rejection is not None:
        show((f"  {rejection.code}", "bold"), f"  {rejection.reason}")
        show(("  rejected before the policy was asked", "dim"))
    for reason in evaluation.reasons:
        show((f"  {reason.code}", "bold"), f"  {reason.message}")
        if reason.details:
            show((f"      {canonical(reason.details).decode()}", "dim"))
        for text in filter(None, (reason.explanation, reason.remedy)):
            show(f"      {text}")
    for obligation in evaluation.obligations:
        show(f"  obligation {obligation.id} {canonical(obligation.parameters).decode()}")
    if evaluation.verdict == "STEP_UP":
        show(("  a person must approve first; this command opens no approval", "dim"))
    release = f", policy release {decision.release}" if decision and decision.release is not None else ""
    request = f", request {trace.request_id}" if trace.request_id else ""
    show((f"  manifest {trace.manifest_version}{release}{request}", "dim"))
    print_more(evaluation)


def print_more(evaluation: Evaluation) -> None:
    """Print the command that explains the first reason code of a call that is not allowed."""
    rejection = evaluation.outcome.rejection
    codes = evaluation.codes or ((rejection.code,) if rejection else ())
    if not evaluation.allowed and codes:
        show((f"  more: pdp explain {codes[0]}", "dim"))


def progress(*, quiet: bool) -> Progress:
    """Return a progress bar on standard error, which is removed at its end. Without a terminal, nothing is shown."""
    from rich.console import Console  # noqa: PLC0415 - most commands show no progress
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn  # noqa: PLC0415

    hidden = quiet or sys.stderr is None or not sys.stderr.isatty()
    columns = (BarColumn(), MofNCompleteColumn(), "{task.description}", TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True, quiet=hidden), transient=True, disable=hidden)
