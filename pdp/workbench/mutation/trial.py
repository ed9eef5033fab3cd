"""Test mutants: run the scenarios, which pass with the original policy, again with each mutant.

The harness repeats the requests of a scenario exactly. If a mutant decides every recorded request as the original does,
every scenario has the same result, so the mutant survives. If the mutant decides a request differently, the scenarios
with that request run again with the mutant's answers. A failing scenario kills the mutant.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from pdp.engine.data import merged_data
from pdp.engine.protocol import DECISION, PLAN, Engine
from pdp.errors import AnswerInvalidError, EngineTimeoutError, PdpError, UsageError
from pdp.opa.evaluation import Evaluator
from pdp.workbench.diff.comparison import change_of
from pdp.workbench.mutation.mutant import DataMutant, Fate, Judgement, ManifestMutant, RegoMutant
from pdp.workbench.neighbours.bases import tool_of
from pdp.workbench.scenarios.files.suite import Suite, policy_modules
from pdp.workbench.scenarios.results import ScenarioResult
from pdp.workbench.scenarios.running.engines import bundle_of, open_suite_engine
from pdp.workbench.scenarios.running.runner import Runner

_MOST_NAMED: Final = 5
_FIRST: Final = 96
_PLAN_RULE: Final = f"data.{PLAN.replace('/', '.')}"
# Requests are evaluated in batches of hundreds, because OPA is started for each batch.
_ANSWERS_IN_TURN: Final = 30


@dataclass(frozen=True, slots=True)
class Recorded:
    """A suite whose scenarios all pass, their results in the order of the file, and the tools of each scenario."""

    suite: Suite
    results: tuple[ScenarioResult, ...]
    tools: tuple[frozenset[str], ...]


def record(suites: Iterable[Suite]) -> list[Recorded]:
    """Run every suite on the embedded engine. Raises `UsageError` if a scenario fails without a mutant."""
    recordings = []
    for suite in suites:
        with open_suite_engine(suite, "embedded") as engine:
            results = tuple(Runner(suite, engine).run_all())
        recordings.append(Recorded(suite, results, tuple(map(_tools, results))))
    _check_passed([result for recorded in recordings for result in recorded.results])
    return recordings


def _tools(result: ScenarioResult) -> frozenset[str]:
    named = {step.tool for step in result.steps}
    named |= {evaluation.trace.tool_name for step in result.steps for evaluation in step.evaluations}
    return frozenset(tool for tool in (*named, *(tool_of(orjson.loads(body)) for body in _bodies(result))) if tool)


def _bodies(result: ScenarioResult) -> list[bytes]:
    return [answer.body for step in result.steps for answer in step.answers]


def _check_passed(results: Iterable[ScenarioResult], where: str = "") -> None:
    failed = [result for result in results if not result.passed]
    if not failed:
        return
    named = ", ".join(f"{result.place.file}:{result.place.line} `{result.name}`" for result in failed[:_MOST_NAMED])
    more = f" and {len(failed) - _MOST_NAMED} more" if len(failed) > _MOST_NAMED else ""
    count = "1 scenario fails" if len(failed) == 1 else f"{len(failed)} scenarios fail"
    raise UsageError(f"{count}{where} without any mutant: {named}{more}", hint="fix them first; run: pdp test PATH")


@contextmanager
def open_rego_trial(opa: Path, recorded: Sequence[Recorded]) -> Iterator[RegoTrial]:
    """Open OPA to test mutants of suites with equal policies and data, whose scenarios must pass when OPA decides."""
    suite = recorded[0].suite
    manifests = {ran.suite.manifest.digest: ran.suite.manifest.document for ran in recorded}
    data = merged_data(bundle_of(suite).data, manifests=manifests, data=suite.data)
    texts = {path: module.text for path, module in policy_modules(suite).items()}
    with Evaluator(opa, texts, data, timeout=_ANSWERS_IN_TURN * suite.engine_timeout) as evaluator:
        yield RegoTrial(evaluator, recorded)


class RegoTrial:
    """Tests mutants of Rego with suites that share policies and data. Several threads may use one trial."""

    def __init__(self, evaluator: Evaluator, recorded: Sequence[Recorded]) -> None:
        self._evaluator = evaluator
        self._engine = _TableEngine(evaluator)
        self._killers: defaultdict[str, Counter[int]] = defaultdict(Counter)
        # Only one mutant is run at a time, because the scenario runner captures the global log.
        self._running = threading.Lock()
        seeds = [body for ran in recorded for result in ran.results for body in _bodies(result)]
        steps = (step for ran in recorded for result in ran.results for step in result.steps)
        self._engine.answers = dict(evaluator.evaluate(seeds).answers)
        self._engine.evaluate_plans([answer.body for step in steps for answer in step.plans])
        runners = [(Runner(ran.suite, self._engine), len(ran.results)) for ran in recorded]
        self._scenarios = [(runner, at) for runner, count in runners for at in range(count)]
        # Mutants change the policies' sources, so they are compared with decisions from the unchanged sources.
        results = [runner.run(at) for runner, at in self._scenarios]
        _check_passed(results, " when OPA decides from the policies' sources")
        self._bodies = list(map(_bodies, results))
        # The table of answers now also contains the answers of the runs above.
        self._original = dict(self._engine.answers)

    def judge(self, mutant: RegoMutant) -> Judgement:
        """Test a mutant, and return its judgement."""
        known: dict[bytes, bytes | None] = {}
        changed = {mutant.module: mutant.text}
        for chunk in self._chunks(mutant):
            bodies = [body for key in chunk for body in self._bodies[key] if body not in known]
            try:
                known |= self._evaluator.evaluate(bodies, changed=changed).answers
            except UsageError as error:
                # The same OPA evaluated the unchanged policies, so the error means that the mutant does not compile or
                # terminate.
                if not error.message.startswith("OPA rejected"):
                    raise
                return Judgement(mutant, Fate.INVALID, by=error.message.splitlines()[0])
            suspects = [key for key in chunk if any(self._differs(body, known) for body in self._bodies[key])]
            killer = self._failing(suspects, mutant, known)
            if killer is not None:
                return Judgement(mutant, Fate.KILLED, by=killer)
        unnoticed = sum(self._differs(body, known) for body in self._original)
        return Judgement(mutant, Fate.SURVIVED, unnoticed=unnoticed)

    def reached(self) -> Mapping[str, frozenset[int]]:
        """Return the lines that the recorded requests evaluate completely, by module."""
        lines = self._evaluator.evaluate(list(self._original), coverage=True).lines or {}
        return {path: module.covered for path, module in lines.items()}

    def _differs(self, body: bytes, known: Mapping[bytes, bytes | None]) -> bool:
        return body not in known or known[body] != self._original[body]

    def _chunks(self, mutant: RegoMutant) -> list[list[int]]:
        """Return two lists of scenarios: a sample with some that killed mutants of the module, and the rest."""
        order = [key for key, _ in self._killers[mutant.module].most_common()]
        keys = range(len(self._scenarios))
        step = max(1, len(keys) // _FIRST)
        order = list(dict.fromkeys((*order[: _FIRST // 2], *keys[::step], *order, *keys)))
        return [chunk for chunk in (order[:_FIRST], order[_FIRST:]) if chunk]

    def _failing(self, suspects: Sequence[int], mutant: RegoMutant, known: Mapping[bytes, bytes | None]) -> str | None:
        """Run scenarios with the mutant's answers, and return the name of the first failing scenario, or None."""
        with self._running:
            self._engine.changed, self._engine.answers = {mutant.module: mutant.text}, dict(known)
            for key in suspects:
                runner, index = self._scenarios[key]
                result = runner.run(index)
                if not result.passed:
                    self._killers[mutant.module][key] += 1
                    return _named(result)
        return None


class _TableEngine(Engine):
    """An engine with a table of answers, where None is a failed evaluation. OPA decides requests not in the table."""

    name = "embedded"

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self.changed: Mapping[str, str] = {}
        self.answers: dict[bytes, bytes | None] = {}
        self._plans: dict[bytes, bytes | None] = {}

    def evaluate_plans(self, bodies: Sequence[bytes]) -> None:
        """Evaluate plans, which mutants do not change, because mutants only change decisions about calls."""
        self._plans |= self._evaluator.evaluate(bodies, document=_PLAN_RULE).answers

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        if document == PLAN:
            if body not in self._plans:
                self.evaluate_plans([body])
            answer = self._plans[body]
        else:
            if body not in self.answers:
                self.answers |= self._evaluator.evaluate([body], changed=self.changed).answers
            answer = self.answers[body]
        if answer is None:
            raise AnswerInvalidError("the policy failed")
        return answer


def judge_embedded(recorded: Sequence[Recorded], mutant: ManifestMutant | DataMutant) -> Judgement:
    """Test a mutant of a manifest or of data on the embedded engine, with suites that share the manifest or data.

    A mutant of a manifest changes the digest in every request, so no recorded decision can be reused. The baseline
    reads only the called tool's entry, so only scenarios about the changed tool run, unless there are custom policies.
    For a mutant of data, only scenarios run that have a recorded request which the mutant decides differently.
    """
    unnoticed = 0
    try:
        with open_suite_engine(mutant.applied(recorded[0].suite), "embedded") as engine:
            for ran in recorded:
                if isinstance(mutant, ManifestMutant):
                    indices = _about(mutant, ran)
                else:
                    counts = [_differing(result, engine) for result in ran.results]
                    unnoticed += sum(counts)
                    indices = [index for index, count in enumerate(counts) if count]
                runner = Runner(mutant.applied(ran.suite), engine) if indices else None
                for result in (runner.run(index) for index in indices if runner):
                    if not result.passed:
                        return Judgement(mutant, Fate.KILLED, by=_named(result))
    except EngineTimeoutError:
        raise
    except PdpError as error:
        return Judgement(mutant, Fate.INVALID, by=error.message)
    return Judgement(mutant, Fate.SURVIVED, unnoticed=unnoticed)


def _about(mutant: ManifestMutant, ran: Recorded) -> list[int]:
    """Return scenarios that may detect a changed manifest entry. Scenarios that call the entry's tool come first."""
    every = mutant.tool is None or ran.suite.policies or ran.suite.bundle
    indices = [index for index, names in enumerate(ran.tools) if every or mutant.tool in names]
    return sorted(indices, key=lambda index: mutant.tool not in ran.tools[index])


def _differing(result: ScenarioResult, engine: Engine) -> int:
    recorded = (
        (answer, document)
        for step in result.steps
        for answers, document in ((step.answers, DECISION), (step.plans, PLAN))
        for answer in answers
    )
    return sum(
        change_of(answer.decision, engine.decide_body(answer.body, document)) is not None
        for answer, document in recorded
    )


def _named(result: ScenarioResult) -> str:
    return f"{result.place.file}:{result.place.line} {result.name}"
