"""Strict reader of YAML and JSON files. Each fault has a location.

YAML is parsed into events by libyaml, or by PyYAML where libyaml is missing. JSON is scanned into the same events.
PyYAML's composer is not used: it has no bound on depth, accepts a key twice, and reads `no` and `1:30` by YAML 1.1.
The depth, the number of values and the number of values from aliases are limited while the file is read.
"""

import json
import re
import sys
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import yaml

from pdp.documents.document import Document, Part, shown_name
from pdp.errors import Fault, FileFaultsError, UsageError
from pdp.json import MAX_NUMBER

# 10,000 tools with long descriptions take about 12 MiB, so this limit is sufficient.
MAX_FILE_BYTES: Final = 32 * 1024 * 1024

_RIGHT_FILE: Final = "check that this is the right file"
_MOST_NESTING: Final = 64
MOST_VALUES: Final = 1_000_000  # 10,000 tools with long descriptions take about two thirds of this number of values.

# If aliases add more values than this, the file is likely an attack ("billion laughs").
_MOST_ALIASED: Final = 50_000
_MOST_FAULTS: Final = 500
_EXACT_DIGITS: Final = 20

# The C parser is ten times faster than PyYAML's own, which gives the same events.
_YAML_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# libyaml 0.2.6 and later report this error for more than 1,000 nested levels.
_TOO_DEEP_TO_SCAN: Final = "nesting depth"
_YAML_REFUSED: Final = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# The JSON text was validated before, so its commas and colons can be skipped like blanks.
_JSON_TOKEN: Final = re.compile(r'[ \t\r\n,:]*([{}\[\]]|"|[^ \t\r\n,:\[\]{}"]+)')
_JSON_SCALAR: Final = re.compile(r"null|true|false|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
# YAML 1.2 and JSON agree on these constants. `no`, `on`, dates, `1:30`, `1_000`, `0x1F` and `010` stay strings.
_CONSTANTS: Final[dict[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NUMBER: Final = re.compile(
    r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|" + _NOT_FINITE.pattern
)


def _mark(line: int, column: int) -> yaml.Mark:
    return yaml.Mark("", 0, line, column, None, 0)


_START: Final = _mark(0, 0)


def is_json(text: str) -> bool:
    """Return whether a text is JSON. Text that nests too deep to be checked counts as JSON."""
    try:
        _check_json(text)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


def _check_json(text: str) -> None:
    json.loads(text, parse_int=len)  # Numbers are checked later, and `int` fails for very long ones.


class Parser:
    """Parser of one file. Errors are added to `faults`, faulty keys are left out, faulty values are read as None."""

    def __init__(self, name: str, text: str, *, json: bool, faults: list[Fault]) -> None:
        self._faults = faults
        # The document is created first, because faults found while parsing quote its lines.
        self._document = Document(name, text, Part(None, 1, 1))
        self._text = text
        self._json = json
        self._events: Iterator[Any] = self._json_events() if json else self._yaml_events()
        self._anchors: dict[str, Part | None] = {}
        self._values = 0
        self._aliased = 0
        self._within_key = False

    def parse(self) -> Document:
        """Return the parsed file. Raise `FileFaultsError` if the text cannot be parsed to its end."""
        root: Part | None = None
        for event in self._events:
            if isinstance(event, yaml.NodeEvent):
                root = self._part(event, 0)
            elif isinstance(event, yaml.DocumentStartEvent) and root is not None:
                raise self._stop(event.start_mark, "a second document begins here", "keep one document per file")
        if root is None:
            raise self._stop(_START, "the file is empty", _RIGHT_FILE)
        return Document(self._document.file, self._text, root)

    def _yaml_events(self) -> Iterator[Any]:
        refused = _YAML_REFUSED.search(self._text)
        if refused:
            before = self._text[: refused.start()]
            mark = _mark(before.count("\n"), len(before) - before.rfind("\n") - 1)
            message = f"character U+{ord(refused[0]):04X} is not allowed in YAML"
            raise self._stop(mark, message, f"remove it, and {_RIGHT_FILE}")
        passed = 0
        try:
            for event in yaml.parse(self._text, Loader=_YAML_LOADER):
                passed += 1
                yield event
        except yaml.MarkedYAMLError as error:
            if error.problem_mark and _TOO_DEEP_TO_SCAN in str(error.problem):
                # libyaml parses ahead and stops at its own nesting limit. The text before that point is parsed again,
                # so that `_part` reports the first level that is too deep.
                before = self._text[: error.problem_mark.index]
                yield from islice(yaml.parse(before, Loader=_YAML_LOADER), passed, None)
            message = f"not YAML: {error.problem} {error.context or ''}".strip()
            mark = error.problem_mark or error.context_mark or _START
            lines = [*self._document.lines, ""]
            line = lines[mark.line]
            if error.context_mark and not any(map(str.strip, (line[mark.column :], *lines[mark.line + 1 :]))):
                # Only blank text follows, so the fault points to the construct that is not closed.
                mark = error.context_mark
            tab = "\t" in line[: len(line) - len(line.lstrip())]
            hint = "indent with spaces, not tabs" if tab else "check indentation, quotes and brackets"
            raise self._stop(mark, message, hint) from None
        except (yaml.YAMLError, RecursionError, ValueError):
            raise self._stop(_START, "not YAML", _RIGHT_FILE) from None

    def _json_events(self) -> Iterator[yaml.Event]:
        text = self._text
        try:
            _check_json(text) if text.strip() else None
        except RecursionError:
            pass  # The text is nested too deep. `_part` will report the location.
        except json.JSONDecodeError as error:
            place = _mark(error.lineno - 1, error.colno - 1)
            message = f"not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
            raise self._stop(place, message, "check commas, quotes and brackets") from None
        lines = [0, *(match.end() for match in re.finditer("\n", text))]
        decode = json.JSONDecoder().raw_decode
        at = 0
        while token := _JSON_TOKEN.match(text, at):
            start, at = token.span(1)
            line = bisect_right(lines, start) - 1
            mark = _mark(line, start - lines[line])
            if token[1] == '"':
                value, at = decode(text, start)
                yield yaml.ScalarEvent(None, None, (False, True), value, mark, style='"')
            elif token[1] in "{[":
                event = yaml.MappingStartEvent if token[1] == "{" else yaml.SequenceStartEvent
                yield event(None, None, True, mark)
            elif token[1] in "}]":
                yield yaml.CollectionEndEvent(mark)
            else:
                yield yaml.ScalarEvent(None, None, (True, False), token[1], mark)

    def _fault(self, mark: Any, message: str, hint: str | None = None) -> None:
        self._faults.append(self._document.fault_at(mark.line + 1, mark.column + 1, message, hint))
        if len(self._faults) >= _MOST_FAULTS:
            raise self._stop(mark, f"reading stops here after {_MOST_FAULTS} faults")

    def _stop(self, mark: Any, message: str, hint: str | None = None) -> FileFaultsError:
        self._faults.append(
            self._document.conflict() or self._document.fault_at(mark.line + 1, mark.column + 1, message, hint)
        )
        return FileFaultsError(self._faults)

    def _part(self, event: Any, depth: int) -> Part:
        mark = event.start_mark
        self._values += 1
        if self._values > MOST_VALUES:
            raise self._stop(mark, f"more than {MOST_VALUES} values in one file", "split the file")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        if event.tag is not None:
            self._fault(mark, "tags (`!…`) are not supported", "remove the tag; quote the value to make it a string")
        if isinstance(event, yaml.ScalarEvent):
            part = Part(self._scalar(event), mark.line + 1, mark.column + 1)
        else:
            if depth >= _MOST_NESTING:
                raise self._too_deep(mark)
            if event.anchor is not None:
                self._anchors[event.anchor] = None
            part = self._collection(event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = part
        return part

    def _collection(self, event: Any, depth: int) -> Part:
        part = Part({}, event.start_mark.line + 1, event.start_mark.column + 1)
        part.members, part.keys = {}, {}
        if not isinstance(event, yaml.MappingStartEvent):
            part.value, part.members = [], []
        while not isinstance(inner := next(self._events), yaml.CollectionEndEvent):
            name = self._key(inner, part, depth) if isinstance(part.members, dict) else None
            member = self._part(next(self._events) if isinstance(part.members, dict) else inner, depth + 1)
            if isinstance(part.members, list):
                part.members.append(member)
                part.value.append(member.value)
            elif name is None:
                continue
            else:
                part.members[name] = member
                part.keys[name] = (inner.start_mark.line + 1, inner.start_mark.column + 1)
                part.value[name] = member.value
            part.size += member.size
            part.height = max(part.height, member.height + 1)
        return part

    def _key(self, event: Any, mapping: Part, depth: int) -> str | None:
        mark = event.start_mark
        if isinstance(event, yaml.CollectionStartEvent):
            if not self._within_key:  # A key nested in another faulty key is not reported again.
                self._fault(mark, "a mapping's key must be a string", "write the key as plain text or in quotes")
            outer, self._within_key = self._within_key, True
            self._part(event, depth + 1)
            self._within_key = outer
            return None
        name = self._part(event, depth + 1).value
        if not isinstance(name, str):
            text = event.value if isinstance(event, yaml.ScalarEvent) else str(name)
            hint = f'write it in quotes: "{text:.40}"' if text else "write the key before the colon"
            self._fault(mark, f"key {shown_name(text)} is not a string", hint)
        elif name == "<<" and not self._json:
            self._fault(mark, "merge keys (`<<`) are not supported", "write the fields out")
        elif name in mapping.keys:
            first = mapping.keys[name][0]
            self._fault(mark, f"key {shown_name(name)} is a duplicate, first on line {first}", "remove one")
        else:
            return name
        return None

    def _alias(self, event: Any, depth: int) -> Part:
        mark, name = event.start_mark, shown_name(f"*{event.anchor}")
        if event.anchor not in self._anchors:
            hint = f"write {shown_name(f'&{event.anchor}')} before a value above, or quote {name} to make it a string"
            raise self._stop(mark, f"alias {name} has no anchor above it", hint)
        part = self._anchors[event.anchor]
        if part is None:
            raise self._stop(mark, f"alias {name} is inside its own anchor", "write the value out")
        self._aliased += part.size
        if self._aliased > _MOST_ALIASED:
            message = f"aliases add more than {_MOST_ALIASED} values"
            raise self._stop(mark, message, "write the values out, or split the file")
        if depth + part.height > _MOST_NESTING:
            raise self._too_deep(mark)
        copy = Part(part.value, mark.line + 1, mark.column + 1)
        copy.members, copy.keys, copy.size, copy.height = part.members, part.keys, part.size, part.height
        return copy

    def _too_deep(self, mark: Any) -> FileFaultsError:
        return self._stop(mark, f"nested deeper than {_MOST_NESTING} levels", "make the structure flatter")

    def _scalar(self, event: Any) -> Any:
        text, mark = event.value, event.start_mark
        if self._json and not event.style and not _JSON_SCALAR.fullmatch(text):
            self._fault(mark, f"{shown_name(text)} is not a JSON value", "write null, true, false or a number")
            return None
        if event.style or not (text in _CONSTANTS or _NUMBER.fullmatch(text)):
            try:
                text.encode()
            except UnicodeEncodeError:
                self._fault(mark, "half of a surrogate pair is not a character", "write both halves, or neither")
                return ""
            return text
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        return self._number(text, mark)

    def _number(self, text: str, mark: Any) -> float | None:
        if _NOT_FINITE.fullmatch(text):
            self._fault(mark, f"{shown_name(text)} is not a finite number", "write a finite number, or quote the value")
            return None
        number = int(text) if _INTEGER.fullmatch(text) and len(text) <= _EXACT_DIGITS else float(text)
        if abs(number) > MAX_NUMBER:
            hint = "write it in quotes if it is an identifier"
            self._fault(mark, f"number {shown_name(text)} is beyond 2^53-1", hint)
            return None
        return number


def read_document(path: Path | str, *, text: bytes | str | None = None, faults: list[Fault] | None = None) -> Document:
    """Parse a file, or standard input for `-`, into plain JSON values with their locations.

    A `.json` file must contain JSON, and a `.yaml` or `.yml` file YAML. In a file with any other name, text that starts
    with `{` or `[` and is valid JSON is read as JSON, and all other text as YAML. YAML values have only the types of
    JSON: dates, `no`, `1:30` and `0x1F` are strings. Tags, merge keys and a second document are faults.

    With `text`, no file is read. Faults are added to the list `faults`. Without this list, or if the parser cannot
    continue, they are raised as `FileFaultsError`. Raise `UsageError` if the file cannot be read or exceeds 32 MiB.
    """
    name = "<stdin>" if str(path) == "-" else str(path)
    raw = read_bytes(path) if text is None else text.encode() if isinstance(text, str) else text
    content = decode(_bounded(raw, name), name)
    expects_json = name.endswith(".json") or (
        not name.endswith((".yaml", ".yml")) and content.lstrip()[:1] in ("{", "[") and is_json(content)
    )
    collected = [] if faults is None else faults
    document = Parser(name, content, json=expects_json, faults=collected).parse()
    if faults is None and collected:
        raise FileFaultsError(collected)
    return document


def read_bytes(path: Path | str) -> bytes:
    """Return the content of a file, or of standard input for `-`. Raise `UsageError` if reading fails."""
    name = "<stdin>" if str(path) == "-" else str(path)
    is_content = name.lstrip().startswith(("{", "["))
    hint = "write it to a file and pass the path, or pipe it in and pass -" if is_content else "check the path"
    try:
        if str(path) == "-":
            content = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
            if not content:
                raise UsageError(
                    "standard input (-) is closed, empty, or was read already", hint="pipe a file in, use - once"
                )
            return _bounded(content, name)
        with Path(path).open("rb") as file:
            return _bounded(file.read(MAX_FILE_BYTES + 1), name)
    except FileNotFoundError:
        raise UsageError(f"{name}: no such file", hint=hint) from None
    except IsADirectoryError:
        raise UsageError(f"{name}: is a folder, not a file", hint="pass a file in the folder") from None
    except PermissionError:
        raise UsageError(f"{name}: no permission to read it", hint="check the file's owner and mode") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f"{name!r}: cannot be read: {reason or error}", hint=hint) from None


def _bounded(content: bytes, name: str) -> bytes:
    if len(content) > MAX_FILE_BYTES:
        raise UsageError(
            f"{name}: larger than {MAX_FILE_BYTES // 1024 // 1024} MiB",
            hint="check that this is the right file, or split it",
        )
    return content


def decode(raw: bytes, name: str) -> str:
    """Return a file's bytes as text without byte-order mark. Raise `FileFaultsError` if the bytes are not UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8-sig", "replace")
        fault = Document(name, before, Part(None, 1, 1)).fault_at(
            before.count("\n") + 1,
            len(before) - before.rfind("\n"),
            f"not text: byte 0x{raw[error.start]:02x} is not UTF-8",
            "save the file as UTF-8, and check that it is the right one",
        )
        raise FileFaultsError([fault]) from None
