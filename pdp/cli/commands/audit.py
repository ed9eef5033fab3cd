"""`pdp audit`: shows, verifies and rotates streams of audit events, and decides recorded requests again."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pdp.audit.chain import KEY_BYTES, ROTATED
from pdp.audit.file import LINE_BYTES, Head, key_bytes, request_rotation
from pdp.audit.verify import chained_events
from pdp.cli import Exit
from pdp.cli.commands.stores.stores import URL_VARIABLE, stores_named
from pdp.cli.files import effective_manifests, key_of_environment, project_with
from pdp.cli.options import AsJson, command_app, file_argument, file_option
from pdp.cli.output import print_answer, print_line
from pdp.clock import to_milliseconds
from pdp.engine.bundle.file import read_bundle
from pdp.engine.data import read_data
from pdp.errors import AuditError, UsageError
from pdp.json import parse_json
from pdp.workbench.shown_file import printable

app = command_app("Show, verify and rotate streams of audit events, and decide recorded requests again.")

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


@app.command("replay")
def replay(
    streams: Streams = None,
    bundle: Annotated[
        Path | None, file_option("--bundle", help="Decide with this bundle instead, and count what changes.")
    ] = None,
    bundles: Annotated[
        list[Path] | None,
        file_option(
            "--bundles",
            metavar="PATH",
            help="A bundle that has decided, or a folder with such bundles. May be repeated. Default: the project's.",
        ),
    ] = None,
    requests: Annotated[
        Path | None, file_option("--requests", metavar="DIR", help="With files: the folder of the recorded requests.")
    ] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only decisions from this time.")] = None,
    tool: Annotated[str | None, typer.Option("--tool", metavar="TOOL", help="Only calls of this tool.")] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only calls of this run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Decide recorded requests again, and compare the answers with the recorded ones. Reads the key PDP_REQUESTS_KEY.

    Each request is decided with the bundle that decided it then, which has to give the same answer, byte for byte.
    With --bundle, another bundle decides, and the changes are counted and grouped.

    Exit code: 0 equal, or with --bundle compared; 1 an answer differs, a request cannot be opened, or nothing was
    decided again; 2 bad usage or file.
    """
    from pdp.audit.requests import REQUESTS_KEY, FileRequests, Requests  # noqa: PLC0415 - an optional extra
    from pdp.workbench.replay import Record, Replay, known_bundles, replay_lines  # noqa: PLC0415 - starts slowly

    key = os.environ.get(REQUESTS_KEY, "").strip().encode()
    if len(key) < KEY_BYTES:
        hint = "set it to the key with which the requests were recorded"
        raise UsageError(f"the variable {REQUESTS_KEY} has no key of at least {KEY_BYTES} bytes", hint=hint)
    urls = [stream for stream in streams or () if "://" in stream]
    if urls != (streams or [])[:2] or urls[1:] if requests is None else urls or not streams:
        hint = "give the files and --requests, or only the URL of one database"
        raise UsageError(
            "the files of a stream and the folder of their requests (--requests) belong together", hint=hint
        )
    if requests is not None and not requests.is_dir():
        raise UsageError(f"{requests}: not a folder", hint="name the folder that `FileRequests` has written")
    project = project_with()
    effective = effective_manifests([], [], project)
    with ExitStack() as owned:
        wanted = {"tool": tool, "run_id": run, "since": _time(since)}
        records: Iterable[Record]
        if requests is None:
            log = Requests(key)
            records = owned.enter_context(stores_named(streams[0] if streams else None)).requests.records(wanted)
        else:
            log = FileRequests(requests, key=key)
            records = _decisions(_lines(streams), log.load(), wanted)
        replayed = Replay(
            log,
            known_bundles(bundles or [], project),
            new=None if bundle is None else read_bundle(bundle),
            manifests={each.digest: each.document for each in effective},
            data=read_data(project.data),
            sensitive={name: tool.sensitive for each in effective for name, tool in each.tools.items()},
            owned=owned,
        )
        result = replayed.run(records)
    print_answer(result.as_json(), replay_lines(result), as_json=as_json)
    raise typer.Exit(Exit.OK if result.decided and not result.faults else Exit.FAILED)


def _time(since: str | None) -> str | None:
    """Return a time as events contain it. A time without a zone is in UTC."""
    try:
        when = None if since is None else datetime.fromisoformat(since)
    except ValueError:
        hint = "write 2026-07-01 or 2026-07-01T10:00:00"
        raise UsageError(f"--since: {since!r:.40} is not a time", hint=hint) from None
    return None if when is None else to_milliseconds((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


def _decisions(
    lines: Iterable[bytes], records: Mapping[str, bytes], wanted: Mapping[str, str | None]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the lines of the decisions that are wanted, each with its record, if any."""
    for line in lines:
        event = _read(line)
        is_decision = event["type"].endswith(".dispatch") and (event.get("verdict") or event.get("rejection"))
        named = zip((event.get("tool_name"), event.get("run_id")), (wanted["tool"], wanted["run_id"]), strict=True)
        if is_decision and event["time"] >= (wanted["since"] or "") and all(its in (one, None) for one, its in named):
            yield line, records.get(str(event.get("decision_id")))


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
