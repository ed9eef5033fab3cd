"""How evaluations look on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text

from pdp.canonical import canonical

if TYPE_CHECKING:
    from pdp.call import Evaluation

STYLES: Final = {"ALLOW": "bold green", "STEP_UP": "bold yellow", "DENY": "bold red", "REJECTED": "bold red"}


def word(evaluation: Evaluation) -> str:
    """Return the one word for an evaluation: its verdict, or REJECTED when the policy was not asked."""
    return evaluation.verdict or "REJECTED"


def console() -> Console:
    """Return a console for standard output; colours and width are the terminal's, and plain text goes into pipes."""
    return Console(highlight=False, soft_wrap=True)


def print_evaluation(evaluation: Evaluation) -> None:
    """Print verdict, tool, reasons and where they come from."""
    out = console()
    trace = evaluation.trace
    head = Text(word(evaluation), style=STYLES[word(evaluation)])
    head.append(f"  {trace.tool_name or '(no tool)'}", style="bold")
    out.print(head)
    if evaluation.decision is None and evaluation.outcome.rejection is not None:
        rejection = evaluation.outcome.rejection
        out.print(Text(f"  {rejection.code}: {rejection.reason}"))
        out.print(Text("  rejected before the policy was asked", style="dim"))
    for reason in evaluation.reasons:
        out.print(Text.assemble("  ", (reason.code, "bold"), f"  {reason.message}"))
        if reason.details:
            out.print(Text(f"      {canonical(reason.details).decode()}", style="dim"))
    for obligation in evaluation.obligations:
        out.print(Text(f"  obligation {obligation.id} {canonical(obligation.parameters).decode()}"))
    where = f"  manifest {trace.manifest_version}"
    if evaluation.decision and evaluation.decision.release is not None:
        where += f", policy release {evaluation.decision.release}"
    if trace.request_id:
        where += f", request {trace.request_id}"
    out.print(Text(where, style="dim"))
