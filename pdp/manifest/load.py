"""Load manifests and governance files: every fault of a file at once, each with its place.

`load_effective` is what an enforcement point needs; it also finds what the two files only get wrong together.
"""

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
    """The texts of both files, when they have been read already; `strict`: take warnings for faults.

    `warnings`: where to add what is legal yet likely a mistake, in the order of the places.
    """

    manifest_text: bytes | None
    governance_text: bytes | None
    strict: bool
    warnings: list[Fault] | None


def load_manifest(path: pathlib.Path | str, **options: Unpack[LoadOptions]) -> Manifest:
    """Load a manifest by itself, whatever programs its tools run. Errors as of `load_both`."""
    return load_both(path, programs=False, **options)[0]


def load_both(
    manifest: pathlib.Path | str,
    governance: pathlib.Path | str | None = None,
    *,
    programs: bool = True,
    **options: Unpack[LoadOptions],
) -> tuple[Manifest, Governance | None]:
    """Load a manifest and its governance file, YAML or JSON, and check them together; `-` is standard input.

    `programs`: the command lines of tools have to be what the governance file lists. UsageError: a file cannot be read.
    FileFaultsError: a file is faulty, or the two do not go together; every fault of both.
    """
    strict, warnings = options.get("strict", False), options.get("warnings")
    file = _ManifestFile(manifest, options.get("manifest_text"))
    rules = None if governance is None else _GovernanceFile(governance, options.get("governance_text"))
    doubtful = strict or warnings is not None
    if doubtful:
        from pdp.manifest.rules.lint import naming_doubts  # noqa: PLC0415 - authors ask

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
    """Load a manifest and its governance file, and merge them. Arguments and errors as of `load_both`."""
    return effective_manifest(*load_both(manifest, governance, **options))


_STAND_INS: Final = {"name": "unnamed_tool", "schema": {"type": "object"}}
# What the rules about effective entries ask for. Where some of it was faulty, they would ask for what is there.
_DECIDING: Final = frozenset((
    "approval", "cli", "compensation", "effect_class", "idempotency", "name", "pattern", "pdp_action", "resource",
    "provenance", "risk_tier", "safety", "schema", "scopes", "writes",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tool entry as far as it could be read; `tool` is None when nothing of it can be used.

    `unusable` fields were faulty and are left out of it; `where` gives the path in the document for a path in the
    entry; `sound`: its schema has no fault.
    """

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
        self.entries: list[_Entry] = []
        for at, record in enumerate(records if isinstance(records, list) else ()):
            base: Path = ("tools", at) if root is self.document.value else ()
            expanded = expanded_entry(record, definitions, self._folder)
            self.entries.append(_read_entry(record, expanded, base, (definitions, types), self))
        self._check_across()

    def _read_ontology(self, head: dict[str, Any]) -> dict[str, Any] | None:
        """Put the ontology into `head` for its file's name; return its types by each reference; None: it is faulty."""
        if head.get("ontology") is None:
            return {}
        stated = head.pop("ontology")
        name = stated if isinstance(stated, str) else ""
        path = path_beside(self._folder, name) if name else None
        if path is None and not isinstance(stated, dict):
            message = f"`ontology` leads nowhere: {name:.80}" if name else "`ontology` must be the name of a file"
            hint = "name a file of `version` and `$defs` in the manifest's folder; `ontology_pin` is for the version"
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
        """Return the manifest; only of a file without faults."""
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
        # Pins are compared with versions: where some are unknown, only what is known to be wrong is reported.
        known = all(entry.tool is not None and not {"name", "version"} & entry.unusable for entry in self.entries)
        agents = self._head.agents if self._head and known and not self._unusable else None
        self.add_findings(manifest_findings(tools, agents or (), self.ontology), self._where)
        if any(tool.invariants for tool in tools.values()):
            from pdp.manifest.rules.paths import plan_findings  # noqa: PLC0415 - only manifests with invariants

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
        from pdp.manifest.programs import program_path  # noqa: PLC0415 - only where programs are listed

        for name, program in programs.items():
            try:
                program_path(name, program)
            except UsageError as error:
                self.add_findings([Finding(("programs", name), error.message, error.hint)])

    def governance(self) -> Governance:
        """Return the governance file, as far as it has no faults."""
        return self._head.model_copy(update={"actions": self.actions})

    def within(self, action: str) -> Callable[[Path], Path]:
        """Return what gives the path in the document for a path in the rules of an action."""
        return partial(written_path, self.document.value["actions"][action], ("actions", action))


def _check_entries(file: _ManifestFile, governance: _GovernanceFile | None, *, programs: bool, doubtful: bool) -> None:
    """Find what is wrong with effective entries, what the two files get wrong together, and what is `doubtful`."""
    whole = governance.governance() if governance else Governance()
    actions, listed = whole.actions, whole.programs
    clauses = [clause for clause in whole.clauses if clause is not Clause.TYPED or not file.untyped]
    # What a faulty governance file lists is not known.
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
            from pdp.manifest.programs import program_findings  # noqa: PLC0415 - only manifests of such tools

            file.add_findings(program_findings(tool.cli, listed.get(tool.cli.argv[0])), entry.where)
        sound, decided = entry.sound, not entry.unusable & _DECIDING
        stated = tool.risk_tier is not None or (rules is not None and rules.risk_tier is not None)
        effective = effective_tool(tool, whole.rules_of(tool.action))
        _check_labels(file, governance, entry, effective)
        findings = forbidden_findings(effective, staged, sound=sound, decided=decided)
        if decided:
            findings += (*entry_findings(effective, tier_stated=stated), *form_findings(effective, forms))
        if decided and (clauses or doubtful):
            from pdp.manifest.rules.lint import clause_findings, doubts  # noqa: PLC0415 - few enforcement points ask

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
    """Find actions of the governance file that no tool has; where there are faults, some tool may have them."""
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


def _check_labels(file: _ManifestFile, governance: _GovernanceFile | None, entry: _Entry, effective: Tool) -> None:
    if effective.result is None or entry.tool is None or not entry.sound or "result_schema" in entry.unusable:
        return
    from pdp.manifest.rules.labels import label_findings  # noqa: PLC0415 - few manifests label results

    file.add_findings(label_findings(entry.tool, effective), entry.where)
    rules = governance.actions.get(effective.action) if governance else None
    if rules is not None and governance is not None:
        governance.add_findings(label_findings(rules, effective), governance.within(effective.action))


# A field is the governance file's where that states it, and has made it what it is. Where the manifest's class is its
# pattern's, one that disagrees is the governance file's.
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
) -> _Entry:
    """Read one tool entry, which stands at `base`, adding its faults and warnings to `file`.

    `expansion` is the entry without short forms, and what is wrong with those. `sources`: the file's definitions, and
    the types of its ontology; None: not known.
    """
    where = partial(written_path, record, base)
    expanded, findings = expansion
    file.add_findings(findings, where)
    tool, unusable = file.read(DeclaredTool, expanded, where, _STAND_INS)
    if tool is None:
        return _Entry(None, unusable, where)
    schemas: dict[str, Any] = {}
    sound = "schema" not in unusable
    for field, stated in (("schema", tool.schema_ if sound else None), ("result_schema", tool.result_schema)):
        if stated is not None:
            definitions, types = sources
            whole, faults = read_schema(stated, definitions, (field,), root_object=field == "schema", ontology=types)
            schemas["schema_" if field == "schema" else field] = whole
            sound = sound and all(fault.warning for fault in faults)
            file.add_findings((one for one in faults if types is not None or one.rule != LEADS_OUT), where)
    if sound:
        tool = tool.model_copy(update=schemas)
    if tool.pattern and tool.effect_class is None and "effect_class" not in unusable:
        tool = tool.model_copy(update={"effect_class": PATTERN_EFFECTS[tool.pattern]})
    file.add_findings(tool_findings(tool, unusable, sound=sound), where)
    file.add_findings(_special_findings(tool, unusable, sound=sound), where)
    return _Entry(tool, unusable, where, sound)


def _special_findings(tool: DeclaredTool, unusable: frozenset[str], *, sound: bool) -> Iterator[Finding]:
    """Yield what is wrong with parts that few entries have; an enforcement point loads the rules of each on demand."""
    if sound and tool.type == "cli" and tool.cli is not None:
        from pdp.manifest.programs import argv_findings  # noqa: PLC0415

        yield from argv_findings(tool.cli.argv, argument_schemas(tool.schema_))
    # An answer whose schema was faulty is left out, and may well have had the shape.
    if tool.pattern is not None and sound and "result_schema" not in unusable:
        from pdp.manifest.schema.shapes import shape_findings  # noqa: PLC0415

        yield from shape_findings(tool)
    if tool.invariants:
        from pdp.manifest.rules.paths import invariant_findings  # noqa: PLC0415

        yield from invariant_findings(tool, sound=sound)
    yield from _mapping_findings(tool, tool if sound else None)


def _mapping_findings(rules: Governable, tool: DeclaredTool | None) -> Iterator[Finding]:
    if rules.context or rules.resource:
        from pdp.manifest.rules.paths import mapping_findings  # noqa: PLC0415 - only where there are mappings

        yield from mapping_findings(rules, tool)
