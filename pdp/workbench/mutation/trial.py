"""Mutants put to the test: the scenarios that all pass, run again with each mutant.

The harness repeats a scenario to the byte. So where a mutant decides every recorded request as the original does, every
scenario has the same result, and the mutant has survived. Where one is decided differently, the scenarios that ask it
are run again with the mutant's answers, and only one that fails kills it.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.engine.protocol import Engine
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import AnswerInvalidError, EngineTimeoutError, FileFaultsError, PdpError, UsageError
from pdp.json import canonical
from pdp.workbench.mutation.mutant import Fate, Judgement
from pdp.workbench.mutation.proposal import answered
from pdp.workbench.neighbours.bases import tool_of
from pdp.workbench.opa.evaluation import Evaluator
from pdp.workbench.scenarios.running.engines import bundle_of, open_engine
from pdp.workbench.scenarios.running.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from pdp.workbench.mutation.mutant import DataMutant, ManifestMutant, RegoMutant
    from pdp.workbench.mutation.proposal import Outcome
    from pdp.workbench.opa.evaluation import Batch
    from pdp.workbench.scenarios.files.suite import Suite
    from pdp.workbench.scenarios.results import ScenarioResult

_MOST_NAMED: Final = 5
_FIRST: Final = 96
_TIMEOUT: Final = 30.0
_PLAN: Final = "data.authz.plan"
_UNKNOWN: Final = "not evaluated"
_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A suite whose scenarios all pass, and their results in the order of the file."""

    suite: Suite
    results: tuple[ScenarioResult, ...]

    def bodies(self, index: int) -> Iterator[bytes]:
        """Yield what the engine was asked in one scenario."""
        return (answer.body for step in self.results[index].steps for answer in step.answers)

    def tools(self, index: int) -> set[str]:
        """Return the tools that one scenario is about: proposed, named by a raw request, or decided on."""
        steps = self.results[index].steps
        named = {step.tool for step in steps} | {each.trace.tool_name for step in steps for each in step.evaluations}
        return {tool for tool in (*named, *map(tool_of, map(orjson.loads, self.bodies(index)))) if tool}


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
    _check_passed([result for each in recorded for result in each.results])
    return recorded


def _check_passed(results: Iterable[ScenarioResult], where: str = "") -> None:
    failed = [result for result in results if not result.passed]
    if not failed:
        return
    named = ", ".join(f"{result.place.file}:{result.place.line} `{result.name}`" for result in failed[:_MOST_NAMED])
    more = f" and {len(failed) - _MOST_NAMED} more" if len(failed) > _MOST_NAMED else ""
    count = "1 scenario fails" if len(failed) == 1 else f"{len(failed)} scenarios fail"
    raise UsageError(
        f"{count}{where} before anything is broken: {named}{more}", hint="mend them first; see: pdp test PATH"
    )


class RegoTrial:
    """The suites that share policies and data, ready for one mutant after the other. Safe to share between threads.

    Args:
        opa: the program.
        modules: the texts that decide, by their path in the bundle.
        data: the whole data, the suites' manifests among it.
        recorded: the suites, all with these policies and this data.

    Raises:
        UsageError: a scenario fails when OPA decides from the sources; OPA cannot be run.
    """

    def __init__(
        self, opa: Path, modules: Mapping[str, str], data: Mapping[str, Any], recorded: Sequence[Recorded]
    ) -> None:
        self.opa = opa
        self.modules = dict(modules)
        self.data = dict(data)
        self.recorded = recorded
        self._evaluator = Evaluator(opa, self.modules, self.data, timeout=_TIMEOUT)
        self._engine = _Answering(self._evaluator)
        self._runners = [Runner(each.suite, self._engine) for each in recorded]
        self._bodies: dict[_Key, list[bytes]] = {}
        self._original: dict[bytes, bytes | None] = {}
        self._killers: defaultdict[str, Counter[_Key]] = defaultdict(Counter)
        # An engine answers for one mutant at a time, and the harness takes the log for itself.
        self._running = threading.Lock()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._evaluator)
            self._begin()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self) -> None:
        """Run all scenarios with the original's answers: what is decided from the sources is what mutants change."""
        seeds = [body for each in self.recorded for index in range(len(each.results)) for body in each.bodies(index)]
        self._engine.answers = _table(seeds, self._evaluator.evaluate(seeds))
        results: list[ScenarioResult] = []
        for number, runner in enumerate(self._runners):
            for index, result in enumerate(runner.run_all()):
                results.append(result)
                self._bodies[number, index] = [answer.body for step in result.steps for answer in step.answers]
        _check_passed(results, " when OPA decides from the policies' sources")
        # What was asked beyond the seeds is in the table by now.
        self._original = dict(self._engine.answers)

    def outcomes(
        self, bodies: Sequence[bytes], mutant: RegoMutant, evaluator: Evaluator | None = None
    ) -> list[tuple[Outcome, Outcome]]:
        """Decide requests by the original and by a mutant; where a mutant was not asked, both are the original's."""
        evaluator = evaluator or self._evaluator
        original = [answered(answer) for answer in evaluator.evaluate(bodies).answers]
        broken = _table(bodies, evaluator.evaluate(bodies, changed={mutant.module: mutant.text}))
        return [
            (before, answered(broken[body]) if body in broken else before)
            for body, before in zip(bodies, original, strict=True)
        ]

    def judge(self, mutant: RegoMutant) -> Judgement:
        """Return a mutant's fate.

        Raises:
            UsageError: OPA cannot be run.
        """
        known: dict[bytes, bytes | None] = {}
        for chunk in self._chunks(mutant):
            asked = list(dict.fromkeys(body for key in chunk for body in self._bodies[key] if body not in known))
            try:
                known |= _table(asked, self._evaluator.evaluate(asked, changed={mutant.module: mutant.text}))
            except EngineTimeoutError:
                return Judgement(mutant, Fate.KILLED, by="no answer in time")
            except UsageError as error:
                if not _does_not_compile(error):
                    raise
                return Judgement(mutant, Fate.INVALID, by=error.message.splitlines()[0])
            suspects = [key for key in chunk if any(self._differs(body, known) for body in self._bodies[key])]
            killer = self._failing(suspects, mutant, known)
            if killer is not None:
                return Judgement(mutant, Fate.KILLED, by=killer)
        return Judgement(mutant, Fate.SURVIVED, unnoticed=sum(self._differs(body, known) for body in self._original))

    def _differs(self, body: bytes, known: Mapping[bytes, bytes | None]) -> bool:
        return body not in known or known[body] != self._original[body]

    def _chunks(self, mutant: RegoMutant) -> list[list[_Key]]:
        """The scenarios: first those that killed in this module before and some from everywhere, then all others."""
        order = [key for key, _ in self._killers[mutant.module].most_common()]
        keys = list(self._bodies)
        step = max(1, len(keys) // _FIRST)
        order = list(dict.fromkeys((*order[: _FIRST // 2], *keys[::step], *order, *keys)))
        return [chunk for chunk in (order[:_FIRST], order[_FIRST:]) if chunk]

    def _failing(self, suspects: Sequence[_Key], mutant: RegoMutant, known: Mapping[bytes, bytes | None]) -> str | None:
        """Run scenarios with the mutant's answers, and return the first that fails."""
        with self._running:
            self._engine.changed, self._engine.answers = {mutant.module: mutant.text}, dict(known)
            for number, index in suspects:
                result = self._runners[number].run(index)
                if not result.passed:
                    self._killers[mutant.module][number, index] += 1
                    return _named(result)
        return None


class _Answering(Engine):
    """Answers from a table, and what is not in it by OPA. None in the table: the evaluation failed."""

    name = "embedded"

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self.changed: Mapping[str, str] = {}
        self.answers: dict[bytes, bytes | None] = {}
        self._plans: dict[bytes, bytes | None] = {}

    def evaluate(self, body: bytes) -> bytes:
        if body not in self.answers:
            self.answers |= _table([body], self._evaluator.evaluate([body], changed=self.changed))
        return _given(self.answers[body])

    def evaluate_plan(self, body: bytes) -> bytes:
        # Mutants are of what decides calls: a plan is decided as the original decides it.
        if body not in self._plans:
            self._plans |= _table([body], self._evaluator.evaluate([body], document=_PLAN))
        return _given(self._plans[body])

    async def aevaluate(self, body: bytes) -> bytes:
        return self.evaluate(body)


class ManifestTrial:
    """The suites of one effective manifest, run again with each mutant of it. Use it from one thread.

    A mutant's requests carry another digest, so all are decided anew. Only scenarios about the changed tool are run:
    the baseline reads no entry but that of the tool which is called. With policies of one's own, all are.
    """

    def __init__(self, recorded: Sequence[Recorded]) -> None:
        self._recorded = recorded
        self._tools = [[each.tools(index) for index in range(len(each.results))] for each in recorded]

    def judge_all(self, mutants: Sequence[ManifestMutant]) -> Iterator[Judgement]:
        """Return the fate of each mutant, in their order; their manifests are all given to one engine."""
        manifests = {mutant.manifest.digest: mutant.manifest.document for mutant in mutants}
        with _Engines(manifests) as engines:
            for mutant in mutants:
                yield self._judge(mutant, engines)

    def _judge(self, mutant: ManifestMutant, engines: _Engines) -> Judgement:
        for each, tools in zip(self._recorded, self._tools, strict=True):
            own = each.suite.policies or each.suite.bundle
            indices = [index for index, named in enumerate(tools) if mutant.tool is None or own or mutant.tool in named]
            if not indices:
                continue
            # Those about the tool first: one of them it will be, if any.
            indices.sort(key=lambda index: mutant.tool not in tools[index])
            try:
                runner = Runner(each.suite, engines.of(each.suite), manifest=mutant.manifest)
            except PdpError as error:
                return Judgement(mutant, Fate.INVALID, by=error.message)
            killer = _first_failing(runner, indices)
            if killer is not None:
                return Judgement(mutant, Fate.KILLED, by=killer)
        return Judgement(mutant, Fate.SURVIVED)


class DataTrial:
    """The suites that share data, their recorded requests decided again with each mutant of it."""

    def __init__(self, recorded: Sequence[Recorded]) -> None:
        self._recorded = recorded

    def judge(self, mutant: DataMutant) -> Judgement:
        """Return a mutant's fate."""
        unnoticed = 0
        with _Engines({each.suite.manifest.digest: each.suite.manifest.document for each in self._recorded}) as engines:
            for each in self._recorded:
                suite = replace(each.suite, data=mutant.data)
                engine = engines.of(suite)
                differing = [_differing(result, engine) for result in each.results]
                unnoticed += sum(differing)
                suspects = [index for index, count in enumerate(differing) if count]
                killer = _first_failing(Runner(suite, engine), suspects) if suspects else None
                if killer is not None:
                    return Judgement(mutant, Fate.KILLED, by=killer)
        return Judgement(mutant, Fate.SURVIVED, unnoticed=unnoticed)


class _Engines:
    """Embedded engines that all have the same manifests, one for all suites with the same policies and data."""

    def __init__(self, manifests: Mapping[str, Any]) -> None:
        self._manifests = manifests
        self._stack = ExitStack()
        self._opened: dict[bytes, EmbeddedEngine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def of(self, suite: Suite) -> EmbeddedEngine:
        """Return the engine for a suite, opened when it is asked for first."""
        key = canonical([str(suite.bundle), [str(folder) for folder in suite.policies], dict(suite.data)])
        if key not in self._opened:
            engine = EmbeddedEngine(bundle_of(suite), manifests=self._manifests, data=suite.data)
            self._opened[key] = self._stack.enter_context(engine)
        return self._opened[key]


def _differing(result: ScenarioResult, engine: Engine) -> int:
    """How many recorded requests and plans of a scenario an engine decides differently."""
    pairs = [
        (answer.decision, decide(answer.body))
        for step in result.steps
        for answers, decide in ((step.answers, engine.decide_body), (step.plans, engine.decide_plan))
        for answer in answers
    ]
    return sum(
        (old.verdict, old.reasons, old.obligations) != (new.verdict, new.reasons, new.obligations) for old, new in pairs
    )


def _first_failing(runner: Runner, indices: Sequence[int]) -> str | None:
    results = (runner.run(index) for index in indices)
    return next((_named(result) for result in results if not result.passed), None)


def _named(result: ScenarioResult) -> str:
    return f"{result.place.file}:{result.place.line} {result.name}"


def _given(answer: bytes | None) -> bytes:
    if answer is None:
        raise AnswerInvalidError("the policy fails")
    return answer


def _does_not_compile(error: UsageError) -> bool:
    """Whether OPA refuses the Rego, and not something else: the original was evaluated by the same program."""
    return isinstance(error, FileFaultsError) or error.message.startswith("OPA refuses the policies")


def _table(bodies: Sequence[bytes], batch: Batch) -> dict[bytes, bytes | None]:
    """The answers by request, without those that were not asked for because too many before them failed."""
    return {
        body: batch.answers[index]
        for index, body in enumerate(bodies)
        if not batch.errors.get(index, "").startswith(_UNKNOWN)
    }
