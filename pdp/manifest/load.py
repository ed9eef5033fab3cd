"""Load manifests and governance files, and report all faults at once with their locations."""

import pathlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypedDict, Unpack

from pdp.documents import nearest, shown_name
from pdp.documents.document import Path
from pdp.documents.validation import FaultyFile, Finding, looks_like
from pdp.errors import Fault, FileFaultsError, UsageError
from pdp.manifest.effective import EffectiveManifest, effective_manifest, effective_tool
from pdp.manifest.fields import PATTERN_EFFECTS, Clause
from pdp.manifest.model import ActionRules, DeclaredTool, Governable, Governance, Manifest, Ontology, Program, Tool
from pdp.manifest.rules.forbidden import forbidden_findings, staged_commits
from pdp.manifest.rules.rules import (
    entry_findings,
    form_findings,
    governable_findings,
    manifest_findings,
    tool_findings,
)
from pdp.manifest.schema.faults import read_schema
from pdp.manifest.schema.references import LEADS_OUT
from pdp.manifest.schema.walk import argument_schemas
from pdp.manifest.spellings import expanded_entry, expanded_rules, manifest_root, path_beside, written_path


class LoadOptions(TypedDict, total=False):
    """Options of the loaders. With `strict`, warnings count as faults; otherwise they are added to the list `warnings`.

    `manifest_text` and `governance_text` are the contents of the files, if the caller has already read them.
    """

    manifest_text: bytes | None
    governance_text: bytes | None
    strict: bool
    warnings: list[Fault] | None


def load_manifest(path: pathlib.Path | str, **options: Unpack[LoadOptions]) -> Manifest:
    """Load a manifest alone, without checks of its command lines. Raises the same errors as `load_effective`."""
    return load_both(path, programs=False, **options)[0]


def load_both(
    manifest: pathlib.Path | str,
    governance: pathlib.Path | str | None = None,
    *,
    programs: bool = True,
    **options: Unpack[LoadOptions],
) -> tuple[Manifest, Governance | None]:
    """Load a manifest and its governance file, and check them together. Raises the same errors as `load_effective`.

    Unless `programs` is false, the governance file must list the programs that tools run, with their options.
    """
    strict, warnings = options.get("strict", False), options.get("warnings")
    file = _ManifestFile(manifest, options.get("manifest_text"))
    rules = None if governance is None else _GovernanceFile(governance, options.get("governance_text"))
    doubtful = strict or warnings is not None
    if doubtful:
        from pdp.manifest.rules.lint import naming_doubts  # noqa: PLC0415 - only needed by authors

        for entry in file.entries:
            if entry.tool is not None:
                file.add_findings(naming_doubts(entry.tool, entry.unusable, sound=entry.sound), entry.where)
    _check_entries(file, rules, programs=programs, doubtful=doubtful)
    faults = [*file.faults, *(rules.faults if rules else ())]
    faulty = [replace(fault, warning=False) for fault in faults if strict or not fault.warning]
    if faulty:
        raise FileFaultsError(faulty)
    if warnings is not None:
        warnings += sorted(faults, key=lambda fault: (fault.place.file, fault.place.line, fault.place.column))
    return file.manifest(), rules.governance() if rules else None


def load_effective(
    manifest: pathlib.Path | str, governance: pathlib.Path | str | None = None, **options: Unpack[LoadOptions]
) -> EffectiveManifest:
    """Load a manifest and its governance file, and merge them.

    Args:
        manifest: the path of the manifest, YAML or JSON; `-` for standard input.
        governance: the path of the governance file; None to load the manifest alone.
        options: see `LoadOptions`.

    Raises:
        UsageError: a file cannot be read.
        FileFaultsError: a file has faults, or the two files contradict each other. It lists all faults with locations.

    Examples:
        >>> sorted(load_effective("manifest.json", "governance.yaml").tools)
        ['initiate_wire', 'lookup_beneficiary', 'validate_payment']
    """
    return effective_manifest(*load_both(manifest, governance, **options))


_STAND_INS: Final = {"name": "unnamed_tool", "schema": {"type": "object"}}
# Fields that the rules about effective entries read. If one of these fields is faulty, the rules are skipped, because
# they would report the field as missing.
_DECIDING: Final = frozenset((
    "approval", "cli", "compensation", "effect_class", "idempotency", "name", "pattern", "pdp_action", "resource",
    "provenance", "risk_tier", "safety", "schema", "scopes", "writes",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _LoadedEntry:
    """The valid part of an entry. `where` maps paths in it to paths in the file. `sound`: no schema has faults."""

    tool: DeclaredTool | None
    unusable: frozenset[str]
    where: Callable[[Path], Path]
    sound: bool = False


class _ManifestFile(FaultyFile):
    def __init__(self, path: pathlib.Path | str, text: bytes | None) -> None:
        super().__init__(path, text, "manifest")
        root = manifest_root(self.document.value)
        head = dict(root)
        definitions = head.pop("$defs", {})
        if not isinstance(definitions, dict):
            self.add_findings([Finding(("$defs",), "`$defs` must be a mapping of names to schemas")])
            definitions = {}
        self._folder = None if str(path) == "-" else pathlib.Path(path).absolute().parent
        types = self._read_ontology(head)
        self.untyped = types is None
        records = head.get("tools")
        if isinstance(records, list):
            head["tools"] = []
        self._head, self._unusable = self.read(Manifest, head, self._where)
        agents = self._head.agents if self._head else None
        self.pinned = None if agents is None else frozenset(name for agent in agents for name in agent.tools)
        self.ontology = self._head.ontology if self._head else None
        self.entries: list[_LoadedEntry] = []
        for at, record in enumerate(records if isinstance(records, list) else ()):
            base: Path = ("tools", at) if root is self.document.value else ()
            expanded = expanded_entry(record, definitions, self._folder)
            self.entries.append(_read_entry(record, expanded, base, (definitions, types), self))
        self._check_across()

    def _read_ontology(self, head: dict[str, Any]) -> dict[str, Any] | None:
        """Replace the ontology's file name in `head` by its content. Return its types, or None if it has faults."""
        if head.get("ontology") is None:
            return {}
        stated = head.pop("ontology")
        name = stated if isinstance(stated, str) else ""
        path = path_beside(self._folder, name) if name else None
        if path is None and not isinstance(stated, dict):
            message = f"`ontology` file not found: {name:.80}" if name else "`ontology` must be the name of a file"
            hint = "name a file in the manifest's folder with `version` and `$defs`; `ontology_pin` states the version"
            self.add_findings([Finding(("ontology",), message, hint)])
            return None
        file = FaultyFile(path, None, "file of an ontology") if path else self
        where = partial(written_path, file.document.value, ()) if path else lambda at: ("ontology", *at)
        ontology, _ = file.read(Ontology, file.document.value if path else stated, where)
        types = dict(ontology.types) if ontology else {}
        for of, schema in types.items():
            file.add_findings(read_schema(schema, types, ("$defs", of), ontology=types)[1], where)
        self.faults += file.faults if path else ()
        if ontology is None:
            return None
        head["ontology"] = ontology
        return types | {f"{name}#/$defs/{of}": schema for of, schema in types.items()}

    def manifest(self) -> Manifest:
        if self._head is None:
            raise FileFaultsError(self.faults)
        tools = (entry.tool for entry in self.entries if entry.tool is not None)
        placed = (tool.model_copy(update={"cli": tool.cli.below(self._folder)}) if tool.cli else tool for tool in tools)
        return self._head.model_copy(update={"tools": tuple(placed)})

    def _where(self, path: Path) -> Path:
        if len(path) > 1 and path[0] == "tools":
            return self.entries[int(path[1])].where(path[2:])
        return written_path(self.document.value, (), path)

    def _check_across(self) -> None:
        tools = {
            at: entry.tool
            for at, entry in enumerate(self.entries)
            if entry.tool is not None and "name" not in entry.unusable
        }
        # Pins are compared with the tools' versions. If some versions are unknown, only faults that do not depend on
        # them are reported.
        known = all(entry.tool is not None and not {"name", "version"} & entry.unusable for entry in self.entries)
        agents = self._head.agents if self._head and known and not self._unusable else None
        self.add_findings(manifest_findings(tools, agents or (), self.ontology), self._where)
        if any(tool.invariants for tool in tools.values()):
            from pdp.manifest.rules.paths import plan_findings  # noqa: PLC0415 - only needed with invariants

            self.add_findings(plan_findings(tools), self._where)


class _GovernanceFile(FaultyFile):
    def __init__(self, path: pathlib.Path | str, text: bytes | None) -> None:
        super().__init__(path, text, "governance file")
        self.actions: dict[str, ActionRules] = {}
        root = self.document.value
        records = root.get("actions")
        actions = records if isinstance(records, dict) else {}
        head = {**root, "actions": {action: {} for action in actions}} if isinstance(records, dict) else root
        governance, _ = self.read(Governance, head, partial(written_path, root, ()), {"actions": {}})
        self._head = governance or Governance()
        if self._head.programs:
            self._check_programs(self._head.programs)
        for action, record in actions.items():
            expanded, findings = expanded_rules(record)
            where = self.within(action)
            self.add_findings(findings, where)
            rules, _ = self.read(ActionRules, expanded, where)
            if rules is not None:
                self.actions[action] = rules
                self.add_findings(governable_findings(rules, None), where)
                self.add_findings(_mapping_findings(rules, None), where)

    def _check_programs(self, programs: Mapping[str, Program]) -> None:
        from pdp.manifest.programs import program_path  # noqa: PLC0415 - only needed if programs are listed

        for name, program in programs.items():
            try:
                program_path(name, program)
            except UsageError as error:
                self.add_findings([Finding(("programs", name), error.message, error.hint)])

    def governance(self) -> Governance:
        return self._head.model_copy(update={"actions": self.actions})

    def within(self, action: str) -> Callable[[Path], Path]:
        return partial(written_path, self.document.value["actions"][action], ("actions", action))


def _check_entries(file: _ManifestFile, governance: _GovernanceFile | None, *, programs: bool, doubtful: bool) -> None:
    whole = governance.governance() if governance else Governance()
    actions, listed = whole.actions, whole.programs
    clauses = [clause for clause in whole.clauses if clause is not Clause.TYPED or not file.untyped]
    # If the governance file is faulty, the programs that it lists are unknown, so they are not checked.
    programs = programs and (governance is None or all(fault.warning for fault in governance.faults))
    forms: dict[str, tuple[str, tuple[Any, ...]]] = {}
    staged = staged_commits(entry.tool for entry in file.entries if entry.tool is not None)
    sides = (*(entry.tool for entry in file.entries if entry.tool is not None), *actions.values())
    labelled = whole.flow is not None or any(side.is_labelled for side in sides)
    for entry in file.entries:
        tool = entry.tool
        if tool is None:
            continue
        rules = actions.get(tool.action)
        if rules is not None and governance is not None and entry.sound:
            governance.add_findings(governable_findings(rules, tool), governance.within(tool.action))
            governance.add_findings(_mapping_findings(rules, tool), governance.within(tool.action))
        if programs and tool.type == "cli" and tool.cli is not None:
            from pdp.manifest.programs import program_findings  # noqa: PLC0415 - only needed for type cli

            file.add_findings(program_findings(tool.cli, listed.get(tool.cli.argv[0])), entry.where)
        sound, decided = entry.sound, not entry.unusable & _DECIDING
        stated = tool.risk_tier is not None or (rules is not None and rules.risk_tier is not None)
        effective = effective_tool(tool, whole.rules_of(tool.action))
        _check_labels(file, governance, entry, effective)
        findings = forbidden_findings(effective, staged, sound=sound, decided=decided)
        if decided:
            findings += (*entry_findings(effective, tier_stated=stated), *form_findings(effective, forms))
        if decided and rules is not None and rules.approval is not None and rules.approval.lasting is not None:
            from pdp.manifest.rules.lasting import lasting_findings  # noqa: PLC0415 - only for lasting grants

            findings += (*lasting_findings(effective, sound=sound),)
        if decided and (clauses or doubtful):
            from pdp.manifest.rules.lint import clause_findings, doubts  # noqa: PLC0415 - rarely needed by PEPs

            demanded = partial(clause_findings, effective, clauses, file.pinned, file.ontology, doubtful=doubtful)
            findings += demanded() if sound else ()
            findings += doubts(effective, rules, sound=sound, labelled=labelled) if doubtful else ()
        for finding in findings:
            if governance is not None and rules is not None and _is_governed(finding.path, tool, rules, effective):
                governance.add_findings([finding], governance.within(tool.action))
            else:
                file.add_findings([finding], entry.where)
    _check_unmapped(file, governance)


def _check_unmapped(file: _ManifestFile, governance: _GovernanceFile | None) -> None:
    if governance is None or not all(fault.warning for fault in (*file.faults, *governance.faults)):
        return
    mapped = {entry.tool.action for entry in file.entries if entry.tool is not None}
    governance.add_findings(
        Finding(
            ("actions", action),
            f"action {shown_name(action)} belongs to no tool of the manifest",
            nearest(action, mapped),
            warning=not looks_like(action, mapped - governance.actions.keys()),
            key=True,
        )
        for action in governance.actions
        if action not in mapped
    )


def _check_labels(
    file: _ManifestFile, governance: _GovernanceFile | None, entry: _LoadedEntry, effective: Tool
) -> None:
    if effective.result is None or entry.tool is None or not entry.sound or "result_schema" in entry.unusable:
        return
    from pdp.manifest.rules.labels import label_findings  # noqa: PLC0415 - only needed for labelled results

    file.add_findings(label_findings(entry.tool, effective), entry.where)
    rules = governance.actions.get(effective.action) if governance else None
    if rules is not None and governance is not None:
        governance.add_findings(label_findings(rules, effective), governance.within(effective.action))


# A finding belongs to the governance file if that file sets the field and changes its effective value. If an effect
# class does not match the pattern, although the manifest's own class does, the governance file is the cause.
def _is_governed(path: Path, tool: DeclaredTool, rules: ActionRules, effective: Tool) -> bool:
    field = str(path[0])
    if field == "effect_class" and tool.pattern is not None:
        return tool.effect_class == PATTERN_EFFECTS[tool.pattern]
    stated = getattr(rules, field, None) if field in ActionRules.model_fields else None
    return stated is not None and getattr(tool, field) != getattr(effective, field)


def _read_entry(
    record: Any,
    expansion: tuple[Any, list[Finding]],
    base: Path,
    sources: tuple[Mapping[str, Any], Mapping[str, Any] | None],
    file: FaultyFile,
) -> _LoadedEntry:
    """Read the entry at the path `base`. Faults go to `file`. `sources` are the definitions that `$ref` may name."""
    where = partial(written_path, record, base)
    expanded, findings = expansion
    file.add_findings(findings, where)
    tool, unusable = file.read(DeclaredTool, expanded, where, _STAND_INS)
    if tool is None:
        return _LoadedEntry(None, unusable, where)
    schemas: dict[str, Any] = {}
    sound = "schema" not in unusable
    for field, stated in (("schema", tool.schema_ if sound else None), ("result_schema", tool.result_schema)):
        if stated is not None:
            definitions, types = sources
            whole, faults = read_schema(stated, definitions, (field,), root_object=field == "schema", ontology=types)
            schemas["schema_" if field == "schema" else field] = whole
            sound = sound and all(fault.warning for fault in faults)
            file.add_findings((fault for fault in faults if types is not None or fault.rule != LEADS_OUT), where)
    if sound:
        tool = tool.model_copy(update=schemas)
    if tool.pattern and tool.effect_class is None and "effect_class" not in unusable:
        tool = tool.model_copy(update={"effect_class": PATTERN_EFFECTS[tool.pattern]})
    file.add_findings(tool_findings(tool, unusable, sound=sound), where)
    file.add_findings(_special_findings(tool, unusable, sound=sound), where)
    return _LoadedEntry(tool, unusable, where, sound)


def _special_findings(tool: DeclaredTool, unusable: frozenset[str], *, sound: bool) -> Iterator[Finding]:
    """Yield findings about rarely used fields. The checks are imported on demand, because imports take time."""
    if sound and tool.type == "cli" and tool.cli is not None:
        from pdp.manifest.programs import argv_findings  # noqa: PLC0415

        yield from argv_findings(tool.cli.argv, argument_schemas(tool.schema_))
    # A faulty result schema was left out, so it is unknown whether it has the form of the pattern.
    if tool.pattern is not None and sound and "result_schema" not in unusable:
        from pdp.manifest.schema.shapes import shape_findings  # noqa: PLC0415

        yield from shape_findings(tool)
    if tool.invariants:
        from pdp.manifest.rules.paths import invariant_findings  # noqa: PLC0415

        yield from invariant_findings(tool, sound=sound)
    yield from _mapping_findings(tool, tool if sound else None)


def _mapping_findings(rules: Governable, tool: DeclaredTool | None) -> Iterator[Finding]:
    if rules.context or rules.resource:
        from pdp.manifest.rules.paths import mapping_findings  # noqa: PLC0415 - only needed for mappings

        yield from mapping_findings(rules, tool)
    if tool is not None and any(name.startswith("/") for name in rules.roles or ()):
        from pdp.manifest.rules.paths import role_findings  # noqa: PLC0415 - only needed for pointers

        yield from role_findings(rules, tool)
