"""Mutants of manifests and data put to the test, on the embedded engine: no OPA is needed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import PdpError
from pdp.json import canonical
from pdp.workbench.mutation.judgement import Judgement
from pdp.workbench.mutation.mutant import Fate
from pdp.workbench.scenarios.running.engines import bundle_of
from pdp.workbench.scenarios.running.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

    from pdp.decision import Decision
    from pdp.workbench.mutation.mutant import DataMutant, ManifestMutant
    from pdp.workbench.mutation.recorded import Recorded
    from pdp.workbench.scenarios.files.suite import Suite
    from pdp.workbench.scenarios.results import Answer


class ManifestTrial:
    """The suites of one effective manifest, run again with each mutant of it. Use it from one thread.

    A mutant's requests carry another digest, so all are decided anew. Only scenarios about the changed tool are run:
    the baseline reads no entry but that of the tool which is called. With policies of one's own, all are.
    """

    def __init__(self, recorded: Sequence[Recorded]) -> None:
        self._recorded = recorded
        self._tools = [[each.tools(index) for index in range(len(each.results))] for each in recorded]

    def judge_all(self, mutants: Sequence[ManifestMutant]) -> Iterator[Judgement]:
        """Say what comes of each mutant, in their order; their manifests are all given to one engine."""
        manifests = {mutant.manifest.digest: mutant.manifest.document for mutant in mutants}
        with Engines(manifests) as engines:
            for mutant in mutants:
                yield self._judge(mutant, engines)

    def _judge(self, mutant: ManifestMutant, engines: Engines) -> Judgement:
        for number, each in enumerate(self._recorded):
            own = each.suite.policies or each.suite.bundle
            indices = [
                index
                for index, tools in enumerate(self._tools[number])
                if mutant.tool is None or own or mutant.tool in tools
            ]
            if not indices:
                continue
            # Those about the tool first: one of them it will be, if any.
            indices.sort(key=lambda index: mutant.tool not in self._tools[number][index])
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
        """Say what comes of a mutant."""
        unnoticed = 0
        with Engines({each.suite.manifest.digest: each.suite.manifest.document for each in self._recorded}) as engines:
            for each in self._recorded:
                suite = replace(each.suite, data=mutant.data)
                engine = engines.of(suite)
                suspects = []
                for index, result in enumerate(each.results):
                    differing = sum(
                        _other(answer, decide(answer.body))
                        for step in result.steps
                        for answers, decide in ((step.answers, engine.decide_body), (step.plans, engine.decide_plan))
                        for answer in answers
                    )
                    unnoticed += differing
                    if differing:
                        suspects.append(index)
                killer = _first_failing(Runner(suite, engine), suspects) if suspects else None
                if killer is not None:
                    return Judgement(mutant, Fate.KILLED, by=killer)
        return Judgement(mutant, Fate.SURVIVED, unnoticed=unnoticed)


class Engines:
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


def _other(answer: Answer, found: Decision) -> bool:
    decision = answer.decision
    return (found.verdict, found.reasons, found.obligations) != (
        decision.verdict,
        decision.reasons,
        decision.obligations,
    )


def _first_failing(runner: Runner, indices: Sequence[int]) -> str | None:
    for index in indices:
        result = runner.run(index)
        if not result.passed:
            return f"{result.place.file}:{result.place.line} {result.name}"
    return None
