"""The passing run that mutants are held against: which scenario asked what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from pdp.errors import UsageError
from pdp.workbench.scenarios.running.engines import open_engine
from pdp.workbench.scenarios.running.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pdp.workbench.scenarios.files.suite import Suite
    from pdp.workbench.scenarios.results import ScenarioResult

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Recorded:
    """A suite whose scenarios all pass, and their results in the order of the file."""

    suite: Suite
    results: tuple[ScenarioResult, ...]

    def bodies(self, index: int) -> Iterator[bytes]:
        """Yield what the engine was asked in one scenario."""
        for step in self.results[index].steps:
            for answer in step.answers:
                yield answer.body

    def tools(self, index: int) -> set[str]:
        """Return the tools that one scenario is about: proposed, named by a raw request, or decided on."""
        found = {step.tool for step in self.results[index].steps if step.tool}
        for step in self.results[index].steps:
            found |= {each.trace.tool_name for each in step.evaluations if each.trace.tool_name}
        return found | {tool for body in self.bodies(index) if (tool := tool_of(orjson.loads(body)))}


def record(suites: Iterable[Suite]) -> list[Recorded]:
    """Run every suite on the embedded engine.

    Raises:
        UsageError: a scenario fails: nothing could be said about what it notices; or an engine cannot be opened.
        BundleError: a bundle cannot be used.
    """
    recorded = []
    for suite in suites:
        with open_engine(suite, "embedded") as engine:
            recorded.append(Recorded(suite, tuple(Runner(suite, engine).run_all())))
    check_passed([result for each in recorded for result in each.results])
    return recorded


def by_sort(recorded: Iterable[Recorded], near: Callable[[bytes, Sequence[str]], bool]) -> list[bytes]:
    """Return every recorded request once: the first of each sort, then the second of each, and so on.

    A sort is a tool and the codes of the decision. Those come first of which `near` holds, told request and codes.
    """
    sorts: dict[tuple[Any, ...], list[bytes]] = {}
    seen: set[bytes] = set()
    for each in recorded:
        for answer in (answer for result in each.results for step in result.steps for answer in step.answers):
            if answer.body not in seen:
                seen.add(answer.body)
                codes = answer.decision.codes
                sort = (not near(answer.body, codes), tool_of(orjson.loads(answer.body)), codes)
                sorts.setdefault(sort, []).append(answer.body)
    turns = [(far, turn, body) for (far, *_), bodies in sorts.items() for turn, body in enumerate(bodies)]
    return [body for _, _, body in sorted(turns, key=lambda each: each[:2])]


def check_passed(results: Iterable[ScenarioResult], where: str = "") -> None:
    """Check that every scenario passed.

    Raises:
        UsageError: some failed; the message names the first of them. `where` says on what, when not on the engine.
    """
    failed = [result for result in results if not result.passed]
    if not failed:
        return
    named = ", ".join(f"{result.place.file}:{result.place.line} `{result.name}`" for result in failed[:_MOST_NAMED])
    more = f" and {len(failed) - _MOST_NAMED} more" if len(failed) > _MOST_NAMED else ""
    count = "1 scenario fails" if len(failed) == 1 else f"{len(failed)} scenarios fail"
    raise UsageError(
        f"{count}{where} before anything is broken: {named}{more}", hint="mend them first; see: pdp test PATH"
    )


def tool_of(body: Any) -> str | None:
    """Return the tool that a request names, of whatever shape the request is."""
    for step in ("action", "properties", "tool"):
        if not isinstance(body, dict):
            return None
        body = body.get(step)
    return body if isinstance(body, str) else None
