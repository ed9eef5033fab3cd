"""Read known calls from scenarios and from recorded decision logs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from pdp.documents import read_bytes
from pdp.engine.protocol import DECISION
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import Fault, FileFaultsError, Place
from pdp.json import JsonValueError, canonical, digest, parse_json
from pdp.workbench.diff.comparison import ComparedCall
from pdp.workbench.diff.manifests import Manifests
from pdp.workbench.neighbours.bases import tool_of
from pdp.workbench.scenarios.files.suite import Suite
from pdp.workbench.scenarios.running.runner import Runner


@dataclass(frozen=True, slots=True)
class DecisionLog:
    """The distinct requests of a decision log, each with its `FILE:LINE`, and the number of skipped lines."""

    requests: tuple[tuple[str, Any], ...]
    skipped: int


def read_log(file: Path) -> DecisionLog:
    """Read a recorded decision log: JSON lines of `{"input": request}`, or OPA's own decision log.

    Lines without `input`, decisions of other documents than `authz/decision`, and requests masked by OPA are skipped.
    """
    requests: dict[str, tuple[str, Any]] = {}
    skipped = 0
    for number, line in enumerate(read_bytes(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except JsonValueError as error:
            raise FileFaultsError([_fault(file, number, str(error).removeprefix("value: "))]) from None
        if not isinstance(record, dict):
            raise FileFaultsError([_fault(file, number, "not an object")])
        if _decidable(record):
            requests.setdefault(digest(canonical(record["input"])), (f"{file}:{number}", record["input"]))
        else:
            skipped += 1
    return DecisionLog(tuple(requests.values()), skipped)


def _fault(file: Path, line: int, message: str) -> Fault:
    return Fault(Place(str(file), line, 1), message, 'write one {"input": REQUEST} per line')


def _decidable(record: Mapping[str, Any]) -> bool:
    erased = record.get("erased") or record.get("masked") or ()
    return (
        "input" in record
        and str(record.get("path", DECISION)).strip("/") == DECISION
        and not any(str(path).startswith("/input") for path in erased)
    )


def scenario_calls(
    suites: Sequence[Suite], engines: Iterable[EmbeddedEngine], manifests: Manifests
) -> Iterator[ComparedCall]:
    """Run scenarios on the engines of both bundles, and yield each distinct call and plan that an engine decided."""
    seen: set[tuple[bytes, bytes]] = set()
    for engine in engines:
        for suite in suites:
            runner = Runner(suite, engine)
            for result in map(runner.run, range(len(suite.scenarios))):
                source = f"{result.place.file}:{result.place.line} {result.name}"
                for step in result.steps:
                    answers = [*((answer, False) for answer in step.answers), *((plan, True) for plan in step.plans)]
                    for answer, plan in answers:
                        call = known_call(orjson.loads(answer.body), manifests, source, plan=plan)
                        if (key := (call.old, call.new)) not in seen:
                            seen.add(key)
                            yield call


def known_call(request: Any, manifests: Manifests, source: str, *, plan: bool = False) -> ComparedCall:
    """Return the call that both bundles will decide for a request or a plan; `source` is its origin."""
    old, new = (canonical(request), canonical(request)) if plan else manifests.requests(request)
    tool = "a plan" if plan else tool_of(request) or "unknown"
    return ComparedCall(tool, old, new, source=source, plan=plan, request=request)
