"""Locations of the rules behind reason codes. The locations are read from METADATA comments, so reports need no OPA.

Text that does not have the format in docs/how-to/write-a-concern.md is skipped.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import yaml

from pdp.opa.modules import Module

PARTS: Final = ("deny", "step_up", "allow", "obligations")  # findings of concerns, by their weight in a decision

_PACKAGE: Final = re.compile(r"package\s+([A-Za-z_][\w.]*)")
_NAME: Final = re.compile(r"(?:default\s+)?([A-Za-z_]\w*)")
_CONTINUES: Final = re.compile(r"(?:[\]})]|else\b|with\b)")
_OBLIGATION: Final = re.compile(r'"id"\s*:\s*"([^"\\]+)"')
_PASSED_ON: Final = re.compile(r"_findings\s+contains\b")
_STRING: Final = re.compile(r'"(?:\\.|[^"\\])*"|`[^`]*`')
# The name under which findings of the decision itself are listed, beside those of concerns.
_DECISION: Final = "decision"


@dataclass(frozen=True, slots=True)
class RuleSite:
    """A rule that defines findings. `code` is its reason code, or None if its METADATA has none.

    `part` is one of `PARTS`; it is `step_up` for a code that a concern collects and passes on. Rules of the decision
    itself have the concern `decision`, and only deny. `file` is the author's file, `module` its path in the bundle.
    `unreached` is why no scenario reaches the rule (`custom.unreached`). `obligation` is the obligation's id.
    """

    code: str | None
    concern: str
    part: str
    file: str
    line: int
    module: str
    title: str
    description: str
    unreached: str | None
    text: str
    obligation: str | None = None

    @property
    def last_line(self) -> int:
        """The number of the rule's last line in its file, from 1."""
        return self.line + self.text.count("\n")


class Statement(NamedTuple):
    """A rule or another statement of a module. `line` is the number of its first line. `metadata` may be empty."""

    line: int
    text: str
    metadata: dict[str, Any]


def rule_sites(modules: Mapping[str, Module]) -> tuple[RuleSite, ...]:
    """Return the rules of concerns that define findings, and the decision's rules with a code, sorted by location.

    Rules of concerns may lack a code, but their findings can still be traced. Invalid YAML in METADATA is ignored.
    """
    paths = sorted(path for path in modules if not path.endswith("_test.rego"))
    return tuple(site for path in paths for site in _sites(path, modules[path]))


def sites_by_code(sites: tuple[RuleSite, ...]) -> dict[str, tuple[RuleSite, ...]]:
    """Return the rules by reason code, in the order of the codes. Rules without a code are left out."""
    codes = sorted({site.code for site in sites if site.code is not None})
    return {code: tuple(site for site in sites if site.code == code) for code in codes}


def _sites(path: str, module: Module) -> Iterator[RuleSite]:
    concern = None
    for statement in statements(module.text):
        package = _PACKAGE.match(statement.text)
        if package:
            concern = _concern(package[1])
            continue
        name = _NAME.match(statement.text)
        if concern is None or name is None:
            continue
        custom = statement.metadata.get("custom")
        stated = custom if isinstance(custom, dict) else {}
        code = _text_of(stated, "code") or None
        part = "deny" if concern == _DECISION and code is not None else name[1]
        if code is not None and _PASSED_ON.match(statement.text):
            part = "step_up"
        if part not in PARTS:
            continue
        obligation = _OBLIGATION.search(statement.text) if part == "obligations" else None
        yield RuleSite(
            code=code,
            concern=concern,
            part=part,
            file=str(module.file),
            line=statement.line,
            module=path,
            title=_text_of(statement.metadata, "title"),
            description=_text_of(statement.metadata, "description"),
            unreached=_text_of(stated, "unreached") or None,
            text=statement.text,
            obligation=obligation[1] if obligation else None,
        )


def _concern(package: str) -> str | None:
    if package == "authz":
        return _DECISION
    root, _, rest = package.partition(".concerns.")
    return rest if root in ("authz", "custom") and rest and "." not in rest else None


def _text_of(metadata: Mapping[str, Any], name: str) -> str:
    value = metadata.get(name)
    return " ".join(value.split()) if isinstance(value, str) else ""


@lru_cache(maxsize=512)
def statements(text: str) -> tuple[Statement, ...]:
    """Split a module into statements. A statement starts in the first column of a line, outside of all brackets."""
    done: list[Statement] = []
    block: list[str] | None = None
    metadata: dict[str, Any] = {}
    current: dict[str, Any] = {}
    start, depth = 0, 0
    lines: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        plain = line.strip()
        # Inside brackets, every source line belongs to the statement that opened them.
        if depth == 0 and line.startswith("#"):
            if plain == "# METADATA":
                block = []
            elif block is not None:
                block.append(line[1:])
            continue
        annotated = block is not None
        if block is not None:
            metadata, block = _metadata(block), None
        begins = depth == 0 and plain and (annotated or not (line[0].isspace() or _CONTINUES.match(line)))
        if begins:
            if start:
                done.append(Statement(start, "\n".join(lines).rstrip(), current))
            start, lines, current = number, [plain if annotated else line], metadata
            metadata = {}
        else:
            lines.append(line)
        depth = max(0, depth + _bracket_balance(line))
    if start:
        done.append(Statement(start, "\n".join(lines).rstrip(), current))
    return tuple(done)


def _bracket_balance(line: str) -> int:
    bare = _STRING.sub("", line).partition("#")[0]
    return sum(map(bare.count, "{[(")) - sum(map(bare.count, "}])"))


def _metadata(block: list[str]) -> dict[str, Any]:
    try:
        value = yaml.safe_load("\n".join(block))
    except (yaml.YAMLError, ValueError, RecursionError):
        # PyYAML raises ValueError for an invalid date. The fault is ignored, because OPA reports it when it compiles.
        return {}
    return value if isinstance(value, dict) else {}
