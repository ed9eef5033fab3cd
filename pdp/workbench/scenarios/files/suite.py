"""A scenario file with all that it names: loaded once, every fault of it at once.

Sessions are laid over each other as RFC 7396 says (JSON Merge Patch): mappings key by key, anything else replaces what
was there, and null takes it away.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from pdp.documents import Document, nearest, shown_name
from pdp.engine.bundle.file import read_bundle
from pdp.engine.data import read_data
from pdp.errors import Fault, FileFaultsError, Place, UsageError
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.load import load_effective
from pdp.manifest.model import Tool
from pdp.project.file import manifest_of_project, read_project
from pdp.proposal import RejectionCode
from pdp.session import Session
from pdp.workbench.engines import ENGINE_TIMEOUT
from pdp.workbench.neighbours.values import GONE, JsonPath, as_list, at
from pdp.workbench.opa.modules import Module, baseline_policies_path, collect, modules_of_bundle
from pdp.workbench.scenarios.files.read import Located, ScenarioSource
from pdp.workbench.scenarios.files.scenario import Scenario, Step, proposed_tool
from pdp.workbench.scenarios.files.tools_file import ToolsFile

_ENDINGS: Final = (".scenarios.yaml", ".scenarios.yml", ".scenarios.json")
_DECIDING: Final = frozenset(("bundle", "policies"))
"""One setting: who states one of them takes the place of both."""

# The time of a scenario that states none: always the same, so that a run can be repeated to the byte.
_TIME: Final = "2026-01-01T00:00:00Z"
_SHOWN_NAME: Final = 200

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Suite:
    """The scenarios of one file and what they are held against. Make it with `load_suite`.

    Attributes:
        file: as it was named.
        policies: folders with the user's concerns; empty when a bundle decides.
        data: with the roots `directory` and `settings`, read and merged.
        tools: the Python file with the tools.
        sessions: for each scenario and step, who does it and when; None for a raw request.
        places: for each scenario, where it stands, and then each of its steps.
        files: what manifest, governance and data were read from, by these names.
        engine_timeout: seconds that an engine has for one answer; one that needs more has no verdict.
    """

    file: Path
    manifest: EffectiveManifest
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
        missing = [(number, path) for number, path in enumerate(paths) if not path.exists()]
        for number, path in missing:
            hint = "paths are relative to the file that states them"
            source.find((name, number), f"{path}: no such file or folder", hint)
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
    for scenario in located if tools is None and not _faults(chain) else ():
        if scenario.scenario.world is not None:
            hint = "state `tools: FILE`, a Python file with `def tools(world=None):`"
            own.find((*scenario.path, "world"), "a world, and no tools that would run in it", hint)
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


def place_of_field(tool: Tool, path: JsonPath, manifest: Document, governance: Sequence[Document]) -> Place:
    """Return the place of a part of an entry: in the manifest or, when it is not there, in the other file."""
    names = [at(entry, ("name",)) for entry in as_list(at(manifest.value, ("tools",)))]
    entry: JsonPath = ("tools", names.index(tool.name)) if tool.name in names else ()
    rules: JsonPath = ("actions", tool.pdp_action)
    if at(manifest.value, (*entry, path[0])) is GONE:
        for document in governance:
            if at(document.value, (*rules, path[0])) is not GONE:
                return document.place((*rules, *path))
    return manifest.place((*entry, *path))


def place_of_datum(documents: Sequence[Document], path: JsonPath) -> Place:
    """Return the place of a datum: in the last file that has it."""
    for document in reversed(documents):
        if at(document.value, path) is not GONE:
            return document.place(path)
    return documents[-1].place(path[:1])


def policy_modules(suite: Suite) -> dict[str, Module]:
    """Return the Rego that decides, by its path in the bundle: the baseline's with the suite's own, or the bundle's.

    A module of a bundle has `BUNDLE!PATH` for its file.
    """
    if suite.bundle is not None:
        return modules_of_bundle(str(suite.bundle), dict(sorted(read_bundle(suite.bundle).modules.items())))
    baseline = baseline_policies_path()
    return collect(baseline, [baseline, *suite.policies])


def _in_folder(folder: Path) -> Iterator[Path]:
    for inner, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(inner, name) for name in names if is_scenario_file(name))


def _chain(path: Path) -> list[ScenarioSource]:
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


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` with `above` laid over it; neither is changed."""
    merged = dict(below)
    for key, value in above.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            under = merged.get(key)
            merged[key] = laid_over(under if isinstance(under, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def _sessions(source: ScenarioSource, located: Located, base: Mapping[str, Any]) -> tuple[Session | None, ...]:
    """Return who does each step of a scenario, and when: time stands still until a step says otherwise."""
    scenario = located.scenario
    # Request and run are named after the scenario, so that the same one always makes the same request.
    name = scenario.name[:_SHOWN_NAME]
    below = laid_over({"run_id": name, **base}, scenario.session)
    now = below.get("time") or _TIME
    sessions = []
    try:
        for number, step in enumerate(scenario.steps, start=1):
            now = step.at or step.session.get("time") or now
            named = {"request_id": f"{name}/{number}"}
            sessions.append(_session(step, named | laid_over(below, step.session) | {"time": now}))
    except ValidationError:
        source.find(located.path, "no session says who calls", "state `session: {claims: {sub: ...}}`")
    return tuple(sessions)


def _session(step: Step, layers: dict[str, Any]) -> Session | None:
    """Return with which session a tool is called, or as whom somebody approves or denies; of a raw request, None."""
    if step.action == "request":
        return None
    approver = step.approve or step.deny
    if approver is not None:
        return Session(claims=approver.claims, time=layers["time"])
    if step.plan is not None:
        layers.setdefault("plan", list(step.plan))
    return Session.model_validate(layers)


def _check_tools(source: ScenarioSource, located: Located, manifest: EffectiveManifest) -> None:
    """Find proposals for a tool that the manifest does not have, unless that is expected."""
    for step, path in zip(located.scenario.steps, located.steps, strict=True):
        proposals = step.plan or (step.propose,)
        for number, (proposal, expect) in enumerate(zip(proposals, step.expectations, strict=True)):
            name = proposed_tool(proposal)
            meant = (
                expect.rejection is RejectionCode.INVALID_TOOL_NAME or (expect.trace or {}).get("in_manifest") is False
            )
            if name is not None and name not in manifest.tools and not meant:
                source.find(
                    (*path, *(("plan", number) if step.plan else ("propose",))),
                    f"a scenario for {shown_name(name)}, which manifest {manifest.version} does not have",
                    nearest(name, manifest.tools)
                    or "if that is the point of it, expect `rejection: INVALID_TOOL_NAME`",
                )


def project_suite(file: Path, engine_timeout: float = ENGINE_TIMEOUT) -> Suite:
    """Return a suite that has no scenarios, for the files that a project file states."""
    project = read_project(file).unbuilt()
    return Suite(
        file=file,
        manifest=manifest_of_project(file, project),
        policies=project.policies,
        bundle=project.bundle,
        data=read_data(project.data),
        engine_timeout=engine_timeout,
    )
