"""Mutants of Rego put to the test: the recorded requests decided again, in one run of OPA for many of them.

The harness repeats a scenario to the byte. So where a mutant decides every recorded request as the original does, every
scenario comes to the same, and the mutant has survived. Where one is decided differently, the scenarios that ask it are
run again with the mutant's answers, and only one that fails kills it.
"""

from __future__ import annotations

import threading
import zlib
from collections import Counter, defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pdp.engine.protocol import Engine
from pdp.errors import AnswerInvalidError, EngineTimeoutError, FileFaultsError, UsageError
from pdp.workbench.mutation.judgement import Judgement
from pdp.workbench.mutation.mutant import Fate
from pdp.workbench.mutation.nearness import Nearness, words
from pdp.workbench.mutation.reach import Reach
from pdp.workbench.mutation.recorded import by_sort, check_passed
from pdp.workbench.mutation.witness import outcome
from pdp.workbench.opa.batch import View
from pdp.workbench.opa.evaluation import Evaluator
from pdp.workbench.scenarios.running.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path
    from typing import Self

    from pdp.workbench.mutation.mutant import RegoMutant
    from pdp.workbench.mutation.recorded import Recorded
    from pdp.workbench.mutation.telling import Outcome
    from pdp.workbench.opa.batch import Batch
    from pdp.workbench.scenarios.results import ScenarioResult

_CHUNKS: Final = (24, 80)
_BEFORE: Final = 4
_TIMEOUT: Final = 30.0
_PLAN: Final = "data.authz.plan"
_UNKNOWN: Final = "not evaluated"
_NO_VIEWS: Final[Mapping[str, str]] = MappingProxyType({})
_Key = tuple[int, int]


class RegoTrial:
    """The suites that share policies and data, ready for one mutant after the other. Safe to share between threads.

    Args:
        opa: the program.
        modules: the texts that decide, by their path in the bundle.
        data: the whole data, the suites' manifests among it.
        recorded: the suites, all with these policies and this data.
        views: for packages the expression through which alone others see them (see `asked.views`).

    Raises:
        UsageError: a scenario fails when OPA decides from the sources; OPA cannot be run.
    """

    def __init__(
        self,
        opa: Path,
        modules: Mapping[str, str],
        data: Mapping[str, Any],
        recorded: Sequence[Recorded],
        views: Mapping[str, str] = _NO_VIEWS,
    ) -> None:
        self.opa = opa
        self.modules = dict(modules)
        self.data = dict(data)
        self.recorded = recorded
        self.evaluator = Evaluator(opa, self.modules, self.data, timeout=_TIMEOUT)
        self._engine = _Answering(self.evaluator)
        self._runners = [Runner(each.suite, self._engine) for each in recorded]
        self._nearness = Nearness({})
        self._reach = Reach(self.evaluator, ())
        self._bodies: dict[_Key, list[bytes]] = {}
        self._original: dict[bytes, bytes | None] = {}
        self._expressions = views
        self._views: dict[str, View] = {}
        self._decided: dict[bytes, Outcome] = {}
        self._killers: defaultdict[tuple[str, str | None], Counter[_Key]] = defaultdict(Counter)
        # An engine answers for one mutant at a time, and the harness takes the log for itself.
        self._running = threading.Lock()

    def __enter__(self) -> Self:
        self.evaluator.__enter__()
        try:
            self._begin()
        except BaseException:
            self.evaluator.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.evaluator.__exit__()

    @property
    def bodies(self) -> list[bytes]:
        """Every request that was recorded, once."""
        return list(self._original)

    def bodies_near(self, module: str) -> list[bytes]:
        """Return the recorded requests, one of each sort first, and those before others in which the concern shows."""
        concern = _concern(module)
        word = concern.rstrip("s").encode()

        def near(body: bytes, codes: Sequence[str]) -> bool:
            return word in body or any(code.startswith(f"{concern}.") for code in codes)

        return [body for body in by_sort(self.recorded, near) if body in self._original]

    def outcomes(
        self, bodies: Sequence[bytes], mutant: RegoMutant, evaluator: Evaluator | None = None
    ) -> list[tuple[Outcome, Outcome]]:
        """Decide requests by the original and by a mutant; where a mutant was not asked, both are the original's."""
        if evaluator is None:
            evaluator = self.evaluator
            # The search for one mutant of a module asks what the search for the last one asked.
            fresh = [body for body in bodies if body not in self._decided]
            self._decided |= zip(fresh, map(outcome, evaluator.evaluate(fresh).answers), strict=True)
            original = [self._decided[body] for body in bodies]
        else:
            original = [outcome(answer) for answer in evaluator.evaluate(bodies).answers]
        broken = _table(bodies, evaluator.evaluate(bodies, changed={mutant.module: mutant.text}))
        return [
            (one, outcome(broken[body]) if body in broken else one) for body, one in zip(bodies, original, strict=True)
        ]

    def _begin(self) -> None:
        """Run all scenarios with the original's answers: what is decided from the sources is what mutants change."""
        seeds = [body for each in self.recorded for index in range(len(each.results)) for body in each.bodies(index)]
        self._engine.answers = _table(seeds, self.evaluator.evaluate(seeds))
        results: list[ScenarioResult] = []
        for number, runner in enumerate(self._runners):
            for index, result in enumerate(runner.run_all()):
                results.append(result)
                self._bodies[number, index] = [answer.body for step in result.steps for answer in step.answers]
        check_passed(results, " when OPA decides from the policies' sources")
        texts = {}
        for (number, index), bodies in self._bodies.items():
            scenario = self.recorded[number].suite.scenarios[index]
            asked = b" ".join(bodies).decode()
            texts[number, index] = f"{self.recorded[number].suite.file.stem} {scenario.name} {scenario.why} {asked}"
        self._nearness = Nearness(texts)
        # What was asked beyond the seeds is in the table by now.
        self._original = dict(self._engine.answers)
        self._reach = Reach(self.evaluator, self._alike())

    def _alike(self) -> list[list[bytes]]:
        """Requests of one suite that are decided alike, together."""
        groups: dict[tuple[int, tuple[str, ...]], list[bytes]] = {}
        seen: set[bytes] = set()
        for number, each in enumerate(self.recorded):
            for result in each.results:
                for answer in (answer for step in result.steps for answer in step.answers):
                    if answer.body not in seen:
                        seen.add(answer.body)
                        groups.setdefault((number, answer.decision.codes), []).append(answer.body)
        return list(groups.values())

    def judge(self, mutant: RegoMutant) -> Judgement:
        """Say what comes of a mutant.

        Raises:
            UsageError: OPA cannot be run.
        """
        changed = {mutant.module: mutant.text}
        known: dict[bytes, bytes | None] = {}
        matter = {body for body in self._original if self._reach.matters(body, mutant.module, mutant.lines)}
        known |= {body: answer for body, answer in self._original.items() if body not in matter}
        view = self._view(mutant.package)
        for chunk in self._chunks(mutant, matter):
            asked = list(dict.fromkeys(body for key in chunk for body in self._bodies[key] if body not in known))
            try:
                batch = self.evaluator.evaluate(asked, changed=changed, view=view)
                known |= {body: self._original[body] for body in (asked[index] for index in batch.unchanged)}
                known |= _table(asked, batch)
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
        unnoticed = sum(self._differs(body, known) for body in self._original)
        return Judgement(mutant, Fate.SURVIVED, unnoticed=unnoticed)

    def _view(self, package: str) -> View | None:
        """What shows of a package for each recorded request, by the original; None where that cannot be told."""
        if package not in self._expressions:
            return None
        if package not in self._views:
            bodies, expression = self.bodies, self._expressions[package]
            before = self.evaluator.evaluate(bodies, document=expression).answers
            self._views[package] = View(expression, dict(zip(bodies, before, strict=True)))
        return self._views[package]

    def _differs(self, body: bytes, known: Mapping[bytes, bytes | None]) -> bool:
        return body not in known or known[body] != self._original[body]

    def _chunks(self, mutant: RegoMutant, matter: AbstractSet[bytes]) -> list[list[_Key]]:
        """The scenarios that a mutant can matter for, those first that are likely to fail."""
        of_rule, of_module = self._killers[mutant.module, mutant.owner], self._killers[mutant.module, None]
        lines = [line for line in mutant.diff.splitlines() if line.startswith(("+", "-"))]
        asked = words(" ".join([mutant.owner, *lines[2:]]))
        keys = [key for key, bodies in self._bodies.items() if not matter.isdisjoint(bodies)]
        near = sorted(keys, key=lambda key: (-self._nearness.of(key, asked), -of_module[key], key))
        before = [key for key, _ in of_rule.most_common(_BEFORE) if key in near]
        # A few that killed in this rule before; then, in turn, what speaks of the same things, and all sorts of others.
        others = sorted(keys, key=lambda key: zlib.crc32(repr(key).encode()))
        mixed = [key for pair in zip(near, others, strict=True) for key in pair]
        order = list(dict.fromkeys([*before, *mixed]))
        chunks, start = [], 0
        for size in _CHUNKS:
            chunks.append(order[start : start + size])
            start += size
        return [chunk for chunk in (*chunks, order[start:]) if chunk]

    def _failing(self, suspects: Sequence[_Key], mutant: RegoMutant, known: Mapping[bytes, bytes | None]) -> str | None:
        """Run scenarios with the mutant's answers, and return the first that fails."""
        with self._running:
            self._engine.changed, self._engine.answers = {mutant.module: mutant.text}, dict(known)
            for number, index in suspects:
                result = self._runners[number].run(index)
                if not result.passed:
                    for owner in (None, mutant.owner):
                        self._killers[mutant.module, owner][number, index] += 1
                    return f"{result.place.file}:{result.place.line} {result.name}"
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


def _given(answer: bytes | None) -> bytes:
    if answer is None:
        raise AnswerInvalidError("the policy fails")
    return answer


def _does_not_compile(error: UsageError) -> bool:
    """Whether OPA refuses the Rego, and not something else: the original was evaluated by the same program."""
    return isinstance(error, FileFaultsError) or error.message.startswith("OPA refuses the policies")


def _concern(module: str) -> str:
    """The folder that a module stands in, which for a concern is its name."""
    parts = module.split("/")
    return parts[-2] if len(parts) > 2 else parts[-1].removesuffix(".rego")  # noqa: PLR2004 - a root, a folder, a file


def _table(bodies: Sequence[bytes], batch: Batch) -> dict[bytes, bytes | None]:
    """The answers by request, without those that were not asked for: too many before them failed, or no need."""
    return {
        body: batch.answers[index]
        for index, body in enumerate(bodies)
        if index not in batch.unchanged and not batch.errors.get(index, "").startswith(_UNKNOWN)
    }
