"""Calls that are known: those of scenarios, and those of recorded decision logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.documents import read_bytes
from pdp.engine.protocol import DECISION
from pdp.errors import Fault, FileFaultsError, Place
from pdp.json import JsonValueError, canonical, digest, parse_json
from pdp.workbench.diff.deciding import Case
from pdp.workbench.mutation.recorded import tool_of
from pdp.workbench.scenarios.running.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.engine.wasm.engine import EmbeddedEngine
    from pdp.workbench.diff.pairing import Sides
    from pdp.workbench.scenarios.files.suite import Suite

_FAULTS: Final = 20
_PASSED_OVER: Final = object()


@dataclass(frozen=True, slots=True)
class LogRead:
    """What a decision log holds.

    Attributes:
        requests: the requests with `FILE:LINE` each; equal ones once.
        lines: how many lines the log has; skipped: how many are no decision of `authz/decision`, or have parts of
            their request erased.
    """

    requests: tuple[tuple[str, Any], ...]
    lines: int
    skipped: int


def read_log(file: Path) -> LogRead:
    """Read a recorded decision log: JSON lines of `{"input": request}`, or OPA's own decision log.

    Other lines that OPA writes to its log (`{"level", "msg", ...}` without `input`), decisions of another document, and
    requests of which OPA's masking erased a part are passed over and counted.

    Raises:
        UsageError: the file cannot be read.
        FileFaultsError: a line is no JSON object, or holds no request; the first faults, each with its line.
    """
    found: dict[str, tuple[str, Any]] = {}
    faults: list[Fault] = []
    lines = skipped = 0
    for number, line in enumerate(read_bytes(file).splitlines(), 1):
        if not line.strip():
            continue
        lines += 1
        try:
            request = _request(line)
        except ValueError as error:
            faults.append(Fault(Place(str(file), number, 1), str(error), 'write {"input": REQUEST}, one a line'))
            if len(faults) == _FAULTS:
                break
            continue
        if request is _PASSED_OVER:
            skipped += 1
        else:
            found.setdefault(digest(canonical(request)), (f"{file}:{number}", request))
    if faults:
        raise FileFaultsError(faults)
    return LogRead(tuple(found.values()), lines, skipped)


def log_cases(log: LogRead, sides: Sides, entries: Mapping[tuple[str, str], Any]) -> Iterator[Case]:
    """Yield the requests of a log as calls; `entries` are those of the manifests by digest and tool."""
    for source, request in log.requests:
        yield _case(request, sides, entries, source)


def scenario_cases(
    suites: Sequence[Suite],
    engines: Iterable[EmbeddedEngine],
    sides: Sides,
    entries: Mapping[tuple[str, str], Any],
) -> Iterator[Case]:
    """Run scenarios on either engine and yield every call and plan that one of them was asked, once.

    On both, since what is asked after a first difference is another thing on the one than on the other. Whether the
    scenarios pass is not looked at.
    """
    seen: set[tuple[bytes, bytes]] = set()
    for engine in engines:
        for suite in suites:
            for result in Runner(suite, engine).run_all():
                source = f"{result.place.file}:{result.place.line} {result.name}"
                for step in result.steps:
                    for answer, plan in (*((one, False) for one in step.answers), *((one, True) for one in step.plans)):
                        case = _case(orjson.loads(answer.body), sides, entries, source, plan=plan)
                        if (key := (case.old, case.new)) not in seen:
                            seen.add(key)
                            yield case


def _request(line: bytes) -> Any:
    """The request of a line, whatever it is; `_PASSED_OVER`: the line holds none that is to be looked at."""
    try:
        record = parse_json(line)
    except JsonValueError as error:
        raise ValueError(str(error).removeprefix("value: ")) from None
    if not isinstance(record, dict):
        raise ValueError("not an object")  # noqa: TRY004 - a fault of the line
    if "input" not in record:
        if {"msg", "level"} <= record.keys():
            return _PASSED_OVER
        raise ValueError("no `input`")
    path = record.get("path", DECISION)
    if not isinstance(path, str) or path.strip("/") != DECISION:
        return _PASSED_OVER
    erased = record.get("erased") or record.get("masked") or ()
    if any(str(each).startswith("/input") for each in erased):
        return _PASSED_OVER
    return record["input"]


def _case(
    request: Any, sides: Sides, entries: Mapping[tuple[str, str], Any], source: str, *, plan: bool = False
) -> Case:
    old, new = (canonical(request), canonical(request)) if plan else sides.both(request)
    tool = None if plan else tool_of(request)
    entry = entries.get((_digest(request), tool or ""))
    kind = str(entry.get("effect_class", "unclassified")) if isinstance(entry, dict) else ""
    return Case(
        tool=tool or ("a plan" if plan else "unknown"), kind=kind, departures=(), old=old, new=new, source=source,
        plan=plan,
    )  # fmt: skip


def _digest(request: Any) -> str:
    try:
        return str(request["action"]["properties"]["manifest_digest"])
    except (KeyError, TypeError):
        return ""
