"""What is not a tool (tool pattern library, 9.4), refused when a manifest is loaded; docs/patterns.md has the rules.

When is a commit staged? `commit-high` is, when each of its calls needs a person's approval: the STEP_UP stages the
action, and the grant commits it. One that is excused from approval (`unless_within_limits: true`) has to be named by
`commits` of a tool of pattern action-staging instead, and pdp/patterns runs it only with what such a tool has staged.

The fifth rule, no state across runs in a tool, is kept at run time: caches and pins belong to a run (pdp/patterns).
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

# What the shapes themselves leave open: the payload is the arguments of the tool that commits it, which types them.
_SHAPED: Final = {Pattern.ACTION_STAGING: frozenset(("action.payload",))}
_NAMING: Final = frozenset((
    "$ref", "additionalProperties", "patternProperties", "properties", "unevaluatedProperties",
))  # fmt: skip
# Whatever items these admit, `unevaluatedItems` is not about them.
_EVALUATING: Final = BRANCHES | {"contains", "dependentSchemas", "if"}
_DIRECT: Final = frozenset(("database", "db", "internet", "network", "sql"))
_DIRECT_PROGRAMS: Final = frozenset((
    "curl", "ftp", "mongosh", "mysql", "nc", "ncat", "netcat", "psql", "redis-cli", "rsync", "scp", "sftp", "socat",
    "sqlite3", "sqlcmd", "sqlplus", "ssh", "telnet", "wget",
))  # fmt: skip


def forbidden_findings(entry: Tool, staged: Iterable[str], *, sound: bool, decided: bool) -> list[Finding]:
    """Return what an effective entry, in its manifest, is not allowed to be, but for what is accepted.

    `staged`: as of `staged_commits`. `sound`: its schemas stand on their own and have no fault; otherwise nothing is
    untyped. `decided`: all is known that says what it does; otherwise only what may be anything is found.
    """
    changes = decided and says_it_changes(entry)
    found = [*_untyped(entry, changes=changes)] if sound else []
    if decided:
        found += [*_other_class(entry), *_direct_access(entry), *_unstaged(entry, staged)]
    if changes and sound:
        found += _free_text(entry)
    return [finding for finding in found if finding.rule not in (entry.accepts or ())]


def _refused(path: Path, rule: NotATool, message: str, hint: str) -> Finding:
    return Finding(path, f"{message} ({rule})", hint, rule=rule)


def staged_commits(tools: Iterable[DeclaredTool]) -> frozenset[str]:
    """Return the tools that a tool of pattern action-staging names in `commits`."""
    return frozenset(name for tool in tools if tool.pattern is Pattern.ACTION_STAGING for name in tool.commits or ())


def _other_class(entry: Tool) -> Iterator[Finding]:
    if entry.pattern is not None and entry.effect_class != PATTERN_EFFECTS[entry.pattern]:
        yield Finding(
            ("effect_class",),
            f"effect class {entry.effect_class} disagrees with pattern {entry.pattern}, which is "
            f"{PATTERN_EFFECTS[entry.pattern]}",
            "leave `effect_class` out, or name another pattern",
        )


def _untyped(entry: Tool, *, changes: bool) -> Iterator[Finding]:
    """Yield what may be anything; of a tool that changes something also lists and objects that do not say of what.

    The candidate of a validation may be anything: its rule pack says what it has to be (pattern 3). A result is open to
    members that it does not name, whether or not it says so.
    """
    shaped = frozenset[str]() if entry.pattern is None else _SHAPED.get(entry.pattern, frozenset())
    for path, node in _parts(walk(entry.schema_)):
        left_open = _is_unstated if path else _has_unread_members
        if path and _is_anything(node):
            if entry.pattern is Pattern.VALIDATION and re.split(r"\.|\[\]", path)[0] == "candidate":
                continue
            message, hint = f"argument {shown_name(path)} may be anything", "state its `type`"
        elif changes and path not in shaped and any(map(left_open, node.alternatives)):
            message = f"argument {shown_name(path)} of a tool with effects may hold anything"
            hint = "state `items` of a list; of an object `properties`, or `additionalProperties` with a type or false"
            if not path:  # the arguments themselves are closed
                message = (
                    "a branch too deep to be read, or one of too many, may name any argument of a tool with effects"
                )
                hint = "nest less, or state fewer alternatives"
        else:
            continue
        yield _refused(member_place(entry.schema_, "schema", path), NotATool.UNTYPED, message, hint)
    if entry.result_schema is None:
        return
    for path, node in _parts(walk(entry.result_schema), unnamed=False):
        if _is_anything(node):
            message = f"result {shown_name(path)} may be anything" if path else "the result may be anything"
            place = member_place(entry.result_schema, "result_schema", path)
            yield _refused(place, NotATool.UNTYPED, message, "state its `type`")


def _free_text(entry: Tool) -> Iterator[Finding]:
    arguments = argument_schemas(entry.schema_)
    if len(arguments) != 1:
        return
    from pdp.manifest.rules.texts import LONGEST_NAME, is_free_text  # noqa: PLC0415 - few tools take one argument

    ((name, schema),) = arguments.items()
    if is_free_text(schema):
        yield _refused(
            member_place(entry.schema_, "schema", name),
            NotATool.FREE_TEXT,
            f"argument {shown_name(name)} is the only one of a tool with effects, and any text",
            f"state further arguments, `enum`, `pattern`, `format`, or a `maxLength` of at most {LONGEST_NAME}",
        )


def _direct_access(entry: Tool) -> Iterator[Finding]:
    if entry.effect_class is None:
        how = "without an effect class"
        hint = "declare `effect_class`, here or in the governance file; or leave it to a tool that has one"
    elif entry.effect_class is EffectClass.PURE:
        how = "by a tool that only computes"
        hint = "declare the effect class that it has; what a conversion needs is pinned when the run starts"
    else:
        return
    for at, capability in enumerate(entry.safety.requires if entry.safety else ()):
        if capability.lower().partition(".")[0].partition(":")[0] in _DIRECT:
            path = ("safety", "requires", at)
            yield _refused(path, NotATool.DIRECT_ACCESS, f"{capability} is reached {how}", hint)
    program = pathlib.PurePath(entry.cli.argv[0]).name if entry.cli else ""
    if program in _DIRECT_PROGRAMS:
        message = f"what {program} connects to is reached {how}"
        yield _refused(("cli", "argv", 0), NotATool.DIRECT_ACCESS, message, hint)


def _unstaged(entry: Tool, staged: Iterable[str]) -> Iterator[Finding]:
    side_effects = entry.safety.side_effects if entry.safety else None
    # Of the classes with effects only commit-high touches what is external (9.2).
    if entry.effect_class in (None, EffectClass.STAGE, EffectClass.COMMIT_LOW) and side_effects == "external":
        message = "external side effects without an effect class: nothing stages them"
        if entry.effect_class is not None:
            message = f"{entry.effect_class} touches what is internal alone, and this has external side effects"
        hint = "declare `effect_class: commit-high`, here or in the governance file"
        yield _refused(("safety", "side_effects"), NotATool.UNSTAGED_COMMIT, message, hint)
    excused = entry.effect_class is EffectClass.COMMIT_HIGH and entry.approval.unless_within_limits
    if excused and entry.name not in staged:
        yield _refused(
            ("name",),
            NotATool.UNSTAGED_COMMIT,
            f"{shown_name(entry.name)} commits without approval within limits, and nothing stages it",
            "name it in `commits` of a tool of pattern action-staging, or leave `unless_within_limits` out",
        )


def _parts(root: SchemaNode, *, unnamed: bool = True) -> Iterator[tuple[str, SchemaNode]]:
    """Yield the schema and all in it by dotted path, the outermost first; what stands in a definition at one path.

    `unnamed`: members without a name as well.
    """
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
            if form.types is None or id(form) in read:  # it may be anything or is a constant; or by another reference
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


def _is_anything(node: SchemaNode) -> bool:
    """Whether an alternative may be anything, or each type is admitted by one."""
    typed = [form.types for form in node.alternatives if form.values is None]
    kinds = {"number" if kind == "integer" else kind for types in typed for kind in types or EVERY_TYPE}
    return kinds >= EVERY_TYPE


def _is_unstated(form: Alternative) -> bool:
    """Whether it is a list or an object of anything, because it does not say of what."""
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
    """Whether a branch that is too deep, or one of too many, may name members."""
    return "additionalProperties" not in form.rest and any(
        not part.keys().isdisjoint(_NAMING)
        for key in form.rest.keys() & BRANCHES
        for stated in form.rest[key]
        for _, part in subschemas({key: stated})
    )
