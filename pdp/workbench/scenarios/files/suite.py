"""Load a scenario file with all files that it names, and report every fault at once.

Sessions are merged by JSON Merge Patch (RFC 7396): mappings are merged key by key, null removes a key, and any other
value replaces the value in the lower layer.
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
from pdp.opa.modules import Module, baseline_policies_path, collect, modules_of_bundle
from pdp.project.file import manifest_of_project, read_project
from pdp.proposal import RejectionCode
from pdp.session import Session
from pdp.workbench.engines import ENGINE_TIMEOUT
from pdp.workbench.neighbours.values import GONE, JsonPath, as_list, at
from pdp.workbench.scenarios.files.read import Located, ScenarioSource
from pdp.workbench.scenarios.files.scenario import Scenario, Step, proposed_tool
from pdp.workbench.scenarios.files.tools_file import ToolsFile

_ENDINGS: Final = (".scenarios.yaml", ".scenarios.yml", ".scenarios.json")
_DECIDING: Final = frozenset(("bundle", "policies"))
"""The two fields of one setting: a file that sets one of them overrides both in the files that it extends."""

# The default time of a scenario is fixed, so that every run gives the same results.
_TIME: Final = "2026-01-01T00:00:00Z"
_SHOWN_NAME: Final = 200

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Suite:
    """The scenarios of a file, with its manifest, policies and data. Create a suite with `load_suite`.

    `policies` are folders with custom concerns; empty if a bundle decides. `data` has the roots `directory` and
    `settings`. `sessions` has a session for each step of each scenario, None for a raw request. `places` has for each
    scenario its location, followed by the locations of its steps. `files` has the paths of the manifest, governance and
    data files. `engine_timeout` is in seconds.
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
        """Return the location of a scenario or of one of its steps. Both indices start at 0."""
        return self.places[index][0 if step is None else step + 1]


class _Settings:
    """The settings of a scenario file and of the files that it extends. A file overrides the files that it extends."""

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
        """Return the paths in a setting; an empty list if it is not set, or if a path does not exist."""
        source = self._stated.get(name)
        value = getattr(source.settings, name) if source else None
        if source is None or not value:
            return []
        names = value if isinstance(value, tuple) else (value,)
        paths = [source.path.parent / stated for stated in names]
        missing = [(number, path) for number, path in enumerate(paths) if not path.exists()]
        for number, path in missing:
            hint = "paths are relative to this file"
            source.find((name, number), f"{path}: no such file or folder", hint)
        return [] if missing else paths

    def read(self, name: str, read: Callable[[list[Path]], _Read]) -> _Read | None:
        """Return the result of `read` for the paths in a setting. If there are none, or `read` fails, return None."""
        paths = self.paths(name)
        return self._stated[name].result_of((name,), lambda: read(paths)) if paths else None


def load_suite(path: Path, engine_timeout: float = ENGINE_TIMEOUT) -> Suite:
    """Load a scenario file, the files that it extends, its manifest and its data. The error names every fault."""
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
            hint = "add `tools: FILE`, a Python file with `def tools(world=None):`"
            own.find((*scenario.path, "world"), "a world needs tools that run in it", hint)
    if manifest is not None:
        for scenario in located:
            _check_tools(own, scenario, manifest)
    elif not _faults(chain):
        own.find((), "names no manifest", "add `manifest: FILE` beside `scenarios:`, or in a file that it extends")
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
    """Load scenario files, such as those from `find_suites`. The error names the faults of all files."""
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
    """Return the files among `paths`, and all scenario files in the folders among `paths`.

    In a folder, a scenario file is named `scenarios.yaml` or `NAME.scenarios.yaml` (or `.yml`, `.json`). Files with
    other names are ignored, such as files that are only extended. Hidden folders are skipped.
    """
    named: dict[Path, Path] = {}
    for path in paths:
        if path.is_dir():
            files = sorted(_in_folder(path))
            if not files:
                raise UsageError(
                    f"{path}: no scenario file in this folder", hint="name it scenarios.yaml or NAME.scenarios.yaml"
                )
        elif path.exists():
            files = [path]
        else:
            raise UsageError(f"{path}: no such file or folder", hint="check the path")
        for file in files:
            named.setdefault(file.resolve(), file)
    return list(named.values())


def is_scenario_file(name: str) -> bool:
    """Return whether `name` is the name of a scenario file, as `find_suites` describes it."""
    return f".{name}".endswith(_ENDINGS)


def place_of_field(tool: Tool, path: JsonPath, manifest: Document, governance: Sequence[Document]) -> Place:
    """Return the location of an entry's field in the manifest, or, if the manifest lacks it, in the governance file."""
    names = [at(entry, ("name",)) for entry in as_list(at(manifest.value, ("tools",)))]
    entry: JsonPath = ("tools", names.index(tool.name)) if tool.name in names else ()
    rules: JsonPath = ("actions", tool.pdp_action)
    if at(manifest.value, (*entry, path[0])) is GONE:
        for document in governance:
            if at(document.value, (*rules, path[0])) is not GONE:
                return document.place((*rules, *path))
    return manifest.place((*entry, *path))


def place_of_datum(documents: Sequence[Document], path: JsonPath) -> Place:
    """Return the location of a value in data files, in the last file that has the value."""
    for document in reversed(documents):
        if at(document.value, path) is not GONE:
            return document.place(path)
    return documents[-1].place(path[:1])


def policy_modules(suite: Suite) -> dict[str, Module]:
    """Return the Rego modules of the suite's policy by their path. The file of a bundle's module is `BUNDLE!PATH`."""
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
            cycle = " -> ".join(str(source.path) for source in chain)
            last.find(("extends",), f"`extends` forms a cycle: {cycle} -> {below}", "remove one of them")
            break
        source = last.result_of(("extends",), lambda: ScenarioSource(below))  # noqa: B023 - the lambda is called at once
        if source is None:
            break
        chain.append(source)
    return chain


def _faults(chain: Sequence[ScenarioSource]) -> list[Fault]:
    return [fault for source in chain for fault in source.faults]


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `above` merged over `below` by JSON Merge Patch. Neither argument is changed."""
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
    """Return the sessions of a scenario's steps. A step without a time has the time of the previous step."""
    scenario = located.scenario
    # Ids are derived from the scenario's name, so that each run sends the same requests.
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
        source.find(located.path, "no session names the caller", "add `session: {claims: {sub: ...}}`")
    return tuple(sessions)


def _session(step: Step, layers: dict[str, Any]) -> Session | None:
    if step.action == "request":
        return None
    approver = step.approve or step.grant or step.deny
    if approver is not None:
        return Session(claims=approver.claims, time=layers["time"])
    if step.plan is not None:
        layers.setdefault("plan", list(step.plan))
    return Session.model_validate(layers)


def _check_tools(source: ScenarioSource, located: Located, manifest: EffectiveManifest) -> None:
    """Add a fault for each proposal of an unknown tool, unless the step expects the rejection of that tool."""
    for step, path in zip(located.scenario.steps, located.steps, strict=True):
        proposals = step.plan or (step.propose,)
        for number, (proposal, expect) in enumerate(zip(proposals, step.expectations, strict=True)):
            name = proposed_tool(proposal)
            intended = (
                expect.rejection is RejectionCode.INVALID_TOOL_NAME or (expect.trace or {}).get("in_manifest") is False
            )
            if name is not None and name not in manifest.tools and not intended:
                source.find(
                    (*path, *(("plan", number) if step.plan else ("propose",))),
                    f"manifest {manifest.version} has no tool {shown_name(name)}",
                    nearest(name, manifest.tools) or "if this is intended, expect `rejection: INVALID_TOOL_NAME`",
                )


def project_suite(file: Path, engine_timeout: float = ENGINE_TIMEOUT) -> Suite:
    """Return a suite with the manifest, policies and data of a project file, and without scenarios."""
    project = read_project(file).unbuilt()
    return Suite(
        file=file,
        manifest=manifest_of_project(file, project),
        policies=project.policies,
        bundle=project.bundle,
        data=read_data(project.data),
        engine_timeout=engine_timeout,
    )
