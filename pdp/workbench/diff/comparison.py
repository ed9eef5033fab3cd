"""The same calls decided by two bundles, and in what the two decisions differ."""

from collections import deque
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from pdp.decision import Decision, Verdict, denied
from pdp.engine.bundle.file import Bundle
from pdp.engine.protocol import DECISION, PLAN, parse_answer
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import BundleError, EngineError, EngineTimeoutError
from pdp.json import canonical
from pdp.manifest.diff import Direction
from pdp.workbench.engines import ENGINE_TIMEOUT, LATE

WORKERS: Final = 2
"""How many threads decide. An evaluation does not hold Python's lock, so two cores are of use."""

_CHUNK: Final = 128
_ORDER: Final = {Verdict.DENY: 0, Verdict.STEP_UP: 1, Verdict.ALLOW: 2}


@dataclass(frozen=True, slots=True)
class ComparedCall:
    """One call, as each bundle is asked it.

    Attributes:
        old, new: the request for either bundle, canonical.
        variant: in what it differs from a call that has all it needs: the dimensions.
        source: where a known call comes from, such as a scenario; empty for a generated one.
        plan: whether the bodies are put to `authz/plan`.
        known_tool: whether the tool is one of the bundles' manifests, and not a generated entry.
    """

    tool: str
    old: bytes
    new: bytes
    variant: tuple[str, ...] = ()
    source: str = ""
    plan: bool = False
    known_tool: bool = True


@dataclass(frozen=True, slots=True)
class DecisionChange:
    """What differs between the decision of the old bundle and that of the new one.

    Attributes:
        obligations_removed, obligations_added: by id, where the verdict is the same; one with other parameters is in
            both.
        details: codes of both decisions, of the same verdict, whose details differ.
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
        """The codes and obligations that differ."""
        obligations = (*self.obligations_removed, *self.obligations_added)
        return tuple(dict.fromkeys((*self.codes_removed, *self.codes_added, *obligations, *self.details)))

    @property
    def deciding(self) -> tuple[str, ...]:
        """Of the names those that the stricter of two verdicts gives: what the other one gives instead follows."""
        if self.old is self.new:
            return self.names
        return self.codes_removed if _ORDER[self.old] < _ORDER[self.new] else self.codes_added

    @property
    def direction(self) -> Direction:
        """Nearer to ALLOW loosens, and so does an ALLOW with another obligation, or one less.

        Only the application knows what parameters ask for: `transform` to 900000 instead of 100 may well admit more.
        Only a call that keeps its obligations and gets one more is stricter for sure.
        """
        if self.old is not self.new:
            return Direction.LOOSENS if _ORDER[self.new] > _ORDER[self.old] else Direction.TIGHTENS
        if self.new is Verdict.ALLOW and (self.obligations_removed or self.obligations_added):
            return Direction.LOOSENS if self.obligations_removed else Direction.TIGHTENS
        return Direction.UNCLEAR

    @property
    def rank(self) -> tuple[bool, bool, int, int]:
        """By which a report orders changes: what loosens, then another verdict, then what is nearest to ALLOW."""
        loosens = self.direction is Direction.LOOSENS
        return not loosens, self.old is self.new, -_ORDER[self.new], _ORDER[self.old]


def change_of(old: Decision, new: Decision) -> DecisionChange | None:
    """Return what differs; None when nothing does. Messages are text for people, and no difference."""
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
        # Where the verdict differs, the obligations of another verdict and the details of grants say nothing new.
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
    """A call that is decided differently."""

    call: ComparedCall
    change: DecisionChange
    old: Decision
    new: Decision


class Comparison(ExitStack):
    """Two bundles, each with an engine in this process: `engines`, the old one first. Close it when done.

    `manifests`: documents of more manifests by digest; `old_data`, `new_data`: laid over the data of each. BundleError:
    a bundle cannot be used. UsageError, EngineError: as of `EmbeddedEngine`.
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
        # Where the second cannot be opened, the first is closed at once.
        with ExitStack() as opened:
            self.engines = (
                opened.enter_context(_engine(old, manifests, old_data, engine_timeout)),
                opened.enter_context(_engine(new, manifests, new_data, engine_timeout)),
            )
            self.push(opened.pop_all())

    def decide(self, call: ComparedCall) -> tuple[Decision, Decision]:
        """Return both decisions on one call."""
        old, new = self._answers(call)
        return _decision(old, call.old, call), _decision(new, call.new, call)

    def _answers(self, call: ComparedCall) -> tuple[bytes | EngineError | BundleError, ...]:
        old, new = self.engines
        return _answer(old, call.old, call), _answer(new, call.new, call)

    def differences(self, calls: Iterable[ComparedCall]) -> Generator[Difference, None, None]:
        """Yield the calls that are decided differently, in their order; `calls` are taken as they are needed."""
        rest = iter(calls)
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="pdp-diff") as pool:
            pending: deque[Future[list[Difference]]] = deque()
            while (chunk := list(islice(rest, _CHUNK))) or pending:
                if chunk:
                    pending.append(pool.submit(self._differing, chunk))
                if not chunk or len(pending) == 2 * WORKERS:
                    yield from pending.popleft().result()

    def _differing(self, calls: list[ComparedCall]) -> list[Difference]:
        differences = []
        for call in calls:
            answers = self._answers(call)
            # Nearly all are equal to the byte; parsing those would take a third of the time of deciding.
            if answers[0] == answers[1]:
                continue
            old, new = _decision(answers[0], call.old, call), _decision(answers[1], call.new, call)
            change = change_of(old, new)
            if change is not None:
                differences.append(Difference(call, change, old, new))
        return differences


def _engine(
    bundle: Bundle, manifests: Mapping[str, Any] | None, data: Mapping[str, Any] | None, engine_timeout: float
) -> EmbeddedEngine:
    # Each answer names its bundle; without that, equal decisions are equal bytes.
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


def _decision(answer: bytes | EngineError | BundleError, body: bytes, call: ComparedCall) -> Decision:
    if isinstance(answer, bytes):
        try:
            return parse_answer(answer, body, _document(call))
        except EngineError as error:
            answer = error
    return denied(answer.code, answer.message)
