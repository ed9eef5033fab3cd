"""Load manifests and governance files: every fault of a file at once, each with its place.

`load_effective` is what an enforcement point needs: it also finds what the two files only get wrong together.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import ValidationError

from pdp.documents import nearest, shown_name
from pdp.errors import Fault, FileFaultsError, UsageError
from pdp.manifest.effective import EffectiveManifest, effective_manifest, effective_tool
from pdp.manifest.entries import Entry, read_entry, read_rules
from pdp.manifest.file_faults import FaultyFile
from pdp.manifest.findings import Finding
from pdp.manifest.model import ActionRules, DeclaredTool, Governance, Manifest
from pdp.manifest.programs.allow_list import program_findings, program_path
from pdp.manifest.rules.forbidden import forbidden_entry_findings, staged_commits
from pdp.manifest.rules.rules import entry_findings, governable_findings, manifest_findings
from pdp.manifest.spellings.spellings import reshaped_governance, reshaped_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.documents.document import Path
    from pdp.manifest.records import Program

Model = TypeVar("Model")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Model]):
    """What was loaded, and what is legal in its files yet likely a mistake, in the order of the places."""

    model: Model
    warnings: tuple[Fault, ...]


def load_manifest(path: pathlib.Path | str, *, text: bytes | None = None) -> Manifest:
    """Load a manifest by itself; warnings are dropped.

    Args:
        path: the file, YAML or JSON; `-` for standard input.
        text: its content, when it has been read already.

    Raises:
        UsageError: the file cannot be read.
        FileFaultsError: it is faulty; every fault.
    """
    return read_manifest(path, text=text).model


def load_governance(path: pathlib.Path | str, *, text: bytes | None = None) -> Governance:
    """Load a governance file by itself; warnings are dropped. Arguments and errors as for `load_manifest`."""
    return read_governance(path, text=text).model


def load_effective(
    manifest: pathlib.Path | str,
    governance: pathlib.Path | str | None = None,
    *,
    manifest_text: bytes | None = None,
    governance_text: bytes | None = None,
) -> EffectiveManifest:
    """Load a manifest and its governance file, check them together and merge them; warnings are dropped.

    Raises:
        UsageError: a file cannot be read.
        FileFaultsError: a file is faulty, or the two do not go together; every fault of both.
    """
    return read_effective(manifest, governance, manifest_text=manifest_text, governance_text=governance_text).model


def read_manifest(path: pathlib.Path | str, *, text: bytes | None = None, strict: bool = False) -> Loaded[Manifest]:
    """Load a manifest by itself, with its warnings.

    Args:
        path: as for `load_manifest`.
        text: as for `load_manifest`.
        strict: take warnings for faults.

    Raises:
        UsageError: as for `load_manifest`.
        FileFaultsError: likewise.
    """
    file = _ManifestFile(path, text)
    _check_entries(file, None)
    warnings = _raise_faults(file.faults, strict=strict)
    return Loaded(file.manifest(), warnings)


def read_governance(path: pathlib.Path | str, *, text: bytes | None = None, strict: bool = False) -> Loaded[Governance]:
    """Load a governance file by itself, with its warnings. Arguments and errors as for `read_manifest`."""
    file = _GovernanceFile(path, text)
    return Loaded(file.governance(), _raise_faults(file.faults, strict=strict))


def read_effective(
    manifest: pathlib.Path | str,
    governance: pathlib.Path | str | None = None,
    *,
    manifest_text: bytes | None = None,
    governance_text: bytes | None = None,
    strict: bool = False,
) -> Loaded[EffectiveManifest]:
    """Load both files and merge them as `load_effective` does, with the warnings of both.

    Raises:
        UsageError: as for `load_effective`.
        FileFaultsError: likewise; with `strict` for warnings as well.
    """
    file = _ManifestFile(manifest, manifest_text)
    rules = None if governance is None else _GovernanceFile(governance, governance_text)
    _check_entries(file, rules)
    _check_programs(file, rules)
    warnings = _raise_faults([*file.faults, *(rules.faults if rules else ())], strict=strict)
    return Loaded(effective_manifest(file.manifest(), rules.governance() if rules else None), warnings)


def _raise_faults(faults: Sequence[Fault], *, strict: bool) -> tuple[Fault, ...]:
    """Raise the faults, if there are any; else return the warnings."""
    faulty = [replace(fault, warning=False) for fault in faults if strict or not fault.warning]
    if faulty:
        raise FileFaultsError(faulty)
    return tuple(sorted(faults, key=lambda fault: (fault.place.file, fault.place.line, fault.place.column)))


class _ManifestFile(FaultyFile):
    """A manifest as far as it could be read."""

    def __init__(self, path: pathlib.Path | str, text: bytes | None) -> None:
        super().__init__(path, text, "manifest")
        root = reshaped_manifest(self.document.value)
        self.add_findings(root.findings)
        head = dict(root.value)
        definitions = head.pop("$defs", {})
        if not isinstance(definitions, dict):
            self.add_findings([Finding(("$defs",), "`$defs` must be a mapping of names to schemas")])
            definitions = {}
        records = head.get("tools")
        self._head: Manifest | None = None
        try:
            self._head = Manifest.model_validate({**head, "tools": []} if isinstance(records, list) else head)
        except ValidationError as error:
            self.add_error(error, Manifest, root.where)
        self._folder = None if str(path) == "-" else pathlib.Path(path).absolute().parent
        self.entries: list[Entry] = []
        for at, record in enumerate(records if isinstance(records, list) else ()):
            self.entries.append(read_entry(record, root.where(("tools", at)), definitions, self))
        self._check_across(root.where)

    def manifest(self) -> Manifest:
        """Return the manifest; only of a file without faults."""
        if self._head is None:
            raise FileFaultsError(self.faults)
        return self._head.model_copy(update={"tools": self._tools()})

    def _tools(self) -> tuple[DeclaredTool, ...]:
        return tuple(self._placed(entry.tool) for entry in self.entries if entry.tool is not None)

    def _placed(self, tool: DeclaredTool) -> DeclaredTool:
        if tool.cli is None or self._folder is None:
            return tool
        return tool.model_copy(update={"cli": tool.cli.below(self._folder)})

    def _check_across(self, where: Any) -> None:
        named = [
            (at, entry.tool)
            for at, entry in enumerate(self.entries)
            if entry.tool is not None and "name" not in entry.unusable
        ]
        # Pins are compared with versions: where some are unknown, only what is known to be wrong is said.
        known = all(entry.tool is not None and not {"name", "version"} & entry.unusable for entry in self.entries)
        agents = self._head.agents if self._head and known else None
        tools, positions = [tool for _, tool in named], [at for at, _ in named]
        for finding in manifest_findings(tools, positions, agents or ()):
            if finding.path[0] == "tools":
                entry = self.entries[int(finding.path[1])]
                self.add_findings([replace(finding, path=finding.path[2:])], entry.where)
            else:
                self.add_findings([finding], where)


class _GovernanceFile(FaultyFile):
    """A governance file as far as it could be read."""

    def __init__(self, path: pathlib.Path | str, text: bytes | None) -> None:
        super().__init__(path, text, "governance file")
        self._root = reshaped_governance(self.document.value)
        self.add_findings(self._root.findings)
        self.actions: dict[str, ActionRules] = {}
        self.programs: dict[str, Program] = {}
        actions = self._root.value.get("actions")
        shallow = {name: {} for name in actions} if isinstance(actions, dict) else actions
        try:
            head = Governance.model_validate(
                {**self._root.value, **({"actions": shallow} if actions is not None else {})}
            )
            self.programs = head.programs
        except ValidationError as error:
            self.add_error(error, Governance, self._root.where)
        for name, program in self.programs.items():
            try:
                program_path(name, program)
            except UsageError as error:
                self.add_findings([Finding(("programs", name), error.message, error.hint)], self._root.where)
        for name, value in actions.items() if isinstance(actions, dict) else ():
            rules = read_rules(value, self.within(name), self)
            if rules is not None:
                self.actions[name] = rules

    def governance(self) -> Governance:
        """Return the governance file; only of a file without faults."""
        return Governance.model_construct(actions=self.actions, programs=self.programs)

    def within(self, action: str) -> Any:
        """Return what gives the path in the document for a path in the rules of an action."""
        return lambda path: self._root.where(("actions", action, *path))


def _check_entries(file: _ManifestFile, governance: _GovernanceFile | None) -> None:
    """Find what is wrong with effective entries, and what the two files get wrong together."""
    actions = governance.actions if governance else {}
    mapped: set[str] = set()
    staged = staged_commits(entry.tool for entry in file.entries if entry.tool is not None)
    for entry in file.entries:
        tool = entry.tool
        if tool is None:
            continue
        rules = actions.get(tool.action)
        mapped.add(tool.action)
        if rules is not None and governance is not None:
            about_arguments = governable_findings(rules, entry.arguments)
            alone = set(governable_findings(rules, None))
            governance.add_findings(
                (one for one in about_arguments if one not in alone), governance.within(tool.action)
            )
        stated = tool.risk_tier is not None or (rules is not None and rules.risk_tier is not None)
        effective = effective_tool(tool, rules)
        findings = [*entry_findings(effective, tier_stated=stated), *forbidden_entry_findings(effective, staged)]
        for finding in findings:
            if _unsure(finding, entry):
                continue
            if governance is not None and rules is not None and _is_governed(str(finding.path[0]), tool, rules):
                governance.add_findings([finding], governance.within(tool.action))
            elif finding.path[0] != "effect_class":  # the manifest's own is found with its tool
                file.add_findings([finding], entry.where)
    if governance is not None and all(entry.tool for entry in file.entries):
        governance.add_findings(
            Finding(
                ("actions", action),
                f"action {shown_name(action)} belongs to no tool of the manifest",
                nearest(action, mapped),
                warning=True,
                key=True,
            )
            for action in actions
            if action not in mapped
        )


def _check_programs(file: _ManifestFile, governance: _GovernanceFile | None) -> None:
    """Find the command lines that the governance file does not allow; one that is faulty itself allows nothing yet."""
    if governance is not None and any(not fault.warning for fault in governance.faults):
        return
    for entry in file.entries:
        if entry.tool is not None and entry.tool.type == "cli" and "cli" not in entry.unusable:
            programs = governance.programs if governance else {}
            file.add_findings(program_findings(effective_tool(entry.tool, None, programs)), entry.where)


# Fields of findings on effective entries that either file may state; the others stand in the manifest alone. The class
# that a pattern fixes stands in no file: one that disagrees is the governance file's.
def _is_governed(field: str, tool: DeclaredTool, rules: ActionRules) -> bool:
    if field == "effect_class" and tool.pattern is not None:
        return rules.effect_class is not None
    return field in ("resource", "risk_tier") and getattr(tool, field) is None


# What was left out as faulty might have been what the rule asks for.
def _unsure(finding: Finding, entry: Entry) -> bool:
    asked: dict[str, set[str]] = {
        "risk_tier": {"risk_tier", "idempotency", "effect_class", "safety", "pattern"},
        "resource": {"resource"},
        "effect_class": {"effect_class", "pattern"},
        "name": {"name", "approval", "scopes", "effect_class", "pattern", "compensation", "pdp_action"},
        "schema": {"schema", "safety", "effect_class", "pattern"},
        "safety": {"safety", "effect_class", "pattern"},
        "cli": {"cli", "effect_class", "pattern"},
    }
    path: Path = finding.path
    return bool(asked[str(path[0])] & entry.unusable)
