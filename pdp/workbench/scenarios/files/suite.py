"""A scenario file with all that it names: loaded once, every fault of it at once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ValidationError

from pdp.documents import nearest, shown_name
from pdp.engine.bundle.file import read_bundle
from pdp.engine.data import read_data
from pdp.errors import FileFaultsError, UsageError
from pdp.json import digest
from pdp.manifest.load import load_effective
from pdp.project.file import manifest_of_project, read_project
from pdp.proposal import RejectionCode
from pdp.workbench.engines import ENGINE_TIMEOUT
from pdp.workbench.opa.modules import baseline_policies_path, collect, modules_of_bundle
from pdp.workbench.scenarios.files.read import Located, ScenarioSource
from pdp.workbench.scenarios.files.scenario import proposed_tool
from pdp.workbench.scenarios.files.sessions import laid_over, sessions_of
from pdp.workbench.scenarios.files.tools_file import ToolsFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pdp.errors import Fault, Place
    from pdp.manifest.effective import EffectiveManifest
    from pdp.session import Session
    from pdp.workbench.opa.modules import Module
    from pdp.workbench.scenarios.files.scenario import Scenario

_ENDINGS: Final = (".scenarios.yaml", ".scenarios.yml", ".scenarios.json")
_DECIDING: Final = frozenset(("bundle", "policies"))
"""One setting: who states one of them takes the place of both."""

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Suite:
    """The scenarios of one file and what they are held against. Make it with `load_suite`.

    Attributes:
        file: as it was named.
        manifest: the effective manifest.
        manifest_text: the digest of the manifest file, by which suites know that they speak of the same tools;
            empty without scenarios.
        policies: folders with the user's concerns; empty when a bundle decides.
        bundle: the bundle file that decides, or None.
        data: with the roots `directory` and `settings`, read and merged.
        tools: the Python file with the tools, or None.
        scenarios: in the order of the file.
        sessions: for each scenario and step, who does it and when; see `sessions_of`.
        places: for each scenario, where it stands, and then each of its steps.
        files: what manifest, governance and data were read from, by these names.
        engine_timeout: seconds that an engine has for one answer; one that needs more has no verdict.
    """

    file: Path
    manifest: EffectiveManifest
    manifest_text: str
    policies: tuple[Path, ...]
    bundle: Path | None
    data: Mapping[str, Any]
    tools: Path | None = None
    scenarios: tuple[Scenario, ...] = ()
    sessions: tuple[tuple[Session | None, ...], ...] = ()
    places: tuple[tuple[Place, ...], ...] = ()
    files: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    engine_timeout: float = ENGINE_TIMEOUT

    def place(self, index: int, step: int | None = None) -> Place:
        """Return where a scenario, or a step of it, stands in the file; both count from 0."""
        return self.places[index][0 if step is None else step + 1]


class _Settings:
    """What the files of a chain state, the nearest first: the nearest statement of each setting holds."""

    def __init__(self, chain: Sequence[ScenarioSource]) -> None:
        self.session: dict[str, Any] = {}
        self._stated: dict[str, ScenarioSource] = {}
        for source in reversed(chain):
            self.session = laid_over(self.session, source.settings.session)
            stated = source.settings.model_fields_set
            if stated & _DECIDING:
                self._stated = {name: below for name, below in self._stated.items() if name not in _DECIDING}
            self._stated |= dict.fromkeys(stated, source)

    def paths(self, name: str) -> list[Path]:
        """Return the files or folders that a setting names; nothing where it is not stated or one is not there."""
        source = self._stated.get(name)
        value = getattr(source.settings, name) if source else None
        if source is None or not value:
            return []
        names = value if isinstance(value, tuple) else (value,)
        paths = [source.path.parent / stated for stated in names]
        missing = [(at, path) for at, path in enumerate(paths) if not path.exists()]
        for at, path in missing:
            hint = "paths are relative to the file that states them"
            source.find((name, at), f"{path}: no such file or folder", hint)
        return [] if missing else paths

    def read(self, name: str, read: Callable[[list[Path]], _Read]) -> _Read | None:
        """Return what `read` makes of these paths, or None; what it finds wrong becomes a fault of the setting."""
        paths = self.paths(name)
        return self._stated[name].result_of((name,), lambda: read(paths)) if paths else None


def load_suite(path: Path, engine_timeout: float = ENGINE_TIMEOUT) -> Suite:
    """Load a scenario file, the files that it extends, its manifest and its data.

    Raises:
        UsageError: the file cannot be read.
        FileFaultsError: it or a file that it names is faulty; every fault of all of them.
    """
    chain = _chain(path)
    own = chain[0]
    located = own.scenarios()
    settings = _Settings(chain)
    governance = next(iter(settings.paths("governance")), None)
    manifest = settings.read("manifest", lambda files: load_effective(files[0], governance))
    data = settings.read("data", read_data)
    policies = tuple(settings.paths("policies"))
    bundle = next(iter(settings.paths("bundle")), None)
    tools = settings.read("tools", lambda files: ToolsFile(files[0]).path)
    if manifest is not None:
        for scenario in located:
            _check_tools(own, scenario, manifest)
    elif not _faults(chain):
        own.find((), "names no manifest", "state `manifest: FILE`, beside `scenarios:` or where it extends")
    sessions = [] if _faults(chain) else [_sessions(own, scenario, settings.session) for scenario in located]
    if manifest is None or _faults(chain):
        raise FileFaultsError(_faults(chain))
    return Suite(
        file=path,
        manifest=manifest,
        policies=policies,
        bundle=bundle,
        data=data or {},
        tools=tools,
        scenarios=tuple(read.scenario for read in located),
        sessions=tuple(sessions),
        places=tuple(tuple(map(own.document.place, (read.path, *read.steps))) for read in located),
        manifest_text=digest(settings.paths("manifest")[0].read_bytes()),
        files={name: settings.paths(name) for name in ("manifest", "governance", "data")},
        engine_timeout=engine_timeout,
    )


def load_suites(files: Iterable[Path], engine_timeout: float = ENGINE_TIMEOUT) -> list[Suite]:
    """Load scenario files, such as `find_suites` gives, so that the faults of all of them show at once.

    Raises:
        UsageError: a file cannot be read.
        FileFaultsError: faulty ones; each fault once, however many files extend what it stands in.
    """
    suites: list[Suite] = []
    faults: list[Fault] = []
    for file in files:
        try:
            suites.append(load_suite(file, engine_timeout))
        except FileFaultsError as error:
            faults += error.faults
    if faults:
        raise FileFaultsError(list(dict.fromkeys(faults)))
    return suites


def find_suites(paths: Sequence[Path]) -> list[Path]:
    """Return the scenario files that `paths` name: files as they are, and of folders those somewhere in them.

    In a folder, a scenario file is called `scenarios.yaml` or `NAME.scenarios.yaml` (or `.yml`, `.json`). What is only
    there to be extended has another name. Hidden folders are passed over.

    Raises:
        UsageError: a path is not there, or a folder has none.
    """
    named: dict[Path, Path] = {}
    for path in paths:
        if path.is_dir():
            files = sorted(_in_folder(path))
            if not files:
                raise UsageError(
                    f"{path}: no scenario file in it", hint="they are called scenarios.yaml or NAME.scenarios.yaml"
                )
        elif path.exists():
            files = [path]
        else:
            raise UsageError(f"{path}: no such file or folder", hint="check the path")
        for file in files:
            named.setdefault(file.resolve(), file)
    return list(named.values())


def is_scenario_file(name: str) -> bool:
    """Return whether a file of this name is a scenario file, see `find_suites`."""
    return f".{name}".endswith(_ENDINGS)


def policy_modules(suite: Suite) -> dict[str, Module]:
    """Return the Rego that decides, by its path in the bundle: the baseline's with the suite's own, or the bundle's.

    A module of a bundle has `BUNDLE!PATH` for its file.

    Raises:
        UsageError: policies that cannot be read.
        BundleError: the bundle cannot be used.
    """
    if suite.bundle is not None:
        return modules_of_bundle(str(suite.bundle), dict(sorted(read_bundle(suite.bundle).modules.items())))
    baseline = baseline_policies_path()
    return collect(baseline, [baseline, *suite.policies])


def _in_folder(folder: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(at, name) for name in names if is_scenario_file(name))


def _chain(path: Path) -> list[ScenarioSource]:
    """The file, the one that it extends, and so on."""
    chain = [ScenarioSource(path)]
    while (extends := chain[-1].settings.extends) is not None:
        last = chain[-1]
        below = last.path.parent / extends
        if below.resolve() in [source.path.resolve() for source in chain]:
            circle = " -> ".join(str(source.path) for source in chain)
            last.find(("extends",), f"`extends` goes in a circle: {circle} -> {below}", "take one of them out")
            break
        source = last.result_of(("extends",), lambda: ScenarioSource(below))  # noqa: B023 - called at once
        if source is None:
            break
        chain.append(source)
    return chain


def _faults(chain: Sequence[ScenarioSource]) -> list[Fault]:
    return [fault for source in chain for fault in source.faults]


def _sessions(source: ScenarioSource, located: Located, base: Mapping[str, Any]) -> tuple[Session | None, ...]:
    try:
        return sessions_of(located.scenario, base)
    except ValidationError:
        source.find(located.path, "no session says who calls", "state `session: {claims: {sub: ...}}`")
        return ()


def _check_tools(source: ScenarioSource, located: Located, manifest: EffectiveManifest) -> None:
    """Find proposals for a tool that the manifest does not have, unless that is expected."""
    for step, path in zip(located.scenario.steps, located.steps, strict=True):
        proposals = step.plan or (step.propose,)
        for at, (proposal, expect) in enumerate(zip(proposals, step.expectations, strict=True)):
            name = proposed_tool(proposal)
            meant = (
                expect.rejection is RejectionCode.INVALID_TOOL_NAME or (expect.trace or {}).get("in_manifest") is False
            )
            if name is not None and name not in manifest.tools and not meant:
                source.find(
                    (*path, *(("plan", at) if step.plan else ("propose",))),
                    f"a scenario for {shown_name(name)}, which manifest {manifest.version} does not have",
                    nearest(name, manifest.tools)
                    or "if that is the point of it, expect `rejection: INVALID_TOOL_NAME`",
                )


def project_suite(file: Path, engine_timeout: float = ENGINE_TIMEOUT) -> Suite:
    """Return a suite that has no scenarios, for the files that a project file states.

    Raises:
        UsageError: a file cannot be read, or the project states no manifest.
        FileFaultsError: a file is faulty; every fault of it.
    """
    project = read_project(file).unbuilt()
    return Suite(
        file=file,
        manifest=manifest_of_project(file, project),
        manifest_text="",
        policies=project.policies,
        bundle=project.bundle,
        data=read_data(project.data),
        engine_timeout=engine_timeout,
    )
