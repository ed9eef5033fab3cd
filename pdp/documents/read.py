"""Read a YAML or JSON file, strictly: bounded, UTF-8, with the fault and its place for whatever is wrong."""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from pdp.documents.compose import Composer, UnreadableError
from pdp.errors import Fault, FileFaultsError, UsageError

if TYPE_CHECKING:
    from pdp.documents.document import Document

MAX_FILE_BYTES: Final = 32 * 1024 * 1024
"""Largest file that is read: ten thousand richly described tools have about 12 MiB."""

# The C parser is ten times faster; without libyaml PyYAML's own does the same.
_YAML_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_YAML_REFUSED: Final = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_JSON_SPACE: Final = re.compile(r"[ \t\r\n,:]*")
_JSON_LITERAL: Final = re.compile(r'[^ \t\r\n,:\[\]{}"]+')


def read_document(path: Path | str, *, text: bytes | str | None = None, faults: list[Fault] | None = None) -> Document:
    """Read a file into plain JSON values that know their places.

    A name that ends in `.json` must hold JSON; `.yaml` and `.yml` hold YAML; for any other name a text that starts
    with `{` or `[` and is JSON is read as such, else as YAML. Of YAML only scalars that JSON has too get a type (null,
    booleans, decimal numbers): dates, `no`, `1:30` or `0x1F` are strings. Tags, merge keys and several documents in one
    file are faults.

    Args:
        path: the file, or `-` for standard input.
        text: the content, when it has been read already; then `path` is only the name to show and to tell the format.
        faults: where to collect faults after which reading went on, so that they can be shown beside others. Without
            it they are raised.

    Raises:
        UsageError: the file is missing, a folder, not readable, or larger than 32 MiB.
        FileFaultsError: the content is faulty; every fault that could be found.
    """
    name = "<stdin>" if str(path) == "-" else str(path)
    raw = read_bytes(path) if text is None else text.encode() if isinstance(text, str) else text
    _check_size(raw, name)
    content = _decode(raw, name)
    is_json = name.endswith(".json") or (
        not name.endswith((".yaml", ".yml")) and content.lstrip()[:1] in ("{", "[") and _is_json(content)
    )
    composer = Composer(name, content, json=is_json)
    try:
        if is_json:
            _compose_json(content, composer)
        else:
            _compose_yaml(content, composer)
        if composer.empty:
            raise composer.stop(1, 1, "the file is empty")
    except UnreadableError:
        raise FileFaultsError((faults or []) + composer.faults) from None
    if faults is None and composer.faults:
        raise FileFaultsError(composer.faults)
    if faults is not None:
        faults += composer.faults
    return composer.document()


def read_bytes(path: Path | str) -> bytes:
    """Return the content of a file, or of standard input for `-`.

    Raises:
        UsageError: the file is missing, a folder, not readable, or larger than 32 MiB.
    """
    name = "<stdin>" if str(path) == "-" else str(path)
    content = _content(path, name)
    _check_size(content, name)
    return content


def _check_size(content: bytes, name: str) -> None:
    if len(content) > MAX_FILE_BYTES:
        raise UsageError(
            f"{name}: larger than {MAX_FILE_BYTES // 1024 // 1024} MiB",
            hint="check that this is the right file, or split it",
        )


def _content(path: Path | str, name: str) -> bytes:
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        with Path(path).open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"{name}: no such file", hint="check the path") from None
    except IsADirectoryError:
        raise UsageError(f"{name}: is a folder, not a file", hint="name a file in it") from None
    except PermissionError:
        raise UsageError(f"{name}: no permission to read it", hint="check the file's owner and mode") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f"{name!r}: cannot be read: {reason or error}", hint="check the path") from None


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8-sig", "replace")
        composer = Composer(name, before, json=True)
        raise FileFaultsError(
            [
                composer.document().fault_at(
                    *_line_and_column(before, len(before)),
                    f"not text: byte 0x{raw[error.start]:02x} is not UTF-8",
                    "save the file as UTF-8, and check that it is the right one",
                )
            ]
        ) from None


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_int=_no_number)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


# Numbers are judged by the composer, which knows their places; and huge ones make int() fail.
def _no_number(_: str) -> int:
    return 0


def _compose_json(text: str, composer: Composer) -> None:
    if not text.strip():
        return
    try:
        json.loads(text, parse_int=_no_number)
    except RecursionError:
        pass  # too deep: the composer finds out where
    except json.JSONDecodeError as error:
        message = error.msg[:1].lower() + error.msg[1:]
        raise composer.stop(error.lineno, error.colno, f"not JSON: {message}") from None
    # The text is JSON, so commas and colons need no second look: what opens, closes and stands between is enough.
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    decode = json.JSONDecoder().raw_decode
    at = _end(_JSON_SPACE, text, 0)
    while at < len(text):
        line = bisect_right(starts, at)
        column = at - starts[line - 1] + 1
        letter = text[at]
        if letter == '"':
            value, at = decode(text, at)
            composer.scalar(value, line, column, plain=False)
        elif letter in "{[":
            composer.start(line, column, mapping=letter == "{")
            at += 1
        elif letter in "}]":
            composer.end(line, column)
            at += 1
        else:
            stop = _end(_JSON_LITERAL, text, at)
            composer.scalar(text[at:stop], line, column, plain=True)
            at = stop
        at = _end(_JSON_SPACE, text, at)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _compose_yaml(text: str, composer: Composer) -> None:
    refused = _YAML_REFUSED.search(text)
    if refused:
        raise composer.stop(
            *_line_and_column(text, refused.start()),
            f"character U+{ord(refused[0]):04X} is not allowed in YAML",
            "remove it, and check that this is the right file",
        )
    try:
        for event in yaml.parse(text, Loader=_YAML_LOADER):
            _compose_event(event, composer)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
        what = f"{error.problem} {error.context or ''}".strip()
        raise composer.stop(line, column, f"not YAML: {what}", "check indentation, quotes and brackets") from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise composer.stop(1, 1, "not YAML", "check that this is the right file") from None


def _compose_event(event: yaml.Event, composer: Composer) -> None:
    mark = event.start_mark
    line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
    if isinstance(event, yaml.ScalarEvent):
        if event.tag is not None:
            _refuse_tag(line, column, composer)
        composer.scalar(event.value, line, column, plain=not event.style, anchor=event.anchor)
    elif isinstance(event, yaml.CollectionStartEvent):
        if event.tag is not None:
            _refuse_tag(line, column, composer)
        composer.start(line, column, mapping=isinstance(event, yaml.MappingStartEvent), anchor=event.anchor)
    elif isinstance(event, yaml.CollectionEndEvent):
        composer.end(line, column)
    elif isinstance(event, yaml.AliasEvent):
        composer.alias(str(event.anchor), line, column)
    elif isinstance(event, yaml.DocumentStartEvent) and not composer.empty:
        raise composer.stop(line, column, "a second document begins here", "keep one document in a file")


def _refuse_tag(line: int, column: int, composer: Composer) -> None:
    composer.fault(line, column, "tags (`!…`) are not supported", "remove the tag; quote the value to make it a string")
