"""The engine that a suite is run on: its policies compiled once, and kept for the next run."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from platformdirs import user_cache_path

from pdp import __version__
from pdp.engine.bundle.file import baseline_bundle_path, read_bundle
from pdp.engine.protocol import Engine
from pdp.errors import AnswerInvalidError, BundleError, EngineError, EngineTimeoutError, UsageError
from pdp.json import canonical, digest
from pdp.workbench.opa.modules import baseline_policies_path, collect
from pdp.workbench.opa.program import OPA_VERSION, find_opa
from pdp.workbench.scenarios.results import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdp.approvals.approvals import Approvals
    from pdp.decision import Decision
    from pdp.engine.bundle.file import Bundle
    from pdp.workbench.opa.modules import Module
    from pdp.workbench.scenarios.files.suite import Suite


ENGINES: Final = ("embedded", "sidecar")

NO_DECISION: Final = frozenset(error.code for error in (EngineError, EngineTimeoutError, AnswerInvalidError))
"""The codes of a DENY that stands for a decision which the policy did not come to."""

WITHOUT_OPA: Final = f" without OPA {OPA_VERSION}; get it with: pdp opa install"
"""Why it cannot be told where rules stopped, to go on from "not known"."""

_KEPT: Final = 32
_READ_BESIDE: Final = ("capabilities.json", "schemas/request.json", "config/data.json")


@contextmanager
def open_engine(suite: Suite, name: str, *, opa_url: str | None = None) -> Iterator[Engine]:
    """Open the engine `name` (one of `ENGINES`) with the suite's policies, data and manifest, and close it at the end.

    Args:
        suite: the scenarios' suite.
        name: `embedded` or `sidecar`.
        opa_url: a running OPA, for `sidecar`; it decides by its own bundle, which has to know the manifest.

    Raises:
        UsageError: policies that cannot be compiled, or OPA is needed and not there.
        BundleError: the bundle cannot be used.
        EngineError: the local OPA does not start.
    """
    if opa_url is not None:
        from pdp.engine.opa.engine import SidecarEngine  # noqa: PLC0415

        with SidecarEngine.from_environment(opa_url) as engine:
            yield engine
        return
    bundle = bundle_of(suite)
    manifests = {suite.manifest.digest: suite.manifest.document}
    if name == "embedded":
        from pdp.engine.wasm.engine import EmbeddedEngine  # noqa: PLC0415

        with EmbeddedEngine(bundle, manifests=manifests, data=suite.data) as engine:
            yield engine
        return
    from pdp.engine.opa.engine import SidecarEngine  # noqa: PLC0415
    from pdp.workbench.opa.local import LocalOpa  # noqa: PLC0415

    opa = _opa("the sidecar engine", "the embedded engine needs none")
    with (
        LocalOpa(opa, bundle=bundle, manifests=manifests, data=suite.data) as local,
        SidecarEngine(local.url, token=local.token) as engine,
    ):
        yield engine


def bundle_of(suite: Suite) -> Bundle:
    """Return what decides: the suite's bundle, or its policies compiled with the baseline, or the released baseline.

    In a checkout whose policies are newer than its released bundle, the policies decide: they are what reports show.

    Raises:
        UsageError, BundleError: as of `open_engine`.
    """
    if suite.bundle is not None:
        return read_bundle(suite.bundle)
    baseline = baseline_policies_path()
    modules = collect(baseline, [baseline, *suite.policies])
    if not suite.policies:
        released = read_bundle(baseline_bundle_path())
        if released.modules == {path: module.text for path, module in modules.items()}:
            return released
    unit_tests = collect(baseline, [baseline, *suite.policies], tests=True) if suite.policies else {}
    return _compiled(baseline, suite.policies, {**modules, **unit_tests})


def _compiled(baseline: Path, policies: Sequence[Path], modules: Mapping[str, Module]) -> Bundle:
    kept = user_cache_path("tool-pdp") / "compiled" / f"{_sources(baseline, modules)}.tar.gz"
    if kept.is_file():
        try:
            return read_bundle(kept)
        except BundleError:
            pass  # half written, or by another version: it is made again
    opa = _opa("compiling policies", "without it, scenarios with `data` and manifests of your own run on the baseline")
    from pdp.workbench.bundles.build import compile_bundle  # noqa: PLC0415

    packed = compile_bundle(policies=[baseline, *policies], release=1, opa=opa)
    _keep(kept, packed)
    return read_bundle(packed)


def _sources(baseline: Path, modules: Mapping[str, Module]) -> str:
    """A name for all that the compiled bundle depends on."""
    beside = [
        (baseline / name).read_text(encoding="utf-8") if (baseline / name).is_file() else None for name in _READ_BESIDE
    ]
    texts = {path: digest(module.text.encode()) for path, module in modules.items()}
    return digest(canonical([__version__, OPA_VERSION, texts, beside])).removeprefix("sha256:")


def _keep(path: Path, packed: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(packed)
        Path(file.name).replace(path)
        old = sorted(path.parent.glob("*.tar.gz"), key=lambda each: each.stat().st_mtime)[:-_KEPT]
        for each in old:
            each.unlink(missing_ok=True)
    except OSError:
        pass  # a cache that cannot be written only takes time


def _opa(what: str, instead: str) -> Path:
    found = find_opa()
    if found is None:
        raise UsageError(
            f"{what} needs Open Policy Agent {OPA_VERSION}, and none is here", hint=f"run: pdp opa install; {instead}"
        )
    return found


class RecordingEngine(Engine):
    """An engine that keeps what it was asked and what it answered, for the scenario that is being run.

    Args:
        engine: who decides.
    """

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self._engine = engine
        self._answers: list[Answer] = []
        self._plans: list[Answer] = []
        self._approvals: Approvals | None = None

    def begin(self, approvals: Approvals) -> None:
        """Forget what was kept; `approvals` are those of the scenario that begins."""
        self._approvals = approvals
        self._answers = []
        self._plans = []

    def decide_plan(self, body: bytes) -> Decision:
        """Decide a plan; see `Engine`."""
        decision = self._engine.decide_plan(body)
        self._plans.append(Answer(body, decision))
        return decision

    def evaluate_plan(self, body: bytes) -> bytes:
        """Evaluate a plan; see `Engine`. It is not kept."""
        return self._engine.evaluate_plan(body)

    def take_plans(self) -> tuple[Answer, ...]:
        """Return the plans that were decided since they were last taken."""
        taken, self._plans = tuple(self._plans), []
        return taken

    def take(self) -> tuple[Answer, ...]:
        """Return the requests that were decided since they were last taken."""
        taken, self._answers = tuple(self._answers), []
        return taken

    def evaluate(self, body: bytes) -> bytes:
        """Evaluate a request; see `Engine`. It is not kept."""
        return self._engine.evaluate(body)

    async def aevaluate(self, body: bytes) -> bytes:
        """Evaluate a request; see `Engine`. It is not kept."""
        return await self._engine.aevaluate(body)

    def evaluate_findings(self, body: bytes) -> bytes:
        """Evaluate everything that fires; see `Engine`. It is not kept."""
        return self._engine.evaluate_findings(body)

    def decide_body(self, body: bytes) -> Decision:
        """Decide a request, with approvals called by their number; see `Engine`."""
        body = self._repeatable(body)
        decision = self._engine.decide_body(body)
        self._answers.append(Answer(body, decision))
        return decision

    # An approval's id is unguessable, and a scenario has to make the same requests each time. No policy reads the id.
    def _repeatable(self, body: bytes) -> bytes:
        opened = self._approvals.list() if self._approvals is not None else ()
        for number, approval in enumerate(opened, start=1):
            body = body.replace(f'"{approval.id}"'.encode(), f'"approval-{number}"'.encode())
        return body
