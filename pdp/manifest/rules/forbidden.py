"""Reject entries that are not tools (tool pattern library, 9.4) when a manifest loads, unless governance accepts them.

* `not_a_tool.untyped`: an argument or result may have any content. With effects, also a list or an object of anything.
* `not_a_tool.free_text`: the only argument of a tool with effects is a text without `enum`, a short `maxLength`, or a
  `pattern` or `format` that excludes sentences; or a list or an object of such texts.
* `not_a_tool.direct_access`: `safety.requires` names the network, a database or a program such as `curl`, and the tool
  has no effect class or the class `pure`.
* `not_a_tool.unstaged_commit`: a tool of class `commit-high` runs without approval, and no tool stages it.

Functions are not inspected: `requires` is the author's claim.

A commit must be staged: each call needs an approval, or a tool of pattern action-staging names the tool in `commits`,
so that pdp/patterns runs the tool only with staged actions. pdp/patterns also enforces that runs share no state.
"""

import pathlib
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from pdp.documents import shown_name
from pdp.documents.document import Path
from pdp.documents.validation import Finding
from pdp.manifest.fields import PATTERN_EFFECTS, EffectClass, NotATool, Pattern
from pdp.manifest.model import DeclaredTool, Tool
from pdp.manifest.rules.rules import says_it_changes
from pdp.manifest.schema.faults import member_place
from pdp.manifest.schema.references import subschemas
from pdp.manifest.schema.walk import BRANCHES, EVERY_TYPE, Alternative, SchemaNode, argument_schemas, walk

# Arguments that may have any content because the pattern requires it. The payload holds the arguments of the committing
# tool, whose schema describes them.
_SHAPED: Final = {Pattern.ACTION_STAGING: frozenset(("action.payload",))}
_NAMING: Final = frozenset((
    "$ref", "additionalProperties", "patternProperties", "properties", "unevaluatedProperties",
))  # fmt: skip
# `unevaluatedItems` does not apply to items that these keywords evaluate.
_EVALUATING: Final = BRANCHES | {"contains", "dependentSchemas", "if"}
_DIRECT: Final = frozenset(("database", "db", "internet", "network", "sql"))
_DIRECT_PROGRAMS: Final = frozenset((
    "curl", "ftp", "mongosh", "mysql", "nc", "ncat", "netcat", "psql", "redis-cli", "rsync", "scp", "sftp", "socat",
    "sqlite3", "sqlcmd", "sqlplus", "ssh", "telnet", "wget",
))  # fmt: skip


def forbidden_findings(entry: Tool, staged: Iterable[str], *, sound: bool, decided: bool) -> list[Finding]:
    """Return the reasons why an effective entry is not a tool, without those that the governance file `accepts`.

    Untyped arguments are reported only if the schemas are valid (`sound`), and other reasons only if the fields about
    the tool's effect are valid (`decided`). `staged` is the result of `staged_commits`.
    """
    changes = decided and says_it_changes(entry)
    found = [*_untyped(entry, changes=changes)] if sound else []
    if decided:
        found += [*_class_findings(entry), *_direct_access(entry), *_unstaged(entry, staged)]
    if changes and sound:
        found += _free_text(entry)
    return [finding for finding in found if finding.rule not in (entry.accepts or ())]


def _finding(path: Path, rule: NotATool, message: str, hint: str) -> Finding:
    return Finding(path, f"{message} ({rule})", hint, rule=rule)


def staged_commits(tools: Iterable[DeclaredTool]) -> frozenset[str]:
    """Return the names of all tools that a tool of pattern action-staging names in `commits`."""
    return frozenset(name for tool in tools if tool.pattern is Pattern.ACTION_STAGING for name in tool.commits or ())


def _class_findings(entry: Tool) -> Iterator[Finding]:
    if entry.pattern is not None and entry.effect_class != PATTERN_EFFECTS[entry.pattern]:
        yield Finding(
            ("effect_class",),
            f"effect class {entry.effect_class} contradicts pattern {entry.pattern}, which requires "
            f"{PATTERN_EFFECTS[entry.pattern]}",
            "leave `effect_class` out, or name another pattern",
        )


def _untyped(entry: Tool, *, changes: bool) -> Iterator[Finding]:
    """Yield untyped arguments and results; for a tool with effects, also lists and objects with untyped content.

    In pattern validation, `candidate` needs no type, because the rule pack of the tool checks the candidate.
    """
    shaped = frozenset[str]() if entry.pattern is None else _SHAPED.get(entry.pattern, frozenset())
    for path, node in _parts(walk(entry.schema_)):
        left_open = _is_unstated if path else _has_unread_members
        if path and _has_any_type(node):
            if entry.pattern is Pattern.VALIDATION and re.split(r"\.|\[\]", path)[0] == "candidate":
                continue
            message, hint = f"argument {shown_name(path)} may have any type", "state its `type`"
        elif changes and path not in shaped and any(map(left_open, node.alternatives)):
            message = f"argument {shown_name(path)} of a tool with effects may have any content"
            hint = (
                "for a list, state `items`; for an object `properties`, or `additionalProperties` with a type or false"
            )
            if not path:  # The top-level object with all arguments is always closed, so the fault is in its branches.
                message = (
                    "the schema has too many or too deep branches, so one may name any argument of a tool with effects"
                )
                hint = "nest the schema less deeply, or use fewer alternatives"
        else:
            continue
        yield _finding(member_place(entry.schema_, "schema", path), NotATool.UNTYPED, message, hint)
    if entry.result_schema is None:
        return
    for path, node in _parts(walk(entry.result_schema), unnamed=False):
        if _has_any_type(node):
            message = f"result {shown_name(path)} may have any type" if path else "the result may have any type"
            place = member_place(entry.result_schema, "result_schema", path)
            yield _finding(place, NotATool.UNTYPED, message, "state its `type`")


def _free_text(entry: Tool) -> Iterator[Finding]:
    arguments = argument_schemas(entry.schema_)
    if len(arguments) != 1:
        return
    from pdp.manifest.rules.texts import LONGEST_NAME, is_free_text  # noqa: PLC0415 - only needed for a single argument

    ((name, schema),) = arguments.items()
    if is_free_text(schema):
        yield _finding(
            member_place(entry.schema_, "schema", name),
            NotATool.FREE_TEXT,
            f"the only argument {shown_name(name)} of a tool with effects may be any text",
            f"add arguments, or state `enum`, `pattern`, `format`, or a `maxLength` of at most {LONGEST_NAME}",
        )


def _direct_access(entry: Tool) -> Iterator[Finding]:
    if entry.effect_class is None:
        how = "without an effect class"
        hint = "declare `effect_class`, here or in the governance file"
    elif entry.effect_class is EffectClass.PURE:
        how = "by a tool of class pure"
        hint = "declare the real effect class; the run pins the data that a conversion needs when it starts"
    else:
        return
    for at, capability in enumerate(entry.safety.requires if entry.safety else ()):
        if capability.lower().partition(".")[0].partition(":")[0] in _DIRECT:
            path = ("safety", "requires", at)
            yield _finding(path, NotATool.DIRECT_ACCESS, f"{capability} is accessed {how}", hint)
    program = pathlib.PurePath(entry.cli.argv[0]).name if entry.cli else ""
    if program in _DIRECT_PROGRAMS:
        message = f"{program} accesses a service or database {how}"
        yield _finding(("cli", "argv", 0), NotATool.DIRECT_ACCESS, message, hint)


def _unstaged(entry: Tool, staged: Iterable[str]) -> Iterator[Finding]:
    side_effects = entry.safety.side_effects if entry.safety else None
    # Only tools of the class commit-high may have external side effects (rule 9.2).
    if entry.effect_class in (None, EffectClass.STAGE, EffectClass.COMMIT_LOW) and side_effects == "external":
        message = "the tool has external side effects but no effect class, so they are not staged"
        if entry.effect_class is not None:
            message = f"effect class {entry.effect_class} must not have external side effects"
        hint = "declare `effect_class: commit-high`, here or in the governance file"
        yield _finding(("safety", "side_effects"), NotATool.UNSTAGED_COMMIT, message, hint)
    excused = entry.effect_class is EffectClass.COMMIT_HIGH and entry.approval.unless_within_limits
    if excused and entry.name not in staged:
        yield _finding(
            ("name",),
            NotATool.UNSTAGED_COMMIT,
            f"{shown_name(entry.name)} commits without approval within limits, and no tool stages it",
            "name it in `commits` of a tool of pattern action-staging, or remove `unless_within_limits`",
        )


def _parts(root: SchemaNode, *, unnamed: bool = True) -> Iterator[tuple[str, SchemaNode]]:
    """Yield a schema and its subschemas by dotted path, outermost first. A shared definition is yielded only once."""
    pending = deque((("", root),))
    read: set[int] = set()
    seen: set[tuple[str, SchemaNode]] = set()
    while pending:
        path, node = pending.popleft()
        if (path, node) in seen:
            continue
        seen.add((path, node))
        yield path, node
        for form in node.alternatives:
            # Skip an alternative that allows any type, is a constant, or was already read through another reference.
            if form.types is None or id(form) in read:
                continue
            read.add(id(form))
            if "object" in form.types:
                pending += ((f"{path}.{name}" if path else name, part) for name, part in form.properties.items())
                if unnamed:
                    pending += (
                        (f"{path}.{name}" if path else name, part)
                        for name, part in (*form.conditional.items(), ("*", form.members))
                        if part is not None and name not in form.properties
                    )
            if "array" in form.types and form.items is not None:
                pending.append((f"{path}[]", form.items))


def _has_any_type(node: SchemaNode) -> bool:
    typed = [form.types for form in node.alternatives if form.values is None]
    kinds = {"number" if kind == "integer" else kind for types in typed for kind in types or EVERY_TYPE}
    return kinds >= EVERY_TYPE


def _is_unstated(form: Alternative) -> bool:
    kinds = form.kinds if form.values is None else None
    if kinds is None:
        return False
    stated = form.rest.keys()
    open_items = "unevaluatedItems" not in stated or not stated.isdisjoint(_EVALUATING)
    open_members = not form.properties and stated.isdisjoint(("additionalProperties", "unevaluatedProperties"))
    return ("array" in kinds and "items" not in stated and open_items) or (
        "object" in kinds and (open_members or _has_unread_members(form))
    )


def _has_unread_members(form: Alternative) -> bool:
    return "additionalProperties" not in form.rest and any(
        not part.keys().isdisjoint(_NAMING)
        for key in form.rest.keys() & BRANCHES
        for stated in form.rest[key]
        for _, part in subschemas({key: stated})
    )
