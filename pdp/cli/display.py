"""What people see on a terminal: evaluations, and progress on standard error."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text

from pdp.json import canonical
from pdp.workbench.reports.shown_file import printable

if TYPE_CHECKING:
    from rich.progress import Progress

    from pdp.evaluation import Evaluation

STYLES: Final = {"ALLOW": "bold green", "STEP_UP": "bold yellow", "DENY": "bold red", "REJECTED": "bold red"}


_PIPE_WIDTH: Final = 120


def word(evaluation: Evaluation) -> str:
    """Return the one word for an evaluation: its verdict, or REJECTED when the policy was not asked."""
    return evaluation.verdict or "REJECTED"


def console() -> Console:
    """Return a console for standard output; colours and width are the terminal's, and plain text goes into pipes."""
    out = Console(highlight=False, soft_wrap=True)
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = _PIPE_WIDTH
    return out


def print_evaluation(evaluation: Evaluation) -> None:
    """Print verdict, tool, reasons and where they come from. What the model wrote is shown, never obeyed."""
    trace = evaluation.trace
    text = Text.assemble((word(evaluation), STYLES[word(evaluation)]))
    text.append(f"  {printable(trace.tool_name) if trace.tool_name else '(no tool)'}\n", style="bold")
    rejection = evaluation.outcome.rejection
    if evaluation.decision is None and rejection is not None:
        text.append(f"  {rejection.code}", style="bold")
        text.append(f"  {printable(rejection.reason)}\n")
        text.append("  rejected before the policy was asked\n", style="dim")
    for reason in evaluation.reasons:
        text.append(f"  {printable(reason.code)}", style="bold")
        text.append(f"  {printable(reason.message)}\n")
        if reason.details:
            text.append(f"      {printable(canonical(reason.details).decode())}\n", style="dim")
        if reason.remedy:
            text.append(f"      {printable(reason.remedy)}\n")
    for obligation in evaluation.obligations:
        parameters = canonical(obligation.parameters).decode()
        text.append(f"  obligation {printable(f'{obligation.id} {parameters}')}\n")
    if evaluation.verdict == "STEP_UP":
        text.append("  a person must approve first; this command opens no approval\n", style="dim")
    text.append(f"  {_where(evaluation)}", style="dim")
    console().print(text)


def _where(evaluation: Evaluation) -> str:
    trace, decision = evaluation.trace, evaluation.decision
    where = f"manifest {trace.manifest_version}"
    if decision is not None and decision.release is not None:
        where += f", policy release {decision.release}"
    if trace.request_id:
        where += f", request {trace.request_id}"
    return printable(where)


def progress(*, quiet: bool) -> Progress:
    """Return a display of progress on standard error, taken away at its end; without a terminal it draws nothing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn  # noqa: PLC0415

    hidden = quiet or sys.stderr is None or not sys.stderr.isatty()
    columns = (BarColumn(), MofNCompleteColumn(), "{task.description}", TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True, quiet=hidden), transient=True, disable=hidden)
