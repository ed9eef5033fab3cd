"""`pdp audit`: shows, verifies and rotates streams of audit events."""

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
from pdp.cli.output import print_answer, print_line
from pdp.errors import AuditError, UsageError
from pdp.json import parse_json
from pdp.workbench.shown_file import printable

app = command_app("Show, verify and rotate streams of audit events.")

_UNKEYED: Final = "the stream has no key, so anyone with write access could have replaced the whole stream"
_NO_HEAD: Final = "without --head, missing events at the end are not detected"
_NO_KEY: Final = "PDP_AUDIT_KEY is not set: streams with a key cannot be verified without a key"
_UNFINISHED: Final = "check that this is an audit stream; to read the earlier events, remove the last line"
_PAGE: Final = 1000
_LATER: Final = "the stream begins with a rotation: earlier files were not verified"


Streams = Annotated[
    list[str] | None,
    file_argument(
        "[FILE...]",
        help="The stream's files, oldest first, or its database's URL. Default: the URL in the variable "
        f"{URL_VARIABLE}, else the project's store.",
    ),
]


@app.command("show")
def show(
    streams: Streams = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as JSON, one per line.")] = False,
) -> None:
    """Print audit events, one per line. To check that no event was changed, use `pdp audit verify`.

    Exit code: 0 shown, 2 bad usage or file, 1 a line is not an event.
    """
    for line in _lines(streams):
        event = _read(line)
        print_line(json.dumps(event) if as_json else printable(_shown(event)))


@app.command("verify")
def verify(
    streams: Streams = None,
    head: Annotated[
        Path | None, file_option("--head", help="The file with the stream's head, which is kept in another place.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that no event of a stream was changed, removed, inserted or moved. The key is read from PDP_AUDIT_KEY.

    Exit code: 0 intact, 1 not intact, 2 bad usage or file.
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
        fault = f"event {named[0]}, which the head names, is missing"
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
    file: Annotated[Path, file_argument("FILE", help="The stream's current file.")],
    as_json: AsJson = False,
) -> None:
    """Request that a stream begins a new file with its next event. The hash chain continues in the new file.

    Exit code: 0 requested, 2 bad usage or file.
    """
    try:
        name = request_rotation(file)
    except AuditError as error:
        raise UsageError(error.message, hint=error.hint) from error
    line = f"{file}: the next event begins a new file, and this file is kept as {name}"
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
        "tool": (event.get("tool_name") or event.get("tool"),),  # events of older streams have the field `tool` instead
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
                event = json.loads(row.line)  # the caller has already checked the line
                if row != row.of(event, event["seq"], row.line):
                    raise AuditError(f"event {row.seq}: the columns differ from the event's line")
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
                            f"{file}: the last line is incomplete; the next writer removes it", hint=_UNFINISHED
                        )
                    yield line
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror}", hint="give the files of a stream, oldest first") from error
