"""Where each finding's rule stands, read from METADATA comments without OPA.

Whoever reports on a policy needs the rule behind a reason code, with its title and its place, also where OPA is not
installed. So this reads text alone, and passes over whatever is not in the form of docs/policies.md.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import yaml

from pdp.workbench.opa.modules import Module

PARTS: Final = ("deny", "step_up", "allow", "obligations")
"""What a concern may find, in the order in which a decision weighs it."""

_PACKAGE: Final = re.compile(r"package\s+([A-Za-z_][\w.]*)")
_NAME: Final = re.compile(r"(?:default\s+)?([A-Za-z_]\w*)")
_CONTINUES: Final = re.compile(r"(?:[\]})]|else\b|with\b)")
_OBLIGATION: Final = re.compile(r'"id"\s*:\s*"([^"\\]+)"')
_PASSED_ON: Final = re.compile(r"_findings\s+contains\b")
_STRING: Final = re.compile(r'"(?:\\.|[^"\\])*"|`[^`]*`')
# The concern of what the decision finds itself.
_DECISION: Final = "decision"


@dataclass(frozen=True, slots=True)
class RuleSite:
    """One rule that finds something.

    Attributes:
        code: its reason code, `<concern>.<finding>`; None when its METADATA states none.
        concern: its name; `decision` for the findings of the decision itself.
        part: what it finds: one of `PARTS`; the decision itself only denies. What a concern collects under a code, and
            then passes on, counts as a STEP_UP.
        file: the author's file; line: of the rule's head, from 1.
        module: the module's path in the bundle.
        title, description: as METADATA states them, or empty.
        unreached: why no scenario reaches it (`custom.unreached`), or None.
        text: the rule as it is written, over all its lines.
        obligation: the id of the obligation that it makes, if it makes one and names it.
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
        """The last line that the rule takes, from 1."""
        return self.line + self.text.count("\n")


class Statement(NamedTuple):
    """A rule, or another statement of a module: its first line, its text, and the METADATA above it, or nothing."""

    line: int
    text: str
    metadata: dict[str, Any]


def rule_sites(modules: Mapping[str, Module]) -> tuple[RuleSite, ...]:
    """Return every rule of a concern that finds something, and every rule of the decision that has a code.

    They stand in the order of the modules' paths and of their lines. Rules without a code are among them, so that a
    finding without a name can be traced to its place. A METADATA block that is no YAML counts as none.
    """
    paths = sorted(path for path in modules if not path.endswith("_test.rego"))
    return tuple(site for path in paths for site in _sites(path, modules[path]))


def sites_by_code(sites: tuple[RuleSite, ...]) -> dict[str, tuple[RuleSite, ...]]:
    """Return the sites by their code, those without one left out; codes sorted."""
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
    """Split a module into its statements. A statement begins in the first column, outside of all brackets."""
    done: list[Statement] = []
    block: list[str] | None = None
    metadata: dict[str, Any] = {}
    held: dict[str, Any] = {}
    start, depth = 0, 0
    lines: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        plain = line.strip()
        # In brackets, a line belongs to its statement, whatever it looks like.
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
                done.append(Statement(start, "\n".join(lines).rstrip(), held))
            start, lines, held = number, [plain if annotated else line], metadata
            metadata = {}
        else:
            lines.append(line)
        depth = max(0, depth + _opened(line))
    if start:
        done.append(Statement(start, "\n".join(lines).rstrip(), held))
    return tuple(done)


def _opened(line: str) -> int:
    bare = _STRING.sub("", line).partition("#")[0]
    return sum(map(bare.count, "{[(")) - sum(map(bare.count, "}])"))


def _metadata(block: list[str]) -> dict[str, Any]:
    try:
        value = yaml.safe_load("\n".join(block))
    except (yaml.YAMLError, ValueError, RecursionError):
        # Invalid dates are a ValueError of PyYAML's; whatever it is, OPA complains about it when it compiles.
        return {}
    return value if isinstance(value, dict) else {}
