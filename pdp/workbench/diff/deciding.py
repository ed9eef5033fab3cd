"""The same calls put to two bundles, many at a time; what differs is kept."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pdp.decision import denied, parse_decision
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import BundleError, EngineError
from pdp.workbench.diff.judging import Change, change_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from typing import Self

    from pdp.decision import Decision
    from pdp.engine.bundle.file import Bundle

WORKERS: Final = 2
"""How many threads decide. An evaluation holds no lock of Python's, so that two cores are of use."""

_CHUNK: Final = 128
_DEADLINE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Case:
    """One call, as each side is asked it.

    Attributes:
        tool: its name.
        kind: the effect class of its entry, or `unclassified`; empty where no entry is known.
        departures: in what it departs from a call that has all it needs: what, and how; both for people.
        old, new: the request for either bundle, canonical.
        source: where a call that is known comes from, such as a scenario; empty in the grid.
        plan: whether it is a plan, and the bodies are put to `authz/plan`.
        known_tool: whether the tool is one of a manifest in the bundles, and not one that the grid made up.
        hostile: whether something in it is mistyped, missing or exchanged without regard to what it is.
    """

    tool: str
    kind: str
    departures: tuple[tuple[str, str], ...]
    old: bytes
    new: bytes
    source: str = ""
    plan: bool = False
    known_tool: bool = True
    hostile: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """A call that is decided differently."""

    case: Case
    change: Change
    old: Decision
    new: Decision


class Duel:
    """Two bundles, each with an engine in this process. Close it when done.

    Args:
        old, new: the bundles.
        manifests: documents of more manifests by digest, for both.
        old_data, new_data: what is laid over the data of each, roots `directory` and `settings`.

    Raises:
        BundleError: a bundle cannot be used.
        UsageError, EngineError: as of `EmbeddedEngine`.
    """

    def __init__(
        self,
        old: Bundle,
        new: Bundle,
        *,
        manifests: Mapping[str, Any] | None = None,
        old_data: Mapping[str, Any] | None = None,
        new_data: Mapping[str, Any] | None = None,
    ) -> None:
        with ExitStack() as stack:
            self._old = stack.enter_context(_engine(old, manifests, old_data))
            self._new = stack.enter_context(_engine(new, manifests, new_data))
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def engines(self) -> tuple[EmbeddedEngine, EmbeddedEngine]:
        """The engine of the old bundle, and that of the new one."""
        return self._old, self._new

    def decide(self, case: Case) -> tuple[Decision, Decision]:
        """Return both decisions on one call."""
        return _decision(self._old, case.old, case), _decision(self._new, case.new, case)

    def differences(
        self, cases: Iterable[Case], progress: Callable[[int], None] | None = None
    ) -> Generator[Difference, None, None]:
        """Yield the calls that are decided differently, in their order.

        Args:
            cases: the calls; they are taken as they are needed.
            progress: is told how many more have been decided.
        """
        rest = iter(cases)
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="pdp-diff") as pool:
            pending: deque[tuple[int, Future[list[Difference]]]] = deque()
            while True:
                while len(pending) < 2 * WORKERS and (chunk := list(islice(rest, _CHUNK))):
                    pending.append((len(chunk), pool.submit(self._differing, chunk)))
                if not pending:
                    return
                count, future = pending.popleft()
                yield from future.result()
                if progress is not None:
                    progress(count)

    def _differing(self, cases: list[Case]) -> list[Difference]:
        found = []
        for case in cases:
            answers = _answer(self._old, case.old, case), _answer(self._new, case.new, case)
            # Nearly all are the same to the byte; reading those would take as long as a third of the decisions.
            if answers[0] == answers[1] and answers[0] is not None:
                continue
            old, new = _decision(self._old, case.old, case), _decision(self._new, case.new, case)
            change = change_of(old, new)
            if change is not None:
                found.append(Difference(case, change, old, new))
        return found


def _engine(bundle: Bundle, manifests: Mapping[str, Any] | None, data: Mapping[str, Any] | None) -> EmbeddedEngine:
    # Which bundle decided stands in each answer; without it, the same decision is the same bytes.
    config = {name: value for name, value in bundle.data.get("config", {}).items() if name != "bundle"}
    anonymous = replace(bundle, data={**bundle.data, "config": config})
    return EmbeddedEngine(anonymous, manifests=manifests, data=data, deadline=_DEADLINE)


def _answer(engine: EmbeddedEngine, body: bytes, case: Case) -> bytes | None:
    try:
        return engine.evaluate_plan(body) if case.plan else engine.evaluate(body)
    except (EngineError, BundleError):
        return None


def _decision(engine: EmbeddedEngine, body: bytes, case: Case) -> Decision:
    try:
        return parse_decision(engine.evaluate_plan(body) if case.plan else engine.evaluate(body))
    except (EngineError, BundleError) as error:
        return denied(error.code, error.message)
