"""Read a YAML or JSON file, strictly: bounded, UTF-8, with the fault and its place for whatever is wrong.

libyaml reports the events of YAML, where it is installed; of JSON a scan of the text reports the same. Depth, size and
aliases are bounded while the value and its places are made of them.
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

MAX_FILE_BYTES: Final = 32 * 1024 * 1024  # largest that is read: ten thousand richly described tools have about 12 MiB

_RIGHT_FILE: Final = "check that this is the right file"
_MOST_NESTING: Final = 64
MOST_VALUES: Final = 1_000_000  # in one file: ten thousand richly described tools have about two thirds of that

# More is a file that explodes, not one that saves typing.
_MOST_ALIASED: Final = 50_000
_MOST_FAULTS: Final = 500
_EXACT_DIGITS: Final = 20

# The C parser is ten times faster; without libyaml PyYAML's own does the same.
_YAML_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TOO_DEEP_TO_SCAN: Final = "nesting depth"  # libyaml from 0.2.6 on: more than 1,000 levels
_YAML_REFUSED: Final = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# The text is JSON, so commas and colons need no second look: what opens, closes and stands between is enough.
_JSON_TOKEN: Final = re.compile(r'[ \t\r\n,:]*([{}\[\]]|"|[^ \t\r\n,:\[\]{}"]+)')
_JSON_SCALAR: Final = re.compile(r"null|true|false|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
# What YAML 1.2 and JSON agree on, or nearly: `no`, `on`, dates, `1:30`, `1_000`, `0x1F` and `010` stay strings.
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
    """Return whether a text is JSON, or nests too deep to find out."""
    try:
        _check_json(text)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


def _check_json(text: str) -> None:
    json.loads(text, parse_int=len)  # numbers are judged with their places; and huge ones make int() fail


class Parser:
    """Makes the value of one file and collects its faults.

    What is faulty is left out (a second key of the same name) or None (a malformed number), and reading goes on.

    Args:
        name: the file's, to show.
        text: the whole text.
        json: it must be JSON, not YAML.
        faults: where to collect them.
    """

    def __init__(self, name: str, text: str, *, json: bool, faults: list[Fault]) -> None:
        self._faults = faults
        self._document = Document(name, text, Part(None, 1, 1))  # until it is read: its lines can be shown
        self._text = text
        self._json = json
        self._events: Iterator[Any] = self._json_events() if json else self._yaml_events()
        self._anchors: dict[str, Part | None] = {}
        self._values = 0
        self._aliased = 0
        self._within_key = False

    def parse(self) -> Document:
        """Return the file's value with its places; FileFaultsError where the text cannot be read to its end."""
        root: Part | None = None
        for event in self._events:
            if isinstance(event, yaml.NodeEvent):
                root = self._part(event, 0)
            elif isinstance(event, yaml.DocumentStartEvent) and root is not None:
                raise self._stop(event.start_mark, "a second document begins here", "keep one document in a file")
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
                # libyaml looks ahead and stops at its own bound. Up to there it reports what it has seen, so that
                # `_part` finds the place of the first level too many.
                before = self._text[: error.problem_mark.index]
                yield from islice(yaml.parse(before, Loader=_YAML_LOADER), passed, None)
            message = f"not YAML: {error.problem} {error.context or ''}".strip()
            mark = error.problem_mark or error.context_mark or _START
            lines = [*self._document.lines, ""]
            line = lines[mark.line]
            if error.context_mark and not any(map(str.strip, (line[mark.column :], *lines[mark.line + 1 :]))):
                mark = error.context_mark  # nothing is to be seen at the end: what is not closed begins here
            tab = "\t" in line[: len(line) - len(line.lstrip())]
            hint = "a tab: indent with blanks" if tab else "check indentation, quotes and brackets"
            raise self._stop(mark, message, hint) from None
        except (yaml.YAMLError, RecursionError, ValueError):
            raise self._stop(_START, "not YAML", _RIGHT_FILE) from None

    def _json_events(self) -> Iterator[yaml.Event]:
        text = self._text
        try:
            _check_json(text) if text.strip() else None
        except RecursionError:
            pass  # too deep: `_part` finds out where
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
        """Return the name that a key gives, or None for a faulty one."""
        mark = event.start_mark
        if isinstance(event, yaml.CollectionStartEvent):
            if not self._within_key:  # once, however many such keys are in it
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
            self._fault(mark, f"key {shown_name(name)} stands twice, first on line {first}", "remove one")
        else:
            return name
        return None

    def _alias(self, event: Any, depth: int) -> Part:
        mark, name = event.start_mark, shown_name(f"*{event.anchor}")
        if event.anchor not in self._anchors:
            raise self._stop(mark, f"alias {name} names no anchor above it", "quote it to make it a string")
        part = self._anchors[event.anchor]
        if part is None:
            raise self._stop(mark, f"alias {name} stands inside of what it names", "write the value out")
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
            self._fault(mark, f"{shown_name(text)} is not a value of JSON", "null, true, false, or a number")
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
            self._fault(mark, f"{shown_name(text)} is not a finite number", "write a number, or quote a text")
            return None
        number = int(text) if _INTEGER.fullmatch(text) and len(text) <= _EXACT_DIGITS else float(text)
        if abs(number) > MAX_NUMBER:
            hint = "write it in quotes if it is an identifier"
            self._fault(mark, f"number {shown_name(text)} is beyond 2^53-1", hint)
            return None
        return number


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
    """Return the content of a file, or of standard input for `-`.

    UsageError: the file is missing, a folder, not readable, or larger than 32 MiB; standard input has nothing.
    """
    name = "<stdin>" if str(path) == "-" else str(path)
    is_content = name.lstrip().startswith(("{", "["))
    hint = "name a file that has it, or pipe it in and name -" if is_content else "check the path"
    try:
        if str(path) == "-":
            content = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
            if not content:
                raise UsageError(
                    "standard input (-) is closed, empty, or was read already", hint="pipe one file in, for one -"
                )
            return _bounded(content, name)
        with Path(path).open("rb") as file:
            return _bounded(file.read(MAX_FILE_BYTES + 1), name)
    except FileNotFoundError:
        raise UsageError(f"{name}: no such file", hint=hint) from None
    except IsADirectoryError:
        raise UsageError(f"{name}: is a folder, not a file", hint="name a file in it") from None
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
    """Return the text of a file of this name, without a byte-order mark; FileFaultsError where it is not UTF-8."""
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
