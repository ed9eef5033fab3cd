"""A scenario file with all that it names: loaded once, every fault of it at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from pdp.documents import nearest, read_document, shown_name
from pdp.engine.bundle.file import read_bundle
from pdp.engine.data import read_data
from pdp.errors import FileFaultsError, UsageError
from pdp.json import digest
from pdp.manifest.load import load_effective
from pdp.proposal import RejectionCode
from pdp.workbench.opa.modules import Module, baseline_policies_path, collect
from pdp.workbench.scenarios.files.raw_request import filled_in
from pdp.workbench.scenarios.files.read import Located, ScenarioSource
from pdp.workbench.scenarios.files.scenario import ScenarioFile
from pdp.workbench.scenarios.files.sessions import laid_over, sessions_of
from pdp.workbench.scenarios.files.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdp.documents.document import Document
    from pdp.documents.document import Path as Steps
    from pdp.errors import Fault, Place
    from pdp.manifest.effective import EffectiveManifest
    from pdp.session import Session
    from pdp.workbench.scenarios.files.scenario import Expect, Scenario


_ENDINGS: Final = (".scenarios.yaml", ".scenarios.yml", ".scenarios.json")


@dataclass(frozen=True, slots=True)
class Suite:
    """The scenarios of one file and what they are held against. Make it with `load_suite`.

    Attributes:
        file: as it was named.
        document: its text, for places.
        model: the file's settings, what it extends included; paths as they are written.
        manifest: the effective manifest.
        policies: folders with the user's concerns; empty when a bundle decides.
        bundle: the bundle file that decides, or None.
        data: with the roots `directory` and `settings`, read and merged.
        tools: the Python file with the tools, or None.
        scenarios: in the order of the file.
        sessions: for each scenario and step, who does it and when; see `sessions_of`.
        places: for each scenario, where it stands, and then each of its steps.
        manifest_text: the digest of the manifest file, by which suites know that they speak of the same tools.
    """

    file: Path
    document: Document
    model: ScenarioFile
    manifest: EffectiveManifest
    policies: tuple[Path, ...]
    bundle: Path | None
    data: Mapping[str, Any]
    tools: Path | None
    scenarios: tuple[Scenario, ...]
    sessions: tuple[tuple[Session | None, ...], ...]
    places: tuple[tuple[Steps, ...], ...]
    manifest_text: str

    def place(self, index: int, step: int | None = None) -> Place:
        """Return where a scenario, or a step of it, stands in the file; both count from 0."""
        return self.document.place(self.places[index][0 if step is None else step + 1])


def load_suite(path: Path) -> Suite:
    """Load a scenario file, the files that it extends, its manifest and its data.

    Raises:
        UsageError: the file cannot be read.
        FileFaultsError: it or a file that it names is faulty; every fault of all of them.
    """
    chain = _chain(path)
    own = chain[0]
    located = own.scenarios()
    settings = Settings(chain, whole=chain[-1].settings.extends is None)
    base = _session(chain)
    manifest = settings.manifest()
    if manifest is not None:
        for each in located:
            _check_tools(own, each, manifest)
    data = settings.data()
    bundle = settings.file("bundle")
    policies = settings.folders()
    tools = settings.tools()
    sessions = [] if _faults(chain) else [_sessions(own, each, base) for each in located]
    faults = _faults(chain)
    if faults or manifest is None:
        raise FileFaultsError(faults)
    return Suite(
        file=path,
        document=own.document,
        model=settings.model(base, tuple(each.scenario for each in located)),
        manifest=manifest,
        policies=policies,
        bundle=bundle,
        data=data,
        tools=tools,
        scenarios=tuple(each.scenario for each in located),
        sessions=tuple(sessions),
        places=tuple((each.path, *each.steps) for each in located),
        manifest_text=digest((settings.file("manifest") or path).read_bytes()),
    )


def load_suites(files: Iterable[Path]) -> list[Suite]:
    """Load scenario files, such as `find_suites` gives, so that the faults of all of them show at once.

    Raises:
        UsageError: a file cannot be read.
        FileFaultsError: faulty ones; each fault once, however many files extend what it stands in.
    """
    suites: list[Suite] = []
    faults: list[Fault] = []
    for file in files:
        try:
            suites.append(load_suite(file))
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
    found: dict[Path, Path] = {}
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
            found.setdefault(file.resolve(), file)
    return list(found.values())


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
        return {
            path: Module(Path(f"{suite.bundle}!{path}"), text, path.startswith("custom/"))
            for path, text in sorted(read_bundle(suite.bundle).modules.items())
        }
    baseline = baseline_policies_path()
    return collect(baseline, [baseline, *suite.policies])


def _in_folder(folder: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(at, name) for name in names if is_scenario_file(name))


def _chain(path: Path) -> list[ScenarioSource]:
    """The file, the one that it extends, and so on."""
    chain = [ScenarioSource(path)]
    seen = {path.resolve(): path}
    while (extends := chain[-1].settings.extends) is not None:
        last = chain[-1]
        below = last.path.parent / extends
        if below.resolve() in seen:
            circle = " -> ".join(str(each.path) for each in chain)
            last.find(("extends",), f"`extends` goes in a circle: {circle} -> {below}", "take one of them out")
            break
        seen[below.resolve()] = below
        try:
            chain.append(ScenarioSource(below))
        except FileFaultsError as error:
            last.add(list(error.faults))
            break
        except UsageError as error:
            last.find(("extends",), f"`extends`: {error.message}", error.hint)
            break
    return chain


def _faults(chain: Sequence[ScenarioSource]) -> list[Fault]:
    return [fault for source in chain for fault in source.faults]


def _session(chain: Sequence[ScenarioSource]) -> dict[str, Any]:
    """What every scenario starts from: the layers of the chain."""
    merged: dict[str, Any] = {}
    for source in reversed(chain):
        merged = laid_over(merged, source.settings.session)
    return merged


def _sessions(source: ScenarioSource, located: Located, base: Mapping[str, Any]) -> tuple[Session | None, ...]:
    try:
        return sessions_of(located.scenario, base)
    except ValidationError:
        source.find(located.path, "no session says who calls", "state `session: {claims: {sub: ...}}`")
        return ()


def _check_tools(source: ScenarioSource, located: Located, manifest: EffectiveManifest) -> None:
    for step, at in zip(located.scenario.steps, located.steps, strict=True):
        if step.action == "propose":
            _check_tool(source, step.propose, step.expectations[0], (*at, "propose"), manifest)
        for position, proposal in enumerate(step.plan or ()):
            _check_tool(source, proposal, step.expectations[position], (*at, "plan", position), manifest)
        if step.action == "request":
            try:
                filled_in(step.request, manifest)
            except UsageError as error:
                source.find((*at, "request"), error.message, error.hint)


def _check_tool(
    source: ScenarioSource, proposal: Any, expect: Expect, path: Steps, manifest: EffectiveManifest
) -> None:
    name = next((key for key in ("tool", "tool_name") if isinstance(proposal, dict) and key in proposal), None)
    tool = proposal[name] if name else None
    expected = expect.rejection is RejectionCode.INVALID_TOOL_NAME or (expect.trace or {}).get("in_manifest") is False
    if isinstance(tool, str) and tool not in manifest.tools and not expected:
        source.find(
            (*path, str(name)),
            f"a scenario for {shown_name(tool)}, which manifest {manifest.version} does not have",
            nearest(tool, manifest.tools) or "if that is the point of it, expect `rejection: INVALID_TOOL_NAME`",
        )


def policy_suite(
    manifest: Path,
    *,
    governance: Path | None = None,
    policies: Sequence[Path] = (),
    data: Sequence[Path] = (),
    bundle: Path | None = None,
) -> Suite:
    """Return a suite that has no scenarios.

    Args:
        manifest: that proposals are held against.
        governance: the policy author's half of it.
        policies: folders with concerns of one's own.
        data: files with what they ask for.
        bundle: instead of policies.

    Raises:
        UsageError: a file cannot be read, or policies stand beside a bundle.
        FileFaultsError: a file is faulty; every fault of it.
    """
    if bundle is not None and policies:
        raise UsageError("a bundle stands beside policies", hint="a bundle holds its policies: leave one of them out")
    effective = load_effective(manifest, governance)
    return Suite(
        file=manifest,
        document=read_document(manifest),
        model=ScenarioFile(),
        manifest=effective,
        policies=tuple(policies),
        bundle=bundle,
        data=read_data(data),
        tools=None,
        scenarios=(),
        sessions=(),
        places=(),
        manifest_text=digest(manifest.read_bytes()),
    )
