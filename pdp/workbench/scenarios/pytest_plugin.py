"""pytest: scenario files as tests, and fixtures for tests of one's own. Installed with the package; docs/testing.md.

pytest imports this module whenever it starts, so nothing heavy is imported before it is used.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pdp.errors import PdpError
from pdp.workbench.scenarios.reports.text import failure_text, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pdp.engine.protocol import Engine
    from pdp.flow.call import Evaluation
    from pdp.pep import Pep
    from pdp.workbench.explain.diagnosis import Diagnoses
    from pdp.workbench.scenarios.files.suite import Suite
    from pdp.workbench.scenarios.opa_server import OpaServer
    from pdp.workbench.scenarios.running.runner import Runner

_ENGINES: Final = {"embedded": ("embedded",), "sidecar": ("sidecar",), "both": ("embedded", "sidecar")}
_NAMES: Final = ("scenarios.yaml", "scenarios.yml", "scenarios.json")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and the settings for pytest's configuration file."""
    group = parser.getgroup("pdp", "scenarios of tool-pdp")
    group.addoption("--pdp-engine", choices=tuple(_ENGINES), help="Who decides; both also have to agree.")
    group.addoption("--no-pdp-scenarios", action="store_true", help="Do not collect scenario files.")
    parser.addini("pdp_engine", f"who decides: {', '.join(_ENGINES)}", default="embedded")
    parser.addini("pdp_scenarios", "whether scenario files are collected", type="bool", default=True)
    parser.addini("pdp_manifest", "the manifest of the fixtures pep, decide and opa_server", default="")
    parser.addini("pdp_governance", "the governance file that belongs to it", default="")
    parser.addini("pdp_policies", "folders with concerns of your own", type="paths", default=[])
    parser.addini("pdp_data", "files with the data that they ask for", type="paths", default=[])
    parser.addini("pdp_bundle", "instead of pdp_policies, a bundle", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a setting that names no engine, before anything is run."""
    _engines(config)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect `scenarios.yaml`, `NAME.scenarios.yaml`, and the same as `.yml` and `.json`."""
    name = file_path.name
    if not (name in _NAMES or name.endswith(tuple(f".{each}" for each in _NAMES))):
        return None
    if parent.config.getoption("no_pdp_scenarios") or not parent.config.getini("pdp_scenarios"):
        return None
    return ScenarioFile.from_parent(parent, path=file_path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With both engines, run each test that asks for one on each."""
    engines = _engines(metafunc.config)
    if "pdp_engine" in metafunc.fixturenames and len(engines) > 1:
        metafunc.parametrize("pdp_engine", engines, indirect=True, scope="session")


class ScenarioFile(pytest.File):
    """A scenario file. Its engines run from before the first of its scenarios until after the last one."""

    suite: Suite
    runners: Sequence[Runner] = ()
    diagnoses: Sequence[Diagnoses] = ()
    _open: ExitStack | None = None

    def collect(self) -> Iterable[ScenarioItem]:
        """Load the file and yield its scenarios, in their order."""
        from pdp.workbench.scenarios.files.suite import load_suite  # noqa: PLC0415

        self.suite = load_suite(_shown_path(self.path, self.config))
        titles = [one_line(scenario.name) for scenario in self.suite.scenarios]
        for index, (name, title) in enumerate(zip(_item_names(titles), titles, strict=True)):
            yield ScenarioItem.from_parent(self, name=name, title=title, index=index)

    def setup(self) -> None:
        """Open the engines."""
        from pdp.workbench.explain.diagnosis import Diagnoses  # noqa: PLC0415
        from pdp.workbench.scenarios.running.engines import open_engine  # noqa: PLC0415
        from pdp.workbench.scenarios.running.runner import Runner  # noqa: PLC0415

        with ExitStack() as stack:
            try:
                engines = [stack.enter_context(open_engine(self.suite, name)) for name in _engines(self.config)]
                self.runners = [Runner(self.suite, engine) for engine in engines]
            except PdpError as error:
                raise _refusal(error) from None
            self.diagnoses = [Diagnoses(self.suite, runner) for runner in self.runners]
            self._open = stack.pop_all()

    def teardown(self) -> None:
        """Close the engines."""
        self.runners = self.diagnoses = ()
        # pytest also ends what it could not begin.
        if self._open is not None:
            self._open.close()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:  # noqa: ARG002
        """Show what is wrong with the file, without a traceback."""
        return _told(excinfo.value) or super().repr_failure(excinfo)


class ScenarioItem(pytest.Item):
    """One scenario, on each engine that was asked for. `title` is the scenario's own name."""

    parent: ScenarioFile

    def __init__(self, *, index: int, title: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._index = index
        self._title = title
        self.extra_keyword_matches.add(title)

    def runtest(self) -> None:
        """Run it.

        Raises:
            ScenarioFailedError: it came to something else than is expected.
        """
        from pdp.workbench.scenarios.running.runner import agreed  # noqa: PLC0415

        results = [runner.run(self._index) for runner in self.parent.runners]
        self.user_properties.append(("manifest_digest", results[0].manifest_digest))
        results[1:] = [agreed(results[0], other) for other in results[1:]]
        failed = [at for at, result in enumerate(results) if not result.passed]
        if failed:
            diagnoses = self.parent.diagnoses
            raise ScenarioFailedError(
                "\n\n".join(failure_text(results[at], diagnoses[at].of(results[at])) for at in failed)
            )

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return where the scenario stands; pytest counts lines from 0."""
        return self.path, self.parent.suite.place(self._index).line - 1, self._title

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the report that `pdp test` prints, without a traceback."""
        return _told(excinfo.value) or super().repr_failure(excinfo, style)


class ScenarioFailedError(Exception):
    """A scenario failed; the text is the report."""


@pytest.fixture(scope="session")
def pdp_engine(request: pytest.FixtureRequest, _pdp_suite: Suite) -> Iterator[Engine]:
    """The engine that decides in `pep` and `decide`, with the policies, data and manifest of the settings `pdp_…`."""
    from pdp.workbench.scenarios.running.engines import open_engine  # noqa: PLC0415

    name = getattr(request, "param", None) or _engines(request.config)[0]
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(open_engine(_pdp_suite, name))
        except PdpError as error:
            raise _refusal(error) from None
        yield engine


@pytest.fixture(scope="session")
def _pdp_pep(pdp_engine: Engine, _pdp_suite: Suite) -> Pep:
    from pdp.pep import Pep  # noqa: PLC0415

    return Pep(_pdp_suite.manifest, pdp_engine)


@pytest.fixture
def pep(_pdp_pep: Pep) -> Pep:
    """An enforcement point for one test: no tools, and approvals and an audit stream of its own, in memory."""
    from pdp.approvals.approvals import Approvals  # noqa: PLC0415
    from pdp.audit.file import MemoryAudit  # noqa: PLC0415

    return _pdp_pep.with_changes(tools={}, audit=MemoryAudit(), approvals=Approvals())


@pytest.fixture
def decide(pep: Pep) -> Callable[[Any, Any], Evaluation]:
    """`decide(proposal, session)`: the evaluation, without running anything."""
    return pep.decide


@pytest.fixture(scope="session")
def opa_server(_pdp_suite: Suite) -> Iterator[OpaServer]:
    """A running OPA with the policies, data and manifest of the settings `pdp_…`: its `url` and `token`.

    A container where Docker runs and the extra `docker` is installed, a local process else; without either, the test is
    skipped.
    """
    from pdp.workbench.scenarios.opa_server import NoOpaServerError  # noqa: PLC0415
    from pdp.workbench.scenarios.opa_server import opa_server as serve  # noqa: PLC0415
    from pdp.workbench.scenarios.running.engines import bundle_of  # noqa: PLC0415

    manifest = _pdp_suite.manifest
    with ExitStack() as stack:
        try:
            bundle = bundle_of(_pdp_suite)
            server = stack.enter_context(serve(bundle, {manifest.digest: manifest.document}, _pdp_suite.data))
        except NoOpaServerError as error:
            pytest.skip(str(error))
        except PdpError as error:
            raise _refusal(error) from None
        yield server


@pytest.fixture(scope="session")
def _pdp_suite(pytestconfig: pytest.Config) -> Suite:
    """What the settings name, as a suite without scenarios."""
    from pdp.workbench.scenarios.files.suite import policy_suite  # noqa: PLC0415

    manifest = _setting(pytestconfig, "pdp_manifest")
    if manifest is None:
        pytest.fail(
            "the fixtures pep, decide and opa_server need to know the manifest: "
            "set `pdp_manifest = FILE` in pytest's configuration",
            pytrace=False,
        )
    try:
        return policy_suite(
            manifest,
            governance=_setting(pytestconfig, "pdp_governance"),
            policies=pytestconfig.getini("pdp_policies"),
            data=pytestconfig.getini("pdp_data"),
            bundle=_setting(pytestconfig, "pdp_bundle"),
        )
    except PdpError as error:
        raise _refusal(error) from None


def _setting(config: pytest.Config, name: str) -> Path | None:
    """Return a path of the configuration, which is relative to the file that states it."""
    value = config.getini(name)
    return (config.inipath.parent if config.inipath else config.rootpath) / value if value else None


def _engines(config: pytest.Config) -> tuple[str, ...]:
    name = config.getoption("pdp_engine") or config.getini("pdp_engine")
    if name not in _ENGINES:
        raise pytest.UsageError(f"pdp_engine: {name!r} is no engine; name one of {', '.join(_ENGINES)}")
    return _ENGINES[name]


def _item_names(titles: Sequence[str]) -> list[str]:
    """Return a name for each scenario that is its own, with no character that pytest reads as part of a test's id."""
    # A title that can stay as it is keeps it, whichever others come to look like it.
    own = set(titles)
    names: list[str] = []
    for title in titles:
        name = wanted = re.sub(":{2,}", ":", title.replace("[", "(").replace("]", ")"))
        number = 1
        while name in names or (name != title and name in own):
            number += 1
            name = f"{wanted} ({number})"
        names.append(name)
    return names


def _told(error: BaseException) -> str | None:
    """Return what a person should read of an error that is not a fault of the program."""
    if isinstance(error, ScenarioFailedError):
        return str(error)
    if isinstance(error, PdpError):
        return error.message if error.hint is None else f"{error.message}\n    hint: {error.hint}"
    return None


def _refusal(error: PdpError) -> BaseException:
    """Return what stands for an error before a test has begun; there pytest asks no item how to show it."""
    return pytest.fail.Exception(_told(error), pytrace=False)


def _shown_path(path: Path, config: pytest.Config) -> Path:
    """Return the path as people name it: from where pytest was started, if it is somewhere below."""
    start = config.invocation_params.dir
    return Path(os.path.relpath(path, start)) if path.is_relative_to(start) else path
