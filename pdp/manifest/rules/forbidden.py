"""What is not a tool (tool pattern library, 9.4), refused when a manifest is loaded; each message names its rule.

* `not_a_tool.untyped`         an argument or result that may be anything (9.1). A validation's candidate may: its rule
                               pack types it. On a tool with effects also a list or an object of anything.
* `not_a_tool.free_text`       a tool with effects whose one argument is a text without constraint, or holds such texts:
                               "do whatever".
* `not_a_tool.direct_access`   a database or the network reached without an effect class, or by a tool that says that
                               it only computes.
* `not_a_tool.unstaged_commit` an effect on a system of record that no action precedes.

When is a commit staged? `commit-high` is, when each of its calls needs a person's approval: the STEP_UP stages the
action, and the grant commits it. One that is excused from approval (`unless_within_limits: true`) has to be named by
`commits` of a tool of pattern action-staging instead, and pdp/patterns runs it only with what such a tool has staged.
`commit-low` touches what is internal alone (tasks, exceptions, notes: 9.2) and needs no staging, but may not state
external side effects. What states no effect class is no commit: its scopes, limits and approvals govern it.

The fifth rule, no state across runs in a tool, is kept at run time: caches and pins belong to a run (pdp/patterns).
"""

from __future__ import annotations

import pathlib
import re
from typing import TYPE_CHECKING, Any, Final

from pdp.documents import shown_name
from pdp.manifest.fields import PATTERN_EFFECTS, EffectClass, Pattern
from pdp.manifest.findings import Finding
from pdp.manifest.schema.openness import (
    LONGEST_NAME,
    is_free_text,
    open_arguments,
    untyped_arguments,
    untyped_result,
)
from pdp.manifest.schema.walk import arguments_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pdp.documents.document import Path
    from pdp.manifest.model import DeclaredTool, Tool

_EFFECTS: Final = frozenset((EffectClass.STAGE, EffectClass.COMMIT_LOW, EffectClass.COMMIT_HIGH))
_CHANGES: Final = ("write", "external")
_DIRECT: Final = frozenset(("database", "db", "internet", "network", "sql"))
_DIRECT_PROGRAMS: Final = frozenset(
    (
        "curl", "ftp", "mongosh", "mysql", "nc", "ncat", "netcat", "psql", "redis-cli", "rsync", "scp", "sftp", "socat",
        "sqlite3", "sqlcmd", "sqlplus", "ssh", "telnet", "wget",
    )
)  # fmt: skip


def forbidden_findings(tool: DeclaredTool) -> Iterator[Finding]:
    """Yield what an entry's schemas leave open; they stand on their own and have no fault."""
    for path in untyped_arguments(tool):
        yield _untyped(tool.schema_, "schema", path, "argument")
    for path in untyped_result(tool):
        yield _untyped(tool.result_schema or {}, "result_schema", path, "result")


def _untyped(schema: dict[str, Any], field: str, path: str, what: str) -> Finding:
    name = f"{what} {shown_name(path)}" if path else f"the {what}"
    message = f"{name} may be anything (not_a_tool.untyped)"
    return Finding(_place(schema, field, path), message, "state its `type`")


def _place(schema: dict[str, Any], field: str, path: str) -> Path:
    top = re.split(r"\.|\[\]", path)[0]
    return (field, "properties", top) if top in schema.get("properties", {}) else (field,)


def forbidden_entry_findings(entry: Tool, staged: Iterable[str]) -> Iterator[Finding]:
    """Yield what an effective entry, in its manifest, is not allowed to be.

    Args:
        entry: manifest and governance merged.
        staged: the tools that some tool of pattern action-staging names in `commits`.
    """
    yield from _other_class(entry)
    if _has_effects(entry):
        yield from _open(entry)
        yield from _free_text(entry)
    yield from _direct_access(entry)
    yield from _unstaged(entry, staged)


def staged_commits(tools: Iterable[DeclaredTool]) -> frozenset[str]:
    """Return the tools that a tool of pattern action-staging names in `commits`."""
    return frozenset(
        name for tool in tools if tool.pattern is Pattern.ACTION_STAGING for name in tool.commits or ()
    )  # fmt: skip


def _other_class(entry: Tool) -> Iterator[Finding]:
    if entry.pattern is not None and entry.effect_class != PATTERN_EFFECTS[entry.pattern]:
        yield Finding(
            ("effect_class",),
            f"effect class {entry.effect_class} disagrees with pattern {entry.pattern} of the manifest, which is "
            f"{PATTERN_EFFECTS[entry.pattern]}",
            "leave it out of the governance file, or the pattern out of the manifest",
        )


def _has_effects(entry: Tool) -> bool:
    side_effects = entry.safety.side_effects if entry.safety else None
    return entry.effect_class in _EFFECTS or side_effects in _CHANGES


def _open(entry: Tool) -> Iterator[Finding]:
    for path in open_arguments(entry):
        yield Finding(
            _place(entry.schema_, "schema", path),
            f"argument {shown_name(path)} of a tool with effects may hold anything (not_a_tool.untyped)",
            "state `items` of a list; of an object `properties`, or `additionalProperties` with a type or false",
        )


def _free_text(entry: Tool) -> Iterator[Finding]:
    arguments = arguments_of(entry.schema_)
    if len(arguments) != 1:
        return
    ((name, schema),) = arguments.items()
    if is_free_text(schema):
        yield Finding(
            _place(entry.schema_, "schema", name),
            f"argument {shown_name(name)} is the only one of a tool with effects, and any text (not_a_tool.free_text)",
            f"state further arguments, `enum`, `pattern`, `format`, or a `maxLength` of at most {LONGEST_NAME}",
        )


def _direct_access(entry: Tool) -> Iterator[Finding]:
    for path, what in _reaches(entry):
        if entry.effect_class is None:
            yield Finding(
                path,
                f"{what} is reached without an effect class (not_a_tool.direct_access)",
                "declare `effect_class`, here or in the governance file; or leave it to a tool that has one",
            )
        elif entry.effect_class is EffectClass.PURE:
            yield Finding(
                path,
                f"{what} is reached by a tool that only computes (not_a_tool.direct_access)",
                "declare the effect class that it has; what a conversion needs is pinned when the run starts",
            )


def _reaches(entry: Tool) -> Iterator[tuple[Path, str]]:
    for at, capability in enumerate(entry.safety.requires if entry.safety else ()):
        if capability.lower().partition(".")[0].partition(":")[0] in _DIRECT:
            yield ("safety", "requires", at), capability
    if entry.cli is not None:
        program = pathlib.PurePath(entry.cli.argv[0]).name
        if program in _DIRECT_PROGRAMS:
            yield ("cli", "argv", 0), f"what {program} connects to"


def _unstaged(entry: Tool, staged: Iterable[str]) -> Iterator[Finding]:
    side_effects = entry.safety.side_effects if entry.safety else None
    if entry.effect_class is EffectClass.COMMIT_LOW and side_effects == "external":
        yield Finding(
            ("safety", "side_effects"),
            "commit-low touches what is internal alone, and this has external side effects "
            "(not_a_tool.unstaged_commit)",
            "declare `effect_class: commit-high`",
        )
    excused = entry.effect_class is EffectClass.COMMIT_HIGH and entry.approval.unless_within_limits
    if excused and entry.name not in staged:
        yield Finding(
            ("name",),
            f"{shown_name(entry.name)} commits without approval within limits, and nothing stages it "
            "(not_a_tool.unstaged_commit)",
            "name it in `commits` of a tool of pattern action-staging, or leave `unless_within_limits` out",
        )
