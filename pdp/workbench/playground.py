"""Decide one call with an edited manifest entry and an edited concern. Opens no store, and runs no tool.

The console's playground runs this module as a program: it reads one JSON object from standard input, and writes the
answer as JSON. A process of its own can be stopped at any point, and limits the memory of what the texts make it do.
"""

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from textwrap import indent
from typing import Any, Final, TypedDict

import yaml

from pdp.clock import to_seconds
from pdp.documents import read_document
from pdp.engine.bundle.file import Bundle, read_bundle
from pdp.engine.data import RUN_TIME_ROOTS, merged_data, read_data
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import BundleError, EngineError, Fault, FileFaultsError, Place, UsageError
from pdp.flow.evaluation import Evaluation
from pdp.json import canonical
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.load import load_effective
from pdp.manifest.spellings import entry_name, manifest_root
from pdp.opa.build import compile_bundle, policy_bundle
from pdp.opa.modules import Module, baseline_policies_path, write_texts
from pdp.opa.program import find_opa, needed_opa
from pdp.pep import Pep
from pdp.project.file import manifest_of_project, read_project
from pdp.session import Session
from pdp.workbench.explain.explain import NO_DECISION, explain

_DATA: Final = "data.json"
_EDITED: Final = "custom/playground/edited.rego"
_CONCERN: Final = re.compile(r"^package\s+custom\.concerns\.(\w+)", re.MULTILINE)
_INDENT: Final = 4
_RUN: Final = "playground"
_DEADLINE: Final = 2.0
_TRACE_SECONDS: Final = 10.0
_MOST_MEMORY: Final = 2 * 1024**3
_MOST_SECONDS: Final = 60  # of processor time, for this process and for each OPA that it starts
_LARGEST: Final = 2 * 1024**2


class Texts(TypedDict):
    """What a person typed. An empty `entry` or `concern` changes nothing."""

    tool: str
    arguments: str
    session: str
    entry: str
    concern: str


def play(file: Path, texts: Texts) -> dict[str, Any]:
    """Decide a call with the project in `file`, and return the decision, its explanation and a scenario.

    If a text has faults, return only `problems`. Each has the `field` (a key of `Texts`, or None) and `line`, `column`.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="pdp-playground-") as folder:
            return _Playground(file, texts).answer(Path(folder))
    except FileFaultsError as error:
        return {"problems": [_problem(fault, texts) for fault in error.faults]}
    except (UsageError, BundleError, EngineError) as error:
        return {"problems": [_plain(None, error)]}


class _Playground:
    def __init__(self, file: Path, texts: Texts) -> None:
        self._file = file
        self._project = read_project(file)
        self._texts = texts
        self._has_concern = bool(texts["concern"].strip())
        self._has_entry = False

    def answer(self, folder: Path) -> dict[str, Any]:
        arguments = read_document("arguments.json", text=self._texts["arguments"]).value
        stated = read_document("session", text=self._texts["session"]).value
        # The run and the time are those of the scenario, so that the scenario is decided in the same way.
        fields = {"run_id": _RUN, "time": to_seconds(time.time()), **stated} if isinstance(stated, dict) else stated
        try:
            session = Session.read(fields)
        except UsageError as error:
            return {"problems": [_plain("session", error)]}
        try:
            opa = needed_opa("an edited concern") if self._has_concern else find_opa()
        except UsageError as error:
            if self._has_concern:
                return {"problems": [_plain("concern", error)]}
            opa = None
        manifest = self._manifest()
        bundle = read_bundle(self._project.bundle) if self._project.bundle else policy_bundle(self._project.policies)
        own = {root: bundle.data[root] for root in RUN_TIME_ROOTS if root in bundle.data}
        data = merged_data(own, data=read_data(self._project.data))
        if self._has_concern and opa is not None:
            folders = self._staged(bundle, data, folder)
            bundle = read_bundle(
                compile_bundle(
                    policies=folders,
                    release=bundle.release,
                    opa=opa,
                    data=[folder / _DATA],
                    tools=[*manifest.tools.values()],
                )
            )
        proposal = {"tool": self._texts["tool"], "arguments": arguments}
        documents = {manifest.digest: manifest.document}
        with EmbeddedEngine(bundle, manifests=documents, data=data, deadline=_DEADLINE) as engine:
            evaluation = Pep(manifest, engine).decide(proposal, session)
        modules = {path: Module(Path(path), text, path.startswith("custom/")) for path, text in bundle.modules.items()}
        whole = merged_data(bundle.data, manifests=documents, data=data)
        tool = manifest.tools.get(self._texts["tool"])
        sensitive = () if tool is None else tool.sensitive
        explanation = explain(evaluation, modules, whole, opa, sensitive=sensitive, timeout=_TRACE_SECONDS)
        shown = explanation.as_json()
        return {
            "problems": [],
            "rejection": None if evaluation.decision else shown["line"],
            "unknown": explanation.unknown,
            **{name: shown[name] for name in ("checks", "rules")},
            **{name: shown["evaluation"][name] for name in ("verdict", "reasons")},
            "request": evaluation.request,
            "digest": manifest.digest,
            **self._saved(evaluation, {"session": fields, "propose": proposal}, modules),
        }

    def _manifest(self) -> EffectiveManifest:
        """Return the effective manifest in which the edited entry replaces the entry of the tool."""
        project, entry = self._project, self._texts["entry"]
        manifest = manifest_of_project(self._file, project)
        if not entry.strip() or project.manifest is None:
            return manifest
        edited = read_document("entry", text=entry)
        root = dict(manifest_root(read_document(project.manifest).value))
        tools = root.pop("tools")
        before: dict[str, Any] = next((each for each in tools if entry_name(each) == self._texts["tool"]), {})
        self._has_entry = edited.value != before
        if not self._has_entry:
            return manifest
        signature = edited.value.get("signature") if isinstance(edited.value, dict) else None
        names_file = "$ref" in signature if isinstance(signature, dict) else signature is not None
        if names_file and signature != before.get("signature"):
            # Otherwise the faults of the named file would show the content of files beside the manifest.
            message = "an edited entry cannot name another file"
            raise FileFaultsError([edited.fault(("signature",), message, "write {request: SCHEMA, response: SCHEMA}")])
        lines = [f"{_json(name)}: {_json(value)}" for name, value in root.items()]
        lines += ["tools:", *(f"  - {_json(each)}" for each in tools if each is not before), "  -"]
        text = "\n".join([*lines, indent(entry, " " * _INDENT)]).encode()
        path = project.manifest.with_name("manifest.yaml")
        try:
            return load_effective(path, project.governance, manifest_text=text)
        except FileFaultsError as error:
            raise FileFaultsError([_moved(fault, str(path), len(lines)) for fault in error.faults]) from None

    def _staged(self, bundle: Bundle, data: Mapping[str, Any], folder: Path) -> list[Path]:
        """Write the policies of a bundle with the edited concern, which replaces a concern of the same name."""
        baseline = {path: text for path, text in bundle.modules.items() if path.startswith("authz/")}
        baseline["capabilities.json"] = (baseline_policies_path() / "capabilities.json").read_text(encoding="utf-8")
        name = _concern_of(self._texts["concern"])
        kept = {
            path: text
            for path, text in bundle.modules.items()
            if path not in baseline and (name is None or _concern_of(text) != name)
        }
        write_texts(folder, {_DATA: _json(data)})
        write_texts(folder / "baseline", baseline)
        write_texts(folder / "own", {**kept, _EDITED: self._texts["concern"]})
        return [folder / "baseline", folder / "own"]

    def _saved(self, evaluation: Evaluation, call: Mapping[str, Any], modules: Mapping[str, Module]) -> dict[str, Any]:
        """Return a scenario that expects this decision, and the files for the edited texts: `concern_at`, `entry_at`.

        The scenario is for the folder of the project file. It is None if the policy made no decision.
        """
        project, rejection = self._project, evaluation.outcome.rejection
        files = dict.fromkeys(("concern_at", "entry_at"))
        if self._has_concern:
            files["concern_at"] = self._beside(self._file_of_concern(modules))
        if self._has_entry:
            files["entry_at"] = self._beside(project.manifest)
        expected: dict[str, Any] = {"pruned": True}
        if evaluation.decision is not None:
            if NO_DECISION.issuperset(evaluation.codes):
                return {"scenario": None, **files}
            expected = {"verdict": str(evaluation.verdict), "codes": [*evaluation.codes]}
        elif rejection is not None:
            expected = {"rejection": str(rejection.code)}
        notes = ["Save this file beside pdp.yaml, with a name that ends in .scenarios.yaml. Run it with: pdp test FILE"]
        settings: dict[str, Any] = {"manifest": project.manifest, "governance": project.governance}
        settings |= {"data": project.data, "policies": project.policies, "bundle": project.bundle}
        if self._has_concern:
            settings |= {"policies": project.policies or (self._file.parent / "policies",), "bundle": None}
            notes.append(f"It expects the edited concern: save the concern as {files['concern_at']}.")
        elif project.bundle:
            settings["policies"] = ()
        if self._has_entry:
            notes.append(f"It expects the edited entry of {self._texts['tool']}: replace it in {files['entry_at']}.")
        named = {name: self._beside(value) for name, value in settings.items() if value}
        scenario = {"name": f"{self._texts['tool']}: {next(iter(expected.values()))}", **call, "expect": expected}
        text = yaml.safe_dump({**named, "scenarios": [scenario]}, sort_keys=False, allow_unicode=True, width=100)
        return {"scenario": "".join(f"# {note}\n" for note in notes) + text, **files}

    def _file_of_concern(self, modules: Mapping[str, Module]) -> Path:
        """Return the file of the concern that the edited one replaces, or a new file."""
        name, folders = _concern_of(self._texts["concern"]), self._project.policies or (self._file.parent / "policies",)
        at = f"custom/concerns/{name}/{name}.rego"
        at = next(
            (path for path, module in modules.items() if path != _EDITED and _concern_of(module.text) == name), at
        )
        return next((folder / at for folder in folders if (folder / at).is_file()), folders[0] / at)

    def _beside(self, value: Any) -> Any:
        """Return a path relative to the project file."""
        if isinstance(value, tuple):
            return [self._beside(each) for each in value]
        return os.path.relpath(Path(value).absolute(), self._file.absolute().parent)


def _json(value: Any) -> str:
    return canonical(value).decode()


def _moved(fault: Fault, file: str, lines: int) -> Fault:
    """Return a fault of the manifest's text at its place in the edited entry, if it is a fault of this entry."""
    if fault.place.file != file:
        return fault
    # Faults of other entries have no place in the files of the user.
    entry = Place("entry", fault.place.line - lines, max(fault.place.column - _INDENT, 1))
    place = entry if fault.place.line > lines else Place("manifest", 1, 1)
    return Fault(place, fault.message, fault.hint)


def _concern_of(text: str) -> str | None:
    package = _CONCERN.search(text)
    return package[1] if package else None


def _problem(fault: Fault, texts: Texts) -> dict[str, Any]:
    file, place = fault.place.file.removesuffix(".json"), fault.place
    field = file if file in texts else "concern" if file.endswith(_EDITED) else None
    return {
        "field": field, "file": None if field else Path(place.file).name, "line": place.line,
        "column": place.column, "message": fault.message, "hint": fault.hint,
    }  # fmt: skip


def _plain(field: str | None, error: UsageError | BundleError | EngineError) -> dict[str, Any]:
    return {"field": field, "file": None, "line": None, "column": None, "message": error.message, "hint": error.hint}


def answer_question() -> None:
    """Read the question from standard input, and write the answer to standard output."""
    import resource  # noqa: PLC0415 - missing on Windows

    for limit, most in ((resource.RLIMIT_DATA, _MOST_MEMORY), (resource.RLIMIT_CPU, _MOST_SECONDS)):
        with suppress(ValueError):  # the limit in force is lower
            resource.setrlimit(limit, (most, most))
    asked = json.load(sys.stdin)
    answer = play(Path(asked["file"]), asked["texts"])
    text = json.dumps(answer)
    if len(text) > _LARGEST:
        text = json.dumps({**answer, "rules": [], "unknown": ": the trace is too large"})
    sys.stdout.write(text)


if __name__ == "__main__":
    answer_question()
