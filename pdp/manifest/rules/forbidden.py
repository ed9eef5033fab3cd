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
from typing import Any, Final

from pdp.documents import shown_name
from pdp.documents.document import Path
from pdp.documents.validation import Finding
from pdp.manifest.fields import PATTERN_EFFECTS, EffectClass, NotATool, Pattern
from pdp.manifest.model import DeclaredTool, Tool
from pdp.manifest.rules.rules import says_it_changes
from pdp.manifest.schema.compile import compile_schema
from pdp.manifest.schema.faults import member_place
from pdp.manifest.schema.references import subschemas
from pdp.manifest.schema.walk import BRANCHES, Alternative, SchemaNode, argument_schemas, walk

LONGEST_NAME: Final = 200
"""A text that may be no longer than this is a name or a number of something, and no prompt."""

_EVERY: Final = frozenset(("array", "boolean", "null", "number", "object", "string"))
# What the shapes themselves leave open: the payload is the arguments of the tool that commits it, which types them.
_SHAPED: Final = {Pattern.ACTION_STAGING: frozenset(("action.payload",))}
_SENTENCES: Final = tuple(
    text + more
    for text in ("do whatever it takes", "Do whatever it takes!", "/do whatever it takes", "DO WHATEVER IT TAKES")
    for more in ("", " and then say that nobody asked for it", " (all of it);\nnow, at once")
)
# With a domain of each length, for a text whose length is stated.
_ADDRESSES: Final = tuple(
    form(f"{start}{domain}vil.com{end}")
    for start, end in (("eve@", ""), ("https://", "/x"), ("", "/x"))
    for domain in ("e" * length for length in range(1, 64))
    for form in (str, str.upper)
)
# A wildcard that repeats without bound, or until one certain character.
_WILD: Final = re.compile(r"(?<!\\)(?:\.|\[\^[^\]]{1,4}\]|\\[SWDP]|\[\\[sS]\\[sS]\])\)*(?:[*+]|\{\d+,\})")
_GROUPS: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]")
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
    ((name, schema),) = arguments.items()
    if _is_free_text(schema):
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
    kinds = {"number" if kind == "integer" else kind for types in typed for kind in types or _EVERY}
    return kinds >= _EVERY


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


def _is_free_text(node: SchemaNode) -> bool:
    """Return whether an argument, or the one member or each item of it, may be any text.

    Constants are none, nor is a text that is short, of a format, or of a pattern; but a pattern or a format that lets a
    sentence through says nothing.
    """
    pending, seen = [node], set[int]()
    while pending:
        for form in pending.pop().alternatives:
            if id(form) in seen or form.values is not None:
                continue
            seen.add(id(form))
            kinds = _EVERY if form.types is None else form.types
            short = any(
                isinstance(most, int | float) and most <= LONGEST_NAME for most in form.rest.get("maxLength", ())
            )
            if "string" in kinds and not short and not bounds_text(form):
                return True
            inner = [form.items] if "array" in kinds else []
            if "object" in kinds:
                # Of an object with several members none says by itself what the tool does.
                named = form.properties or form.conditional
                inner += [form.members, *(named.values() if len(named) == 1 else ())]
            pending += filter(None, inner)
    return False


def bounds_text(form: Alternative) -> bool:
    """Whether a format or a pattern says what a text may be: no sentence passes."""
    constraints = [{key: value} for key in ("format", "pattern") for value in form.rest.get(key, ())]
    return not all(_admits_sentences(constraint) for constraint in constraints)


def admits_address(form: Alternative) -> bool:
    """Whether a text that a format or a pattern bounds may be a mail address or a link, of whatever domain."""
    bounds = ("format", "pattern", "minLength", "maxLength")
    constraints = [{key: value} for key in bounds for value in form.rest.get(key, ())]
    text = compile_schema({"type": "string", "allOf": constraints})
    return any(map(text.is_valid, _ADDRESSES))


def _admits_sentences(constraint: dict[str, Any]) -> bool:
    pattern = constraint.get("pattern")
    if pattern is not None and (not _is_anchored(pattern) or _WILD.search(pattern)):
        return True
    text = compile_schema({"type": "string", **constraint})
    return any(text.is_valid(sentence) for sentence in _SENTENCES)


def _is_anchored(pattern: str) -> bool:
    """Whether a pattern is about the whole text, and not about some part of it."""
    if not pattern.startswith(("^", r"\A")) or not pattern.endswith(("$", r"\z")) or pattern.endswith(r"\$"):
        return False
    deep = 0
    for mark in _GROUPS.findall(pattern):
        deep += {"(": 1, ")": -1}.get(mark, 0)
        if mark == "|" and deep == 0:  # `^a|b$`: two patterns, each open at one end
            return False
    return True
