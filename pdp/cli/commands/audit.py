"""`pdp audit`: show a stream of audit events, check it, and have it rotated."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pdp.audit.chain import ROTATED
from pdp.audit.file import LINE_BYTES, Head, key_bytes, request_rotation
from pdp.audit.verify import chained_events
from pdp.cli import Exit
from pdp.cli.commands.stores.stores import URL_VARIABLE, stores_named
from pdp.cli.files import key_of_environment
from pdp.cli.options import AsJson, command_app, file_argument, file_option
from pdp.cli.output import print_answer, tell
from pdp.errors import AuditError, UsageError
from pdp.json import parse_json
from pdp.workbench.shown_file import printable

app = command_app("Streams of audit events: show them, check them, and have them rotated.")

_UNKEYED: Final = "the chain is not keyed: whoever can write the stream could have written all of it anew"
_NO_HEAD: Final = "without --head, it does not show whether events were cut off at the end"
_NO_KEY: Final = "PDP_AUDIT_KEY is not set: a keyed stream cannot be checked without its key"
_UNFINISHED: Final = "check that this is a stream; without the unfinished line, the events before it can be read"
_PAGE: Final = 1000
_LATER: Final = "it begins with a rotation: the files before were not checked"


Streams = Annotated[
    list[str] | None,
    file_argument(
        "[FILE...]",
        help="The stream: its rotated files in order, then it; or its database's URL, which may "
        f"stand in {URL_VARIABLE} instead, or in the project.",
    ),
]


@app.command("show")
def show(
    streams: Streams = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as JSON, one on a line.")] = False,
) -> None:
    """Show events, one on a line, for `grep`. What was changed shows in `audit verify`.

    Exit code: 0 shown, 2 bad usage or file, 1 a line is not an event.
    """
    for line in _lines(streams):
        event = _read(line)
        tell(json.dumps(event) if as_json else printable(_shown(event)))


@app.command("verify")
def verify(
    streams: Streams = None,
    head: Annotated[Path | None, file_option("--head", help="The head that the stream has elsewhere.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that no event of a stream was changed, left out, put in or moved. PDP_AUDIT_KEY holds its key.

    Exit code: 0 intact, 1 not, 2 bad usage or file.
    """
    stream = Path(streams[-1] if streams else "database://stream")
    try:
        secret = key_of_environment()
        key = None if secret is None else key_bytes(secret, stream)
        named = None if head is None else Head(head, stream).last()
    except AuditError as error:
        raise UsageError(error.message, hint=error.hint) from error
    first: dict[str, Any] = {}
    last: dict[str, Any] = {}
    reached = named is None
    fault: str | None = None
    try:
        for event in chained_events(_lines(streams), key):
            first, last = first or event, event
            reached = reached or (event["seq"], event["hash"]) == named
    except AuditError as error:
        fault = error.message
    if named is not None and not (fault or reached) and (last or named[0] >= 0):
        fault = f"it does not reach its head, event {named[0]}"
    keyed = last.get("hash", "").startswith("hmac-")
    notes = [] if keyed or not last else [_UNKEYED]
    notes += [_NO_KEY] if fault and key is None else []
    notes += [] if named else [_NO_HEAD]
    notes += [_LATER] if first.get("type") == ROTATED else []
    answer = {"seq": last.get("seq"), "hash": last.get("hash"), "keyed": keyed, "fault": fault, "notes": notes}
    reach = f"events {first['seq']} to {last['seq']}" if last else "no events"
    line = f"intact: {reach}" if fault is None else f"not intact: {fault}"
    print_answer({"intact": fault is None, **answer}, [line, *(f"note: {note}" for note in notes)], as_json=as_json)
    raise typer.Exit(Exit.OK if fault is None else Exit.FAILED)


@app.command("rotate")
def rotate(
    file: Annotated[Path, file_argument("FILE", help="The stream.")],
    as_json: AsJson = False,
) -> None:
    """Ask whoever appends to a stream to begin a new file; it does so before its next event, and the chain goes on.

    Exit code: 0 asked, 2 bad usage or file.
    """
    try:
        name = request_rotation(file)
    except AuditError as error:
        raise UsageError(error.message, hint=error.hint) from error
    line = f"{file}: the next event begins a new file, and this one stays as {name}"
    print_answer({"file": str(file), "rotated": str(name)}, [line], as_json=as_json)


def _read(line: bytes) -> dict[str, Any]:
    try:
        event: dict[str, Any] = parse_json(line)
        _ = event["seq"] + 0, event["time"] + event["type"]
    except (ValueError, KeyError, TypeError) as error:
        raise AuditError(f"not an event: {line[:60]!r}", hint="see: pdp audit verify") from error
    return event


def _shown(event: dict[str, Any]) -> str:
    verdict = event.get("verdict") or ("REJECTED" if event.get("status") == "rejected" else None)
    facts = {
        "": (verdict, event.get("rejection"), *(event.get("codes") or ()), event.get("reason")),
        "settled as": (event.get("status") if event["type"].endswith(".settled") else None,),
        "outcome": (event.get("outcome"), event.get("error_code"), "a replay" if event.get("replayed") else None),
        "tool": (event.get("tool_name") or event.get("tool"),),  # older streams have `tool`
        "by": (event.get("subject"),), "run": (event.get("run_id"),),
        "tainted by": (event.get("flow") or {}).get("untrusted") or (),
        "approval": (event.get("approval_id"),), "key": (event.get("idempotency_key"),),
    }  # fmt: skip
    shown = (
        f"{name} {', '.join(map(str, filter(None, values)))}".removeprefix(" ")
        for name, values in facts.items()
        if any(values)
    )
    return "  ".join((f"{event['seq']:6}  {event['time']}  {event['type']}", *shown))


def _stored_lines(url: str | None) -> Iterator[bytes]:
    with stores_named(url) as stores, closing(stores.open_audit(None)) as log:
        after = -1
        while rows := log.lines(after, _PAGE):
            for row in rows:
                yield row.line.encode()
                if row != row.of(json.loads(row.line), row.line):  # whoever reads on has found the line sound
                    raise AuditError(
                        f"event {row.seq}: its columns seq, type and approval_id are not those of its line"
                    )
            after = rows[-1].seq


def _lines(streams: list[str] | None) -> Iterator[bytes]:
    for file in streams or (None,):
        if file is None or "://" in file:
            yield from _stored_lines(file)
            continue
        try:
            with Path(file).open("rb") as lines:
                while line := lines.readline(LINE_BYTES):
                    if not line.endswith(b"\n"):
                        raise AuditError(
                            f"{file} ends in an unfinished line, which whoever appends next cuts", hint=_UNFINISHED
                        )
                    yield line
        except OSError as error:
            raise UsageError(
                f"{file}: {error.strerror}", hint="name the files of a stream, the oldest first"
            ) from error
