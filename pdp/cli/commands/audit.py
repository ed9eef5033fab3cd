"""`pdp audit`: shows, exports, verifies and rotates streams of audit events, and decides recorded requests again."""

import gzip
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any, Final

import typer

from pdp.audit.archive import check_folder
from pdp.audit.chain import KEY_BYTES, LINE_BYTES, ROTATED, chain_hash
from pdp.audit.file import Head, key_bytes, request_rotation
from pdp.audit.verify import Chain
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

app = command_app("Show, export, verify and rotate streams of audit events, and decide recorded requests again.")

_UNKEYED: Final = "the stream has no key, so anyone with write access could have replaced the whole stream"
_NO_HEAD: Final = "without --head, missing events at the end are not detected"
_NO_KEY: Final = "PDP_AUDIT_KEY is not set: streams with a key cannot be verified without a key"
_INCOMPLETE: Final = "the last line is incomplete; the next writer removes it"
_UNFINISHED: Final = "check that this is an audit stream; to read the earlier events, remove the last line"
_NOTHING: Final = "nothing to rotate; the last event stays, and so do events from the first one with a recorded request"
_ANCHORED: Final = "earlier parts were not verified; event {} anchors them"
_LATER: Final = "the stream begins with a rotation: earlier files were not verified"


Streams = Annotated[
    list[str] | None,
    file_argument(
        "[FILE...]",
        help="The stream's files, oldest first, then its database's URL, if any. Files may be compressed (.gz). "
        f"Default: the URL in the variable {URL_VARIABLE}, else the project's store.",
    ),
]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only events from this time.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only events before this time.")]
Tool = Annotated[str | None, typer.Option("--tool", metavar="TOOL", help="Only events of this tool.")]
Run = Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only events of this run.")]
Subject = Annotated[str | None, typer.Option("--subject", metavar="NAME", help="Only events of this person or agent.")]
Code = Annotated[str | None, typer.Option("--code", metavar="CODE", help="Only decisions with this code.")]
_Wanted = Mapping[str, str | None]
_Line = tuple[bytes, dict[str, Any]]  # A line and its event.


@app.command("show")
def show(
    streams: Streams = None,
    since: Since = None,
    until: Until = None,
    tool: Tool = None,
    run: Run = None,
    subject: Subject = None,
    code: Code = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as JSON, one per line.")] = False,
) -> None:
    """Print audit events, one per line. To check that no event was changed, use `pdp audit verify`.

    Exit code: 0 shown, 2 bad usage or file, 1 a line is not an event.
    """
    for _, event in _events(streams, _wanted(since, until, tool, run, subject, code)):
        print_line(json.dumps(event) if as_json else printable(_shown(event)))


@app.command("export")
def export(
    streams: Streams = None,
    since: Since = None,
    until: Until = None,
    tool: Tool = None,
    run: Run = None,
    subject: Subject = None,
    code: Code = None,
    output: Annotated[
        Path | None, file_option("--output", "-o", help="The file, perhaps .gz. Default: stdout.")
    ] = None,
) -> None:
    """Write audit events as they are stored, as JSON Lines.

    Exit code: 0 written, 2 bad usage or file, 1 a line is not an event.
    """
    lines = (line for line, _ in _events(streams, _wanted(since, until, tool, run, subject, code)))
    if output is None:
        sys.stdout.flush()
        sys.stdout.buffer.writelines(lines)
        return
    try:
        with output.open("xb") as file, _opened(output, file) as content:
            content.writelines(lines)
    except OSError as error:
        raise UsageError(
            f"{output}: {error.strerror}", hint="name a new file in a folder that you can write"
        ) from error


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
    chain, reached = Chain(chain_hash(key)), named is None
    fault: str | None = None
    try:
        for each in streams or (None,):
            chain.begin()
            for _, event in _events_of(each, chain.check, {}):
                reached = reached or (event["seq"], event["hash"]) == named
        chain.finish()
    except AuditError as error:
        fault = error.message
    first, last = chain.first, chain.last
    if named is not None and not (fault or reached) and (last or named[0] >= 0):
        fault = f"event {named[0]}, which the head names, is missing"
    keyed = last.get("hash", "").startswith("hmac-")
    notes = [] if keyed or not last else [_UNKEYED]
    notes += [_NO_KEY] if fault and key is None else []
    notes += [] if named else [_NO_HEAD]
    notes += [_LATER] if first.get("type") == ROTATED else []
    notes += [_ANCHORED.format(chain.anchor)] if chain.anchor is not None else []
    answer = {"seq": last.get("seq"), "hash": last.get("hash"), "keyed": keyed, "fault": fault, "notes": notes}
    reach = f"events {first['seq']} to {last['seq']}" if last else "no events"
    line = f"intact: {reach}" if fault is None else f"not intact: {fault}"
    print_answer({"intact": fault is None, **answer}, [line, *(f"note: {note}" for note in notes)], as_json=as_json)
    raise typer.Exit(Exit.OK if fault is None else Exit.FAILED)


@app.command("rotate")
def rotate(
    stream: Annotated[str | None, file_argument("[FILE]", help="The file; with --to, the database's URL.")] = None,
    to: Annotated[Path | None, file_option("--to", metavar="DIR", help="Move events to files in this folder.")] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="TIME", help="Keep events from this time.")] = None,
    keep_days: Annotated[float | None, typer.Option("--keep-days", metavar="N", help="Keep the last N days.")] = None,
    as_json: AsJson = False,
) -> None:
    """Begin a new file with a stream's next event. With --to, move a database's oldest events to files in a folder.

    Without --before and --keep-days, only the last event stays in the database. The key is read from PDP_AUDIT_KEY.

    Exit code: 0 requested or rotated, 2 bad usage or file, 1 the stream is not intact, or the database cannot be used.
    """
    if to is not None and (before is None or keep_days is None) and (stream is None or "://" in stream):
        days = None if keep_days is None else to_milliseconds(time.time() - 86_400 * keep_days)
        check_folder(to)
        with stores_named(stream) as stores, closing(stores.open_audit(key_of_environment())) as log:
            parts = [*log.rotate(to, days or _time(before, "--before"))]
        lines = [f"{to / part.file}: events {part.first} to {part.last}" for part in parts] or [_NOTHING]
        print_answer({"folder": str(to), "parts": [part._asdict() for part in parts]}, lines, as_json=as_json)
        return
    if stream is None or "://" in stream or to is not None or before is not None or keep_days is not None:
        hint = "write `pdp audit rotate FILE`, or `pdp audit rotate URL --to DIR` with --before or --keep-days"
        raise UsageError("these arguments do not belong together", hint=hint)
    try:
        name = request_rotation(Path(stream))
    except AuditError as error:
        raise UsageError(error.message, hint=error.hint) from error
    line = f"{stream}: the next event begins a new file, and this file is kept as {name}"
    print_answer({"file": stream, "rotated": str(name)}, [line], as_json=as_json)


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
    since: Since = None,
    tool: Tool = None,
    run: Run = None,
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
        wanted = _wanted(since, None, tool, run, None, None)
        records: Iterable[Record]
        if requests is None:
            log = Requests(key)
            records = owned.enter_context(stores_named(streams[0] if streams else None)).requests.records(wanted)
        else:
            log = FileRequests(requests, key=key)
            loaded, events = log.load(), _events(streams, wanted)
            records = (
                (line, loaded.get(str(event.get("decision_id"))))
                for line, event in events
                if event["type"].endswith(".dispatch") and (event.get("verdict") or event.get("rejection"))
            )
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


def _time(text: str | None, option: str) -> str | None:
    """Return a time as events contain it. A time without a zone is in UTC."""
    try:
        when = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        hint = "write 2026-07-01 or 2026-07-01T10:00:00"
        raise UsageError(f"{option}: {text!r:.40} is not a time", hint=hint) from None
    return None if when is None else to_milliseconds((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


def _wanted(since: str | None, until: str | None, tool: str | None, run: str | None, *others: str | None) -> _Wanted:
    """Return the filters by their names in `Wanted`."""
    times = {"since": _time(since, "--since"), "until": _time(until, "--until")}
    return {**times, "tool": tool, "run_id": run, **dict(zip(("subject", "code"), others, strict=True))}


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


def _events(streams: list[str] | None, wanted: _Wanted) -> Iterator[_Line]:
    return (found for each in streams or (None,) for found in _events_of(each, _read, wanted))


def _is_wanted(event: Mapping[str, Any], wanted: _Wanted) -> bool:
    codes = (event.get("codes") or ()) if event["type"].endswith(".dispatch") else ()
    named = {"tool": "tool_name", "run_id": "run_id", "subject": "subject"}
    return (
        (wanted["since"] or "") <= event["time"] < (wanted["until"] or "~")
        and all(wanted[name] in (None, event.get(field)) for name, field in named.items())
        and (wanted["code"] is None or wanted["code"] in codes)
    )


def _events_of(stream: str | None, checked: Callable[[bytes], dict[str, Any]], wanted: _Wanted) -> Iterator[_Line]:
    """Yield the lines of a file or a database that are wanted, each with its event, which `checked` returns."""
    if stream is None or "://" in stream:
        with stores_named(stream) as stores, closing(stores.open_audit(None)) as log:
            yield from ((line + b"\n", event) for line, event in log.stored(checked, wanted))
        return
    try:
        with Path(stream).open("rb") as file, _opened(Path(stream), file) as lines:
            while line := lines.readline(LINE_BYTES):
                if not line.endswith(b"\n"):
                    raise AuditError(f"{stream}: {_INCOMPLETE}", hint=_UNFINISHED)
                event = checked(line)
                if not wanted or _is_wanted(event, wanted):
                    yield line, event
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise AuditError(f"{stream}: the compressed content is damaged: {error}") from error
    except OSError as error:
        raise UsageError(f"{stream}: {error.strerror}", hint="give the files of a stream, oldest first") from error


def _opened(path: Path, file: IO[bytes]) -> IO[bytes]:
    return gzip.GzipFile("", file.mode, fileobj=file, mtime=0) if path.suffix == ".gz" else file  # type: ignore[return-value]
