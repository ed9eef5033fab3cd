"""Load manifests and governance files: every fault of a file at once, each with its place.

`load_effective` is what an enforcement point needs; it also finds what the two files only get wrong together.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from pdp.documents import nearest, shown_name
from pdp.errors import Fault, FileFaultsError, UsageError
from pdp.manifest.effective import EffectiveManifest, effective_manifest, effective_tool
from pdp.manifest.fields import PATTERN_EFFECTS
from pdp.manifest.findings import FaultyFile, Finding
from pdp.manifest.model import ActionRules, DeclaredTool, Governance, Manifest
from pdp.manifest.programs import program_findings, program_path
from pdp.manifest.rules.forbidden import forbidden_entry_findings, forbidden_findings, staged_commits
from pdp.manifest.rules.paths import looks_like, path_roots
from pdp.manifest.rules.rules import (
    argument_findings,
    entry_findings,
    governable_findings,
    manifest_findings,
    tool_findings,
)
from pdp.manifest.schema.faults import read_schema
from pdp.manifest.schema.shapes import shape_findings
from pdp.manifest.spellings import expanded_entry, expanded_rules, manifest_root, shared_names, written_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pdp.documents.document import Path
    from pdp.manifest.fields import NotATool
    from pdp.manifest.model import Tool
    from pdp.manifest.rules.paths import Roots


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
    _check_entries(file, None, doubtful=strict or warnings is not None)
    _raise_faults(file.faults, strict=strict, warnings=warnings)
    return file.manifest()


class LoadOptions(TypedDict, total=False):
    """The texts of both files, when they have been read already; `strict` and `warnings` as of `load_manifest`."""

    manifest_text: bytes | None
    governance_text: bytes | None
    strict: bool
    warnings: list[Fault] | None


def load_both(
    manifest: pathlib.Path | str, governance: pathlib.Path | str | None = None, **options: Unpack[LoadOptions]
) -> tuple[Manifest, Governance | None]:
    """Load a manifest and its governance file, and check them together.

    Raises:
        UsageError: a file cannot be read.
        FileFaultsError: a file is faulty, or the two do not go together; every fault of both.
    """
    file = _ManifestFile(manifest, options.get("manifest_text"))
    rules = None if governance is None else _GovernanceFile(governance, options.get("governance_text"))
    doubtful = options.get("strict", False) or options.get("warnings") is not None
    _check_entries(file, rules, doubtful=doubtful)
    _check_programs(file, rules)
    faults = [*file.faults, *(rules.faults if rules else ())]
    _raise_faults(faults, strict=options.get("strict", False), warnings=options.get("warnings"))
    return file.manifest(), rules.governance() if rules else None


def load_effective(
    manifest: pathlib.Path | str, governance: pathlib.Path | str | None = None, **options: Unpack[LoadOptions]
) -> EffectiveManifest:
    """Load a manifest and its governance file, and merge them. Arguments and errors as of `load_both`."""
    return effective_manifest(*load_both(manifest, governance, **options))


def _raise_faults(faults: Sequence[Fault], *, strict: bool, warnings: list[Fault] | None) -> None:
    """Raise the faults, if there are any; else add the warnings."""
    faulty = [replace(fault, warning=False) for fault in faults if strict or not fault.warning]
    if faulty:
        raise FileFaultsError(faulty)
    if warnings is not None:
        warnings += sorted(faults, key=lambda fault: (fault.place.file, fault.place.line, fault.place.column))


_STAND_INS: Final = {"name": "unnamed_tool", "schema": {"type": "object"}}
# What the rules about effective entries ask for. Where some of it was faulty, they would ask for what is there.
_DECIDING: Final = frozenset((
    "approval", "cli", "compensation", "effect_class", "idempotency", "name", "pattern", "pdp_action", "resource",
    "provenance", "risk_tier", "safety", "schema", "scopes", "writes",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tool entry as far as it could be read.

    Attributes:
        tool: the entry, or None when nothing of it can be used.
        unusable: fields that were faulty and are left out of it.
        where: gives the path in the document for a path in the entry.
        roots: what its expressions may read, or None when its schema is faulty.
    """

    tool: DeclaredTool | None
    unusable: frozenset[str]
    where: Callable[[Path], Path]
    roots: Roots | None = None


class _ManifestFile(FaultyFile):
    """A manifest as far as it could be read."""

    def __init__(self, path: pathlib.Path | str, text: bytes | None) -> None:
        super().__init__(path, text, "manifest")
        root = manifest_root(self.document.value)
        head = dict(root)
        definitions = head.pop("$defs", {})
        if not isinstance(definitions, dict):
            self.add_findings([Finding(("$defs",), "`$defs` must be a mapping of names to schemas")])
            definitions = {}
        records = head.get("tools")
        if isinstance(records, list):
            head["tools"] = []
        self._head, self._unusable = self.read(Manifest, head, self._where)
        self._folder = None if str(path) == "-" else pathlib.Path(path).absolute().parent
        self.entries: list[_Entry] = []
        shared = shared_names(records)
        for at, record in enumerate(records if isinstance(records, list) else ()):
            base: Path = ("tools", at) if root is self.document.value else ()
            expanded = expanded_entry(record, definitions, self._folder, shared)
            self.entries.append(_read_entry(record, expanded, base, definitions, self))
        self._check_across()

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

    @property
    def ontology(self) -> str | None:
        """The version of the ontology whose types it holds."""
        return self._head.ontology if self._head else None

    @property
    def pinned(self) -> frozenset[str] | None:
        """The tools that some agent pins; None where it has no agents."""
        agents = self._head.agents if self._head else None
        return None if agents is None else frozenset(name for agent in agents for name in agent.tools)


class _GovernanceFile(FaultyFile):
    """A governance file as far as it could be read."""

    def __init__(self, path: pathlib.Path | str, text: bytes | None) -> None:
        super().__init__(path, text, "governance file")
        self.actions: dict[str, ActionRules] = {}
        root = self.document.value
        records = root.get("actions")
        actions = records if isinstance(records, dict) else {}
        head = {**root, "actions": {action: {} for action in actions}} if isinstance(records, dict) else root
        governance, _ = self.read(Governance, head, partial(written_path, root, ()), {"actions": {}})
        self.programs = governance.programs if governance else {}
        self.clauses = governance.clauses if governance else ()
        for name, program in self.programs.items():
            try:
                program_path(name, program)
            except UsageError as error:
                self.add_findings([Finding(("programs", name), error.message, error.hint)])
        for action, record in actions.items():
            expanded, findings = expanded_rules(record)
            where = self.within(action)
            self.add_findings(findings, where)
            rules, _ = self.read(ActionRules, expanded, where)
            if rules is not None:
                self.actions[action] = rules
                self.add_findings(governable_findings(rules), where)

    def governance(self) -> Governance:
        """Return the governance file; only of a file without faults."""
        return Governance.model_construct(actions=self.actions, clauses=self.clauses, programs=self.programs)

    def within(self, action: str) -> Callable[[Path], Path]:
        """Return what gives the path in the document for a path in the rules of an action."""
        return partial(written_path, self.document.value["actions"][action], ("actions", action))


def _check_entries(file: _ManifestFile, governance: _GovernanceFile | None, *, doubtful: bool) -> None:
    """Find what is wrong with effective entries, what the two files get wrong together, and what is `doubtful`."""
    actions = governance.actions if governance else {}
    mapped: set[str] = set()
    placed: dict[int, tuple[_Entry, DeclaredTool, ActionRules | None, Tool]] = {}
    found: list[tuple[Tool, Finding]] = []
    staged = staged_commits(entry.tool for entry in file.entries if entry.tool is not None)
    for entry in file.entries:
        tool = entry.tool
        if tool is None:
            continue
        rules = actions.get(tool.action)
        mapped.add(tool.action)
        if rules is not None and governance is not None and entry.roots is not None:
            governance.add_findings(argument_findings(rules, entry.roots), governance.within(tool.action))
        accepted = (rules.accepts if rules else None) or {}
        if entry.roots is not None:
            file.add_findings(_unaccepted(forbidden_findings(tool), accepted), entry.where)
        if entry.unusable & _DECIDING:
            continue
        stated = tool.risk_tier is not None or (rules is not None and rules.risk_tier is not None)
        effective = effective_tool(tool, rules)
        placed[id(effective)] = entry, tool, rules, effective
        found += (
            (effective, finding)
            for finding in (
                *entry_findings(effective, tier_stated=stated),
                *_unaccepted(forbidden_entry_findings(effective, staged), accepted),
            )
        )
    found += _asked_for([effective for *_, effective in placed.values()], file, governance, doubtful=doubtful)
    for effective, finding in found:
        entry, tool, rules, _ = placed[id(effective)]
        if governance is not None and rules is not None and _is_governed(finding.path, tool, rules, effective):
            governance.add_findings([finding], governance.within(tool.action))
        else:
            file.add_findings([finding], entry.where)
    if governance is not None and all(fault.warning for fault in (*file.faults, *governance.faults)):
        governance.add_findings(
            Finding(
                ("actions", action),
                f"action {shown_name(action)} belongs to no tool of the manifest",
                nearest(action, mapped),
                warning=not looks_like(action, mapped - actions.keys()),
                key=True,
            )
            for action in actions
            if action not in mapped
        )


def _asked_for(
    entries: Sequence[Tool], file: _ManifestFile, governance: _GovernanceFile | None, *, doubtful: bool
) -> Iterator[tuple[Tool, Finding]]:
    """Yield what only some ask for: an enforcement point has no use for doubts, and few files demand clauses."""
    if governance is not None and governance.clauses:
        from pdp.manifest.rules.lint import clause_findings  # noqa: PLC0415

        yield from clause_findings(entries, governance.clauses, file.pinned, file.ontology)
    if doubtful:
        from pdp.manifest.rules.doubts import doubts  # noqa: PLC0415

        yield from doubts(entries)


def _unaccepted(findings: Iterable[Finding], accepted: Mapping[NotATool, str]) -> Iterator[Finding]:
    """Yield the findings that the governance file does not accept for the tool."""
    return (finding for finding in findings if finding.rule not in accepted)


def _check_programs(file: _ManifestFile, governance: _GovernanceFile | None) -> None:
    """Find the command lines that the governance file does not allow; one that is faulty itself allows nothing yet."""
    if governance is not None and any(not fault.warning for fault in governance.faults):
        return
    programs = governance.programs if governance else {}
    for entry in file.entries:
        if entry.tool is not None and entry.tool.type == "cli" and entry.tool.cli is not None:
            file.add_findings(program_findings(entry.tool.cli, programs.get(entry.tool.cli.argv[0])), entry.where)


# A field is the governance file's where that states it, and has made it what it is. Where the manifest's class is its
# pattern's, one that disagrees is the governance file's.
def _is_governed(path: Path, tool: DeclaredTool, rules: ActionRules, effective: Tool) -> bool:
    field, name = str(path[0]), path[-1]
    if field == "effect_class" and tool.pattern is not None:
        return tool.effect_class == PATTERN_EFFECTS[tool.pattern]
    stated = getattr(rules, field, None) if field in ActionRules.model_fields else None
    if isinstance(stated, tuple):
        return name in stated and name not in (getattr(tool, field) or ())
    return stated is not None and getattr(tool, field) != getattr(effective, field)


def _read_entry(
    record: Any, expansion: tuple[Any, list[Finding]], base: Path, definitions: Mapping[str, Any], file: FaultyFile
) -> _Entry:
    """Read one tool entry, adding its faults and warnings to `file`.

    Args:
        record: the entry as the file states it.
        expansion: the entry without short forms, and what is wrong with those.
        base: where it stands.
        definitions: the `$defs` of the file.
        file: the file that it stands in.
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
            whole, faults = read_schema(stated, definitions, (field,), root_object=field == "schema")
            schemas["schema_" if field == "schema" else field] = whole
            sound = sound and all(fault.warning for fault in faults)
            file.add_findings(faults, where)
    if sound:
        tool = tool.model_copy(update=schemas)
    if tool.pattern and tool.effect_class is None and "effect_class" not in unusable:
        tool = tool.model_copy(update={"effect_class": PATTERN_EFFECTS[tool.pattern]})
    roots = path_roots(tool) if sound else None
    # An answer whose schema was faulty is left out, and may well have had the shape.
    if sound and "result_schema" not in unusable:
        file.add_findings(shape_findings(tool), where)
    file.add_findings(tool_findings(tool, unusable, roots), where)
    return _Entry(tool, unusable, where, roots)
