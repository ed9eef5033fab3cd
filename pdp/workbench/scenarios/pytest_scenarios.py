"""The pytest plugin: scenario files as tests, and fixtures for other tests; see docs/how-to/test-in-ci.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pdp.approvals.approvals import Approvals
from pdp.engine.protocol import Engine, EngineName, check_seconds
from pdp.errors import PdpError, UsageError
from pdp.flow.evaluation import Evaluation
from pdp.opa.local import OpaServer, local_opa
from pdp.opa.program import needed_opa
from pdp.pep import Pep
from pdp.workbench.engines import ENGINE_TIMEOUT, engines_named
from pdp.workbench.scenarios.files.suite import Suite, is_scenario_file, load_suite, project_suite
from pdp.workbench.scenarios.reports.text import failure_text, one_line
from pdp.workbench.scenarios.running.engines import bundle_of, open_suite_engine
from pdp.workbench.scenarios.running.runner import Runner, agreed


def pytest_configure(config: pytest.Config) -> None:
    """Check the configured engine and timeout before any test runs."""
    _engines(config)
    _engine_timeout(config)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect scenario files: `scenarios.yaml`, `NAME.scenarios.yaml`, and the same names with `.yml` and `.json`."""
    if not is_scenario_file(file_path.name):
        return None
    if parent.config.getoption("no_pdp_scenarios") or parent.config.getini("pdp_scenarios") is False:
        return None
    return ScenarioModule.from_parent(parent, path=file_path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """If both engines are selected, run each test that uses the fixture `pdp_engine` once on each engine."""
    engines = _engines(metafunc.config)
    if "pdp_engine" in metafunc.fixturenames and len(engines) > 1:
        metafunc.parametrize("pdp_engine", engines, indirect=True, scope="session")


class ScenarioModule(pytest.File):
    """A scenario file that pytest has collected. Its engines stay open while its scenarios run."""

    suite: Suite
    runners: Sequence[Runner]

    def collect(self) -> Iterable[ScenarioItem]:
        """Load the scenario file, and yield its scenarios in the order of the file."""
        with _no_traceback():
            self.suite = load_suite(_shown_path(self.path, self.config), _engine_timeout(self.config))
        for index, scenario in enumerate(self.suite.scenarios):
            title = one_line(scenario.name)
            # `::` and brackets are replaced, because pytest would read them as parts of a test id.
            name = re.sub(":{2,}", ":", title.replace("[", "(").replace("]", ")"))
            yield ScenarioItem.from_parent(self, name=name, title=title, index=index)

    def setup(self) -> None:
        """Open the selected engines. If an engine cannot be opened, pytest closes the engines that are open."""
        engines = ExitStack()
        self.addfinalizer(engines.close)
        with _no_traceback():
            opened = [engines.enter_context(open_suite_engine(self.suite, name)) for name in _engines(self.config)]
            self.runners = [Runner(self.suite, engine) for engine in opened]


class ScenarioItem(pytest.Item):
    """A scenario as a pytest test that runs on each selected engine. `title` is the name of the scenario."""

    parent: ScenarioModule

    def __init__(self, *, index: int, title: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._index = index
        self._title = title
        self.extra_keyword_matches.add(title)

    def runtest(self) -> None:
        """Run the scenario. If it fails, the test fails with the report that `pdp test` prints."""
        with _no_traceback():
            runners = self.parent.runners
            results = [runner.run(self._index) for runner in runners]
            self.user_properties.append(("manifest_digest", self.parent.suite.manifest.digest))
            results[1:] = [agreed(results[0], other) for other in results[1:]]
            failed = [at for at, result in enumerate(results) if not result.passed]
            if failed:
                report = "\n\n".join(failure_text(runners[at].explained(results[at])) for at in failed)
                pytest.fail(report, pytrace=False)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the location of the scenario. The line number starts at 0, as pytest requires."""
        return self.path, self.parent.suite.place(self._index).line - 1, self._title


@pytest.fixture(scope="session")
def pdp_engine(request: pytest.FixtureRequest, _pdp_suite: Suite) -> Iterator[Engine]:
    """The engine that `pep` and `decide` use, with the policies, data and manifest of the project."""
    name, *_ = _engines(request.config, getattr(request, "param", None))
    with _no_traceback(), open_suite_engine(_pdp_suite, name) as engine:
        yield engine


@pytest.fixture
def pep(pdp_engine: Engine, _pdp_suite: Suite) -> Pep:
    """An enforcement point for one test. It has no tools, and keeps its approvals and audit events in memory."""
    return Pep(_pdp_suite.manifest, pdp_engine, approvals=Approvals())


@pytest.fixture
def decide(pep: Pep) -> Callable[[Any, Any], Evaluation]:
    """The function `decide(proposal, session)`, which returns the evaluation of a call without running the tool."""
    return pep.decide


@pytest.fixture(scope="session")
def opa_server(_pdp_suite: Suite) -> Iterator[OpaServer]:
    """A running OPA server with the policies, data and manifest of the project, and with its `url` and `token`.

    If OPA is not installed, the test fails.
    """
    manifests = {_pdp_suite.manifest.digest: _pdp_suite.manifest.document}
    with (
        _no_traceback(),
        local_opa(
            needed_opa("opa_server"), bundle=bundle_of(_pdp_suite), manifests=manifests, data=_pdp_suite.data, tcp=True
        ) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def _pdp_suite(pytestconfig: pytest.Config) -> Suite:
    stated = pytestconfig.getini("pdp_project")
    if not stated:
        pytest.fail(
            "the fixtures pep, decide and opa_server need a project: "
            "set `pdp_project = pdp.yaml` in pytest's configuration",
            pytrace=False,
        )
    folder = pytestconfig.inipath.parent if pytestconfig.inipath else pytestconfig.rootpath
    with _no_traceback():
        return project_suite(folder / stated, _engine_timeout(pytestconfig))


def _engines(config: pytest.Config, name: str | None = None) -> tuple[EngineName, ...]:
    try:
        return engines_named(name or config.getoption("pdp_engine") or config.getini("pdp_engine") or "embedded")
    except UsageError as error:
        raise pytest.UsageError(f"pdp_engine: {error.message}; {error.hint}") from None


def _engine_timeout(config: pytest.Config) -> float:
    stated = config.getoption("pdp_engine_timeout") or config.getini("pdp_engine_timeout") or ENGINE_TIMEOUT
    try:
        seconds = float(stated)
        check_seconds("pdp_engine_timeout", seconds)
    except ValueError:
        raise pytest.UsageError(f"pdp_engine_timeout: {stated!r:.40} is not a number of seconds") from None
    except UsageError as error:
        raise pytest.UsageError(f"{error.message}; {error.hint}") from None
    return seconds


@contextmanager
def _no_traceback() -> Iterator[None]:
    """Turn an expected error into a test failure that has the error's message and hint, and no traceback."""
    try:
        yield
    except PdpError as error:
        hint = "" if error.hint is None else f"\n    hint: {error.hint}"
        raise pytest.fail.Exception(f"{error.message}{hint}", pytrace=False) from None


def _shown_path(path: Path, config: pytest.Config) -> Path:
    start = config.invocation_params.dir
    return path.relative_to(start) if path.is_relative_to(start) else path
