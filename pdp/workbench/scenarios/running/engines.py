"""Open the engine of a suite, and record the answers of an engine while a scenario runs."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pdp.decision import Decision
from pdp.engine.bundle.file import Bundle, read_bundle
from pdp.engine.data import merged_data
from pdp.engine.protocol import DECISION, PLAN, Engine, EngineName
from pdp.opa.build import policy_bundle
from pdp.project.resources import open_engine
from pdp.workbench.scenarios.files.suite import Suite
from pdp.workbench.scenarios.results import EngineAnswer


@contextmanager
def open_suite_engine(suite: Suite, name: EngineName) -> Iterator[Engine]:
    """Open an engine with the policies, data, manifest and timeout of a suite; see `open_engine`."""
    manifests = {suite.manifest.digest: suite.manifest.document}
    seconds = suite.engine_timeout
    with ExitStack() as owned:
        yield open_engine(name, bundle_of(suite), owned, manifests=manifests, data=suite.data, timeout=seconds)


def bundle_of(suite: Suite) -> Bundle:
    """Return the bundle of a suite, or a bundle built from its policies and the baseline; see `policy_bundle`."""
    return policy_bundle(suite.policies) if suite.bundle is None else read_bundle(suite.bundle)


def whole_data(suite: Suite) -> dict[str, Any]:
    """Return all data that a suite's policies read: the bundle's data, the manifest and the suite's data."""
    manifests = {suite.manifest.digest: suite.manifest.document}
    return merged_data(bundle_of(suite).data, manifests=manifests, data=suite.data)


class RecordingEngine(Engine):
    """An engine that records the requests and decisions of the running scenario."""

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self._engine = engine
        self._answers: dict[str, list[EngineAnswer]] = defaultdict(list)

    def take(self) -> tuple[tuple[EngineAnswer, ...], tuple[EngineAnswer, ...]]:
        """Return the decisions on requests and the decisions on plans since the last call of this method."""
        taken, self._answers = self._answers, defaultdict(list)
        return tuple(taken[DECISION]), tuple(taken[PLAN])

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a request without recording the answer; see `Engine`."""
        return self._engine.evaluate(body, document)

    def decide_body(self, body: bytes, document: str = DECISION) -> Decision:
        """Decide a request or a plan, and record the decision; see `Engine`."""
        decision = self._engine.decide_body(body, document)
        self._answers[document].append(EngineAnswer(body, decision))
        return decision
