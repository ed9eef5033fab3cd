"""`pdp approvals`: list, show and watch approvals, and decide on them. The class `Approvals` checks who may do this."""

import select
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from pdp.approvals.people import ApprovalRefusedError, Refusal, may_decide
from pdp.approvals.sentence import fields, sentence
from pdp.cli import Exit
from pdp.cli.commands.stores.desk import Desk, open_desk, open_of, select_approvals, whole_id
from pdp.cli.commands.stores.stores import StepAudit, StoreUrl
from pdp.cli.options import AsJson, command_app, file_option
from pdp.cli.output import print_answer, print_error, print_line
from pdp.client.client import ServiceError
from pdp.clock import LAST_SECOND, to_seconds
from pdp.documents import FieldError
from pdp.errors import PdpError, UsageError
from pdp.manifest.fields import duration_seconds
from pdp.stores.approvals import Approval, ApprovalState

app = command_app(
    "Decide on calls that wait for a person. The session file names the person who decides; its claims are not "
    "verified, so protect the store. With --service, the token identifies the person."
)

_POLL_SECONDS: Final = 1.0

_ID: Final = "from `pdp approvals list`; the first 6 digits of an open approval's id are enough."
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help=f"The approval's id {_ID}")]
ApprovalIds = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help=f"The approvals' ids {_ID}")]
Decider = Annotated[
    Path | None, file_option("--session", "-s", help="A session file; its claims identify the person who decides.")
]
OfRun = Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only approvals of the run with this id.")]
WholeRun = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help="All approvals of this run that are pending, or granted and not used."),
]
OfTool = Annotated[str | None, typer.Option("--tool", metavar="TOOL", help="Only approvals of calls of this tool.")]
ServiceUrl = Annotated[
    str | None,
    typer.Option(
        "--service",
        metavar="URL",
        help="The URL of a decision service to use instead of a store. The token in PDP_TOKEN identifies the person.",
    ),
]


@app.command("list")
def listing(
    every: Annotated[bool, typer.Option("--all", help="Include decided, expired and used approvals.")] = False,
    state: Annotated[
        ApprovalState | None, typer.Option("--state", help="Only approvals in this state. Default: pending.")
    ] = None,
    tool: OfTool = None,
    run: OfRun = None,
    mine: Annotated[
        bool,
        typer.Option("--mine", help="Only approvals that the person of --session may decide and has not granted."),
    ] = False,
    session: Decider = None,
    store: StoreUrl = None,
    service: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """List pending approvals, the oldest first: tool, what the call acts on, who asks, and how long it is open.

    Exit code: 0 shown, 2 bad usage, 1 the store or service cannot be reached.
    """
    if every and state is not None:
        raise UsageError("--all excludes --state", hint="remove one of the options")
    if mine and session is None:
        raise UsageError("--mine needs a person", hint="name the person with --session FILE and use a store")
    wanted = None if every else state or ApprovalState.PENDING
    with open_desk(store, service, session, decides=False) as (desk, claims):
        found, now = select_approvals(desk, wanted, tool, run), to_seconds(time.time())
    approvals = [approval for approval in found if not mine or may_decide(approval, claims, now)]
    filtered = " that match" if mine or tool is not None or run is not None else ""
    lines = list(map(_line, approvals))
    empty = f"no {'' if wanted is None else f'{wanted} '}approvals{filtered}"
    print_answer([approval.as_json() for approval in approvals], lines or [empty], as_json=as_json)


@app.command()
def show(approval_id: ApprovalId, store: StoreUrl = None, service: ServiceUrl = None, as_json: AsJson = False) -> None:
    """Show an approval: tool, all arguments, reasons, requester, and who has granted the approval.

    Exit code: 0 shown, 2 bad usage, 1 no approval with that id, or the store or service cannot be reached.
    """
    with open_desk(store, service, decides=False) as (desk, _):
        approval = desk.get(whole_id(desk, approval_id))
    _print(approval, as_json=as_json)


@app.command()
def watch(
    tool: OfTool = None,
    run: OfRun = None,
    session: Decider = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    service: ServiceUrl = None,
) -> None:
    """Wait for approvals, show each one as `show` does, and ask for an answer in the terminal.

    With a store, only approvals that the person of --session may decide are shown. The answer `run` or `until P7D`
    also allows similar calls, if the policy offers this. `q`, Ctrl-D and Ctrl-C end the command.

    Exit code: 0 ended, 2 bad usage or file, 1 the store or service cannot be reached.
    """
    if sys.stdin is None:
        raise UsageError("there is no input to read answers from", hint="run the command in a terminal")
    seen: set[str] = set()
    with suppress(KeyboardInterrupt), open_desk(store, service, session, audit, decides=True) as (desk, claims):
        print_error("waiting for approvals; q or Ctrl-C ends")
        while True:
            now = to_seconds(time.time())
            waiting = (
                approval
                for approval in select_approvals(desk, ApprovalState.PENDING, tool, run)
                if approval.id not in seen and (claims is None or may_decide(approval, claims, now))
            )
            approval = next(waiting, None)
            if approval is None:
                if _has_quit(_POLL_SECONDS):
                    return
                continue
            seen.add(approval.id)
            if not _ask(desk, approval):
                return


@app.command()
def grant(
    approval_id: ApprovalId,
    session: Decider = None,
    reach: Annotated[
        str | None,
        typer.Option("--for", metavar="run|P7D", help="Also approve similar calls, of this run or for a duration."),
    ] = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    service: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Approve a call, as the person in the session file. When enough people have approved the call, it may run once.

    With --for, similar calls may run as well, as far as `approval.lasting` of the tool's entry allows.

    Exit code: 0 counted, 2 bad usage or file, 1 rejected, or the store or service cannot be reached.
    """
    choice = {} if reach is None else _choice(reach)
    with open_desk(store, service, session, audit, decides=True) as (desk, _):
        approval = desk.grant(whole_id(desk, approval_id), **choice)
    _print(approval, as_json=as_json)


@app.command()
def deny(
    approval_ids: ApprovalIds = None,
    run: WholeRun = None,
    session: Decider = None,
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help="The reason, which is recorded.")] = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    service: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Deny calls, as the person in the session file. One denial is enough to stop a call.

    Exit code: 0 denied, 2 bad usage or file, 1 one was rejected, or the store or service cannot be reached.
    """
    with open_desk(store, service, session, audit, decides=True) as (desk, _):
        _end("deny", desk, approval_ids or [], run, as_json=as_json, why=why)


@app.command()
def withdraw(
    approval_ids: ApprovalIds = None,
    run: WholeRun = None,
    session: Decider = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    service: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Withdraw approvals that you requested.

    Exit code: 0 withdrawn, 2 bad usage or file, 1 one was rejected, or the store or service cannot be reached.
    """
    with open_desk(store, service, session, audit, decides=True) as (desk, _):
        _end("withdraw", desk, approval_ids or [], run, as_json=as_json)


def _end(
    step: Literal["deny", "withdraw"],
    desk: Desk,
    approval_ids: list[str],
    run: str | None,
    *,
    as_json: bool,
    **reason: str | None,
) -> None:
    """End the approvals with these ids and of this run. A failure does not stop the others."""
    if not approval_ids and run is None:
        raise UsageError("no approval is given", hint="give ids from `pdp approvals list`, or --run RUN")
    chosen = [whole_id(desk, each) for each in approval_ids]
    if len(chosen) == 1 and run is None:
        _print(getattr(desk, step)(*chosen, **reason), as_json=as_json)
        return
    chosen += [] if run is None else [approval.id for approval in open_of(desk, run)]
    ended: list[Approval] = []
    for approval_id in dict.fromkeys(chosen):
        try:
            ended.append(getattr(desk, step)(approval_id, **reason))
        except PdpError as error:
            print_error(f"error: {error.message}")
    lines = list(map(_line, ended))
    empty = [] if chosen else [f"no open approvals of run {run}"]
    print_answer([approval.as_json() for approval in ended], lines or empty, as_json=as_json)
    if len(ended) < len(dict.fromkeys(chosen)):
        raise typer.Exit(Exit.FAILED)


def _line(approval: Approval) -> str:
    page = "" if approval.url is None else f"  {approval.url}"
    return f"{approval.id}  {sentence(approval)}{page}"


def _print(approval: Approval, *, as_json: bool) -> None:
    lines = [f"{approval.standing}  {approval.id}", *(f"  {name:<10} {text}" for name, text in fields(approval))]
    print_answer(approval.as_json(), lines, as_json=as_json)


def _ask(desk: Desk, approval: Approval) -> bool:
    """Show an approval, and apply the person's answer. Return False if the person quits."""
    _print(approval, as_json=False)
    # Long arguments may have moved the tool and its target out of sight.
    print_answer(None, [sentence(approval)], as_json=False)
    reaches = approval.lasting.reaches if approval.lasting is not None else ()
    lasting = "".join(f"[{each}], " for each in ("run", "until DURATION") if each.partition(" ")[0] in reaches)
    while True:
        answer = _read(f"[y]es, [n]o, {lasting}[s]kip, [q]uit?")
        if answer in (None, "q", "quit"):
            return False
        if answer in ("s", "skip"):
            return True
        try:
            decided = _answered(desk, approval, *answer.partition(" ")[::2])
        except UsageError as error:
            print_error(f"error: {error}")
        except (ApprovalRefusedError, ServiceError) as error:
            print_error(f"error: {error.message}")
            if error.error_code != f"approvals.{Refusal.REACH}":
                return True
        else:
            if decided is not None:
                print_answer(None, [f"{decided.standing}  {decided.id}"], as_json=False)
                return True


def _answered(desk: Desk, approval: Approval, word: str, rest: str) -> Approval | None:
    """Take the step that an answer names, and return the approval; None for an answer that is not understood."""
    match word, rest:
        case "y" | "yes", "":
            return desk.grant(approval.id)
        case "n" | "no", _:
            return desk.deny(approval.id, rest or _read("reason (optional):") or None)
        case ("run", "") | ("until", _):
            return desk.grant(approval.id, **_choice(rest or word))
    return None


def _choice(text: str) -> dict[str, str]:
    """Return the reach and the end of a grant for `run`, or for a duration such as `P7D`."""
    if text == "run":
        return {"reach": "run"}
    try:
        seconds = duration_seconds(text)
    except FieldError as error:
        raise UsageError(f"{text!r:.60}: {error}", hint="write `run`, or a duration: P7D, PT4H") from None
    return {"reach": "until", "until": to_seconds(min(time.time() + seconds, LAST_SECOND))}


def _read(question: str) -> str | None:
    """Ask a question and return the answer; None at the end of input. Lines typed before the question do not count."""
    if sys.stdin.isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    print_line(question)
    sys.stdout.flush()
    line = sys.stdin.buffer.readline()
    return line.decode(errors="replace").strip() if line else None


def _has_quit(seconds: float) -> bool:
    """Wait for the given time. Return True if the person quits or the input ends; other lines are ignored."""
    ready, *_ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and sys.stdin.buffer.readline() in (b"", b"q\n", b"quit\n")
