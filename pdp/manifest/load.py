"""Load manifests and governance files: every fault of a file at once, each with its place.

`load_effective` is what an enforcement point needs: it also finds what the two files only get wrong together.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from pdp.documents import nearest, shown_name
from pdp.errors import Fault, FileFaultsError, UsageError
from pdp.manifest.effective import EffectiveManifest, effective_manifest, effective_tool
from pdp.manifest.fields import PATTERN_EFFECTS
from pdp.manifest.findings import FaultyFile, Finding, Salvaged
from pdp.manifest.model import ActionRules, DeclaredTool, Governance, Manifest
from pdp.manifest.programs.allow_list import program_findings, program_path
from pdp.manifest.rules.forbidden import forbidden_entry_findings, forbidden_findings, staged_commits
from pdp.manifest.rules.rules import entry_findings, governable_findings, manifest_findings, tool_findings
from pdp.manifest.schema.faults import schema_findings
from pdp.manifest.schema.references import ReferenceFault, self_contained
from pdp.manifest.schema.shapes import shape_findings
from pdp.manifest.schema.walk import arguments_of
from pdp.manifest.spellings.spellings import reshaped_governance, reshaped_manifest, reshaped_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pdp.documents.document import Path
    from pdp.manifest.records import Program
    from pdp.manifest.schema.walk import SchemaNode


def load_manifest(
    path: pathlib.Path | str,
    *,
    text: bytes | None = None,
    strict: bool = False,
    warnings: list[Fault] | None = None,
) -> Manifest:
    """Load a manifest by itself.

    Args:
        path: the file, YAML or JSON; `-` for standard input.
        text: its content, when it has been read already.
        strict: take warnings for faults.
        warnings: where to add what is legal yet likely a mistake, in the order of the places.

    Raises:
        UsageError: the file cannot be read.
        FileFaultsError: it is faulty; every fault.
    """
    file = _ManifestFile(path, text)
    _check_entries(file, None)
    _raise_faults(file.faults, strict=strict, warnings=warnings)
    return file.manifest()


def load_governance(
    path: pathlib.Path | str,
    *,
    text: bytes | None = None,
    strict: bool = False,
    warnings: list[Fault] | None = None,
) -> Governance:
    """Load a governance file by itself. Arguments and errors as for `load_manifest`."""
    file = _GovernanceFile(path, text)
    _raise_faults(file.faults, strict=strict, warnings=warnings)
    return file.governance()


def load_effective(
    manifest: pathlib.Path | str,
    governance: pathlib.Path | str | None = None,
    *,
    manifest_text: bytes | None = None,
    governance_text: bytes | None = None,
    strict: bool = False,
    warnings: list[Fault] | None = None,
) -> EffectiveManifest:
    """Load a manifest and its governance file, check them together and merge them. Arguments as for `load_manifest`.

    Raises:
        UsageError: a file cannot be read.
        FileFaultsError: a file is faulty, or the two do not go together; every fault of both.
    """
    file = _ManifestFile(manifest, manifest_text)
    rules = None if governance is None else _GovernanceFile(governance, governance_text)
    _check_entries(file, rules)
    _check_programs(file, rules)
    _raise_faults([*file.faults, *(rules.faults if rules else ())], strict=strict, warnings=warnings)
    return effective_manifest(file.manifest(), rules.governance() if rules else None)


def _raise_faults(faults: Sequence[Fault], *, strict: bool, warnings: list[Fault] | None) -> None:
    """Raise the faults, if there are any; else add the warnings."""
    faulty = [replace(fault, warning=False) for fault in faults if strict or not fault.warning]
    if faulty:
        raise FileFaultsError(faulty)
    if warnings is not None:
        warnings += sorted(faults, key=lambda fault: (fault.place.file, fault.place.line, fault.place.column))


_STAND_INS: Final = {"name": "unnamed_tool", "schema": {"type": "object"}}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tool entry as far as it could be read.

    Attributes:
        tool: the entry, or None when nothing of it can be used.
        unusable: fields that were faulty and are left out of it.
        where: gives the path in the document for a path in the entry.
        arguments: the schemas of its arguments, or None when its schema is faulty.
    """

    tool: DeclaredTool | None
    unusable: frozenset[str]
    where: Callable[[Path], Path]
    arguments: Mapping[str, SchemaNode] | None


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


def read_entry(record: Any, base: Path, definitions: Mapping[str, Any], file: FaultyFile) -> Entry:
    """Read one tool entry, adding its faults and warnings to `file`.

    Args:
        record: the entry as the file states it.
        base: where it stands.
        definitions: the `$defs` of the file.
        file: the file that it stands in.
    """
    reshaped = reshaped_tool(record, definitions)
    file.add_findings(reshaped.findings, lambda path: (*base, *path))
    salvaged = Salvaged(DeclaredTool, reshaped.value, _STAND_INS)

    def where(path: Path) -> Path:
        return (*base, *reshaped.where(salvaged.where(path)))

    if salvaged.error:
        file.add_error(salvaged.error, DeclaredTool, lambda path: (*base, *reshaped.where(path)))
    tool, unusable = salvaged.model, salvaged.unusable
    if tool is None:
        return Entry(None, unusable, where, None)
    faulty = len(file.faults)
    file.add_findings(_schema_findings(tool, definitions, unusable), where)
    sound = "schema" not in unusable and all(fault.warning for fault in file.faults[faulty:])
    if sound:
        tool = tool.model_copy(update=_standing_alone(tool, definitions))
    if tool.pattern and tool.effect_class is None and "effect_class" not in unusable:
        tool = tool.model_copy(update={"effect_class": PATTERN_EFFECTS[tool.pattern]})
    arguments = arguments_of(tool.schema_) if sound else None
    if sound:
        file.add_findings(forbidden_findings(tool), where)
        # An answer whose schema was faulty is left out, and may well have had the shape.
        if "result_schema" not in unusable:
            file.add_findings(shape_findings(tool), where)
    file.add_findings(tool_findings(tool, unusable, arguments), where)
    return Entry(tool, unusable, where, arguments)


def read_rules(value: Any, where: Callable[[Path], Path], file: FaultyFile) -> ActionRules | None:
    """Read what a governance file states for one action, adding its faults to `file`.

    Args:
        value: the rules, in the models' spelling.
        where: gives the path in the document for a path in the rules.
        file: the file that they stand in.
    """
    salvaged = Salvaged(ActionRules, value, {})
    if salvaged.error:
        file.add_error(salvaged.error, ActionRules, where)
    if salvaged.model is not None:
        file.add_findings(governable_findings(salvaged.model, None), lambda path: where(salvaged.where(path)))
    return salvaged.model


def _schema_findings(tool: DeclaredTool, definitions: Mapping[str, Any], unusable: frozenset[str]) -> Iterator[Finding]:
    if "schema" not in unusable:
        yield from schema_findings(tool.schema_, definitions, ("schema",), root_object=True)
    if tool.result_schema is not None:
        yield from schema_findings(tool.result_schema, definitions, ("result_schema",), root_object=False)


def _standing_alone(tool: DeclaredTool, definitions: Mapping[str, Any]) -> dict[str, Any]:
    result = tool.result_schema
    try:
        return {
            "schema_": self_contained(tool.schema_, definitions),
            "result_schema": None if result is None else self_contained(result, definitions),
        }
    except ReferenceFault:  # of the result's schema: the file has that fault already
        return {}
