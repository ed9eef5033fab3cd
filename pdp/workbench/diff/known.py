"""Calls that are known: those of scenarios, and those of recorded decision logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.documents import read_bytes
from pdp.engine.protocol import DECISION
from pdp.errors import Fault, FileFaultsError, Place
from pdp.json import JsonValueError, canonical, digest, parse_json
from pdp.workbench.diff.comparison import ComparedCall
from pdp.workbench.scenarios.running.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.engine.wasm.engine import EmbeddedEngine
    from pdp.workbench.diff.manifests import Manifests
    from pdp.workbench.scenarios.files.suite import Suite

_FAULTS: Final = 20
_SKIPPED: Final = object()


@dataclass(frozen=True, slots=True)
class DecisionLog:
    """What a decision log holds.

    Attributes:
        requests: the requests with `FILE:LINE` each; equal ones once.
        lines: how many lines the log has; skipped: how many are not decisions of `authz/decision`, or have parts of
            their request erased.
    """

    requests: tuple[tuple[str, Any], ...]
    lines: int
    skipped: int


def read_log(file: Path) -> DecisionLog:
    """Read a recorded decision log: JSON lines of `{"input": request}`, or OPA's own decision log.

    Other lines that OPA writes to its log (`{"level", "msg", ...}` without `input`), decisions of another document, and
    requests of which OPA's masking erased a part are skipped and counted.

    Raises:
        UsageError: the file cannot be read.
        FileFaultsError: a line is not a JSON object, or has no request; the first faults, each with its line.
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
        if request is _SKIPPED:
            skipped += 1
        else:
            found.setdefault(digest(canonical(request)), (f"{file}:{number}", request))
    if faults:
        raise FileFaultsError(faults)
    return DecisionLog(tuple(found.values()), lines, skipped)


def log_calls(log: DecisionLog, manifests: Manifests, entries: Mapping[tuple[str, str], Any]) -> Iterator[ComparedCall]:
    """Yield the requests of a log as calls; `entries` are those of the manifests by digest and tool."""
    for source, request in log.requests:
        yield _call(request, manifests, entries, source)


def scenario_calls(
    suites: Sequence[Suite],
    engines: Iterable[EmbeddedEngine],
    manifests: Manifests,
    entries: Mapping[tuple[str, str], Any],
) -> Iterator[ComparedCall]:
    """Run scenarios on either engine and yield every call and plan that one of them was asked, once.

    On both, because after a first difference the two engines are asked different things. Whether the scenarios pass
    does not matter here.
    """
    seen: set[tuple[bytes, bytes]] = set()
    for engine in engines:
        for suite in suites:
            for result in Runner(suite, engine).run_all():
                source = f"{result.place.file}:{result.place.line} {result.name}"
                for step in result.steps:
                    answers = [*((answer, False) for answer in step.answers), *((plan, True) for plan in step.plans)]
                    for answer, plan in answers:
                        call = _call(orjson.loads(answer.body), manifests, entries, source, plan=plan)
                        if (key := (call.old, call.new)) not in seen:
                            seen.add(key)
                            yield call


def _request(line: bytes) -> Any:
    """The request of a line, whatever it is; `_SKIPPED`: the line has none that can be decided."""
    try:
        record = parse_json(line)
    except JsonValueError as error:
        raise ValueError(str(error).removeprefix("value: ")) from None
    if not isinstance(record, dict):
        raise ValueError("not an object")  # noqa: TRY004 - a fault of the line
    if "input" not in record:
        if {"msg", "level"} <= record.keys():
            return _SKIPPED
        raise ValueError("no `input`")
    path = record.get("path", DECISION)
    if not isinstance(path, str) or path.strip("/") != DECISION:
        return _SKIPPED
    erased = record.get("erased") or record.get("masked") or ()
    if any(str(each).startswith("/input") for each in erased):
        return _SKIPPED
    return record["input"]


def _call(
    request: Any, manifests: Manifests, entries: Mapping[tuple[str, str], Any], source: str, *, plan: bool = False
) -> ComparedCall:
    old, new = (canonical(request), canonical(request)) if plan else manifests.requests(request)
    digest_, tool = ("", "") if plan else _named(request)
    entry = entries.get((digest_, tool))
    kind = str(entry.get("effect_class", "unclassified")) if isinstance(entry, dict) else ""
    name = tool or ("a plan" if plan else "unknown")
    return ComparedCall(tool=name, kind=kind, variant=(), old=old, new=new, source=source, plan=plan)


def _named(request: Any) -> tuple[str, str]:
    """The manifest's digest and the tool that a request names, whatever its shape; empty where it names none."""
    try:
        properties = request["action"]["properties"]
        names = properties.get("manifest_digest"), properties.get("tool")
    except (KeyError, TypeError, AttributeError):
        return "", ""
    digest_, tool = (name if isinstance(name, str) else "" for name in names)
    return digest_, tool
