"""The engine that a suite is run on, and the engine that records for one scenario."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pdp.decision import Decision
from pdp.engine.bundle.file import Bundle, read_bundle
from pdp.engine.data import merged_data
from pdp.engine.protocol import DECISION, PLAN, Engine, EngineName
from pdp.project.resources import open_engine
from pdp.workbench.engines import policy_bundle
from pdp.workbench.scenarios.files.suite import Suite
from pdp.workbench.scenarios.results import EngineAnswer


@contextmanager
def open_suite_engine(suite: Suite, name: EngineName) -> Iterator[Engine]:
    """Open an engine with the suite's policies, data, manifest and time; see `open_engine`."""
    manifests = {suite.manifest.digest: suite.manifest.document}
    seconds = suite.engine_timeout
    with ExitStack() as owned:
        yield open_engine(name, bundle_of(suite), owned, manifests=manifests, data=suite.data, timeout=seconds)


def bundle_of(suite: Suite) -> Bundle:
    """Return what decides: the suite's bundle, or its policies with the baseline; see `policy_bundle`."""
    return policy_bundle(suite.policies) if suite.bundle is None else read_bundle(suite.bundle)


def whole_data(suite: Suite) -> dict[str, Any]:
    """Return all the data that a suite's policies see: the bundle's, the manifest and the suite's own."""
    manifests = {suite.manifest.digest: suite.manifest.document}
    return merged_data(bundle_of(suite).data, manifests=manifests, data=suite.data)


class RecordingEngine(Engine):
    """An engine that records what it was asked and what it answered, for the scenario that is being run."""

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self._engine = engine
        self._answers: dict[str, list[EngineAnswer]] = defaultdict(list)

    def take(self) -> tuple[tuple[EngineAnswer, ...], tuple[EngineAnswer, ...]]:
        """Return the requests and the plans that were decided since they were last taken."""
        taken, self._answers = self._answers, defaultdict(list)
        return tuple(taken[DECISION]), tuple(taken[PLAN])

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a request; see `Engine`. It is not recorded."""
        return self._engine.evaluate(body, document)

    def decide_body(self, body: bytes, document: str = DECISION) -> Decision:
        """Decide a request or a plan; see `Engine`."""
        decision = self._engine.decide_body(body, document)
        self._answers[document].append(EngineAnswer(body, decision))
        return decision
