"""Decide the same calls with two bundles, and describe how their decisions differ."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, TypeVar

from pdp.decision import Decision, Verdict, denied
from pdp.engine.bundle.file import Bundle
from pdp.engine.protocol import DECISION, PLAN, parse_answer
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import BundleError, EngineError, EngineTimeoutError
from pdp.json import canonical
from pdp.manifest.diff import Direction
from pdp.workbench.engines import ENGINE_TIMEOUT, LATE

WORKERS: Final = 2
"""The number of threads that decide. The engine releases Python's global lock, so two threads use two cores."""

_CHUNK: Final = 128
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_ORDER: Final = {Verdict.DENY: 0, Verdict.STEP_UP: 1, Verdict.ALLOW: 2}


@dataclass(frozen=True, slots=True)
class ComparedCall:
    """A call, as canonical requests to the old and the new bundle; with `plan`, as requests for `authz/plan`.

    `variant` names the attributes that were varied. `source` is the origin of a known call, and empty for a generated
    call. `known_tool` is False for a call of a synthetic tool, which is in no manifest of the bundles. `request` is the
    request from which both were made, or None if they were not made from one.
    """

    tool: str
    old: bytes
    new: bytes
    variant: tuple[str, ...] = ()
    source: str = ""
    plan: bool = False
    known_tool: bool = True
    request: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DecisionChange:
    """The difference between the decisions of the old and the new bundle on a call.

    Obligations and `details` of reasons are compared only if the verdicts are equal. An obligation whose parameters
    changed is both removed and added.
    """

    old: Verdict
    new: Verdict
    codes_removed: tuple[str, ...] = ()
    codes_added: tuple[str, ...] = ()
    obligations_removed: tuple[str, ...] = ()
    obligations_added: tuple[str, ...] = ()
    details: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The reason codes and obligations in which the two decisions differ."""
        obligations = (*self.obligations_removed, *self.obligations_added)
        return tuple(dict.fromkeys((*self.codes_removed, *self.codes_added, *obligations, *self.details)))

    def includes(self, step: DecisionChange | None) -> bool:
        """Return whether a step from one decision to another is a part of this change.

        If the verdict changed, the step moves the verdict in the same direction. Otherwise it changes the same names.
        """
        if step is None or self.old is self.new:
            return step is not None and not {*self.names}.isdisjoint(step.names)
        up, step_up = (_ORDER[change.new] - _ORDER[change.old] for change in (self, step))
        return up * step_up > 0

    @property
    def direction(self) -> Direction:
        """LOOSENS if the new verdict is nearer to ALLOW than the old, or if an ALLOW loses or changes an obligation.

        TIGHTENS if the new verdict is farther from ALLOW, or if another verdict only gets more reasons.

        Only the application knows the effect of parameters: `transform` to 900000 instead of 100 may admit more. So an
        ALLOW is certainly stricter only if it keeps all of its obligations and gets another obligation.
        """
        if self.old is not self.new:
            return Direction.LOOSENS if _ORDER[self.new] > _ORDER[self.old] else Direction.TIGHTENS
        if self.new is Verdict.ALLOW and (self.obligations_removed or self.obligations_added):
            return Direction.LOOSENS if self.obligations_removed else Direction.TIGHTENS
        more = self.new is not Verdict.ALLOW and self.names == self.codes_added
        return Direction.TIGHTENS if more else Direction.UNCLEAR

    @property
    def rank(self) -> tuple[bool, bool, int, int]:
        """The sort key in reports: loosening changes first, then changed verdicts, then new verdicts near to ALLOW."""
        loosens = self.direction is Direction.LOOSENS
        return not loosens, self.old is self.new, -_ORDER[self.new], _ORDER[self.old]


def change_of(old: Decision, new: Decision) -> DecisionChange | None:
    """Return the difference, or None if the decisions are equal. Messages are for people, so they are not compared."""
    before, after = set(old.codes), set(new.codes)
    obligations_before, obligations_after = _obligations(old), _obligations(new)
    details = {code for code in before & after if _details(old, code) != _details(new, code)}
    same = old.verdict is new.verdict
    if same and before == after and obligations_before == obligations_after and not details:
        return None
    return DecisionChange(
        old=old.verdict,
        new=new.verdict,
        codes_removed=tuple(sorted(before - after)),
        codes_added=tuple(sorted(after - before)),
        # If the verdict differs, obligations and the details of grants say nothing new, so they are not listed.
        obligations_removed=tuple(sorted({name for name, _ in obligations_before - obligations_after} if same else ())),
        obligations_added=tuple(sorted({name for name, _ in obligations_after - obligations_before} if same else ())),
        details=tuple(sorted(details)) if same else (),
    )


def _obligations(decision: Decision) -> set[tuple[str, bytes]]:
    return {(obligation.id, canonical(obligation.parameters)) for obligation in decision.obligations}


def _details(decision: Decision, code: str) -> list[bytes]:
    return sorted(canonical(reason.details) for reason in decision.reasons if reason.code == code)


@dataclass(frozen=True, slots=True)
class Difference:
    """A call that the two bundles decide differently, with both decisions."""

    call: ComparedCall
    change: DecisionChange
    old: Decision
    new: Decision


class Comparison(ExitStack):
    """Two bundles, each opened in an engine in this process: `engines`, old bundle first. Close it after use.

    `manifests` are additional manifests by digest. `old_data` and `new_data` are merged over the data of the bundles.
    """

    def __init__(
        self,
        old: Bundle,
        new: Bundle,
        *,
        manifests: Mapping[str, Any] | None = None,
        old_data: Mapping[str, Any] | None = None,
        new_data: Mapping[str, Any] | None = None,
        engine_timeout: float = ENGINE_TIMEOUT,
    ) -> None:
        super().__init__()
        # If the second engine cannot be opened, the first engine is closed at once.
        with ExitStack() as opened:
            self.engines = (
                opened.enter_context(anonymous_engine(old, manifests, old_data, engine_timeout)),
                opened.enter_context(anonymous_engine(new, manifests, new_data, engine_timeout)),
            )
            self.push(opened.pop_all())

    def decide(self, call: ComparedCall) -> tuple[Decision, Decision]:
        """Return the decisions of the old and the new bundle on a call."""
        old, new = self._answers(call)
        return _decision(old, call.old, call), _decision(new, call.new, call)

    def _answers(self, call: ComparedCall) -> tuple[bytes | EngineError | BundleError, ...]:
        old, new = self.engines
        return _answer(old, call.old, call), _answer(new, call.new, call)

    def differences(self, calls: Iterable[ComparedCall]) -> Generator[Difference, None, None]:
        """Yield, in order, the calls that the bundles decide differently; `calls` is read lazily."""
        for differing in in_chunks(self._differing, calls, _CHUNK):
            yield from differing

    def _differing(self, calls: list[ComparedCall]) -> list[Difference]:
        differences = []
        for call in calls:
            answers = self._answers(call)
            # Answers are compared as bytes first, because nearly all are equal, and parsing them would take a third of
            # the time that deciding takes.
            if answers[0] == answers[1]:
                continue
            old, new = _decision(answers[0], call.old, call), _decision(answers[1], call.new, call)
            change = change_of(old, new)
            if change is not None:
                differences.append(Difference(call, change, old, new))
        return differences


def in_chunks(
    work: Callable[[list[_Item]], _Result], items: Iterable[_Item], size: int
) -> Generator[_Result, None, None]:
    """Yield what `work` returns for each chunk of the items, in order. Threads work, and `items` is read lazily."""
    rest = iter(items)
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="pdp-decide") as pool:
        pending: deque[Future[_Result]] = deque()
        while (chunk := list(islice(rest, size))) or pending:
            if chunk:
                pending.append(pool.submit(work, chunk))
            if not chunk or len(pending) == 2 * WORKERS:
                yield pending.popleft().result()


def anonymous_engine(
    bundle: Bundle, manifests: Mapping[str, Any] | None, data: Mapping[str, Any] | None, engine_timeout: float
) -> EmbeddedEngine:
    """Return an engine whose answers do not name the bundle, so that equal decisions of two bundles are equal bytes."""
    config = {name: value for name, value in bundle.data.get("config", {}).items() if name != "bundle"}
    anonymous = replace(bundle, data={**bundle.data, "config": config})
    return EmbeddedEngine(anonymous, manifests=manifests, data=data, deadline=engine_timeout)


def _answer(engine: EmbeddedEngine, body: bytes, call: ComparedCall) -> bytes | EngineError | BundleError:
    try:
        return engine.evaluate(body, _document(call))
    except EngineTimeoutError as error:
        whose = call.source or f"a generated call of {call.tool}"
        raise EngineTimeoutError(f"{whose}: no verdict: {error.message}", hint=LATE) from error
    except (EngineError, BundleError) as error:
        return error


def _document(call: ComparedCall) -> str:
    return PLAN if call.plan else DECISION


def parsed_decision(answer: bytes | None, body: bytes, *, plan: bool) -> Decision:
    """Return the decision in an answer to a request or plan; a denial for an undefined or malformed answer."""
    try:
        return parse_answer(answer or b"", body, PLAN if plan else DECISION)
    except EngineError as error:
        return denied(error.code, error.message)


def _decision(answer: bytes | EngineError | BundleError, body: bytes, call: ComparedCall) -> Decision:
    if isinstance(answer, bytes):
        return parsed_decision(answer, body, plan=call.plan)
    return denied(answer.code, answer.message)
