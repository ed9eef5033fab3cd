"""A first manifest of what a source exposes: strictest first, each guess in a line that is marked for review."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from pdp.documents import written_value
from pdp.errors import FileFaultsError, PdpError
from pdp.manifest.fields import READ_CLASSES, EffectClass
from pdp.manifest.load import load_both
from pdp.scan.exposed import ExposedTool

_HEAD: Final = (
    "# Drafted: review each line that says so. As it stands every call is denied, as is what is not here.\n"
    'manifest_version: "1"\ntools:'
)


_ACCEPTED: Final = (
    "# Drafted: review each line. What these tools break of docs/patterns.md, and why it is accepted.\nactions:"
)
_RULE: Final = re.compile(r"\((not_a_tool\.\w+)\)")


class DraftManifest(NamedTuple):
    """The text of a manifest and the names of its tools.

    `left_out`: what no manifest can have, with the reason and what to do. `governance`: the text of the governance file
    that the manifest needs to load; empty where it needs none. `read`: what of schemas was read in another way or
    dropped, and the tools.
    """

    manifest: str
    tools: list[str]
    left_out: list[tuple[str, str]]
    governance: str
    read: dict[str, list[str]]


def drafted_manifest(tools: Sequence[ExposedTool]) -> DraftManifest:
    """Return a manifest that loads, and by which no call is allowed before somebody has changed it."""
    times, made, lines, accepted = Counter(tool.name for tool in tools), DraftManifest("", [], [], "", {}), [], ""
    for tool in tools:
        text, accepts = _entry(tool), ""
        fault = tool.fault or ("more than one tool has this name; rename all but one" if times[tool.name] > 1 else "")
        fault = fault or _fault(text)
        if "not_a_tool" in fault:
            # Without a class it waits for a person all the same.
            classless = _entry(tool, f"without an effect class, as it would not load: {fault}")
            if not (refused := _fault(classless)):
                text, fault = classless, ""
            elif rules := _RULE.findall(refused):
                reasons = written_value(dict.fromkeys([*_RULE.findall(fault), *rules], "its source says no more"))
                accepts = f"\n  {written_value(tool.name)}: {{accepts: {reasons}}}"
                fault = _fault(text, _ACCEPTED + accepts)
        if tool.denied:
            lines.append(f"# Not here, and so denied: {_comment(tool.name, *tool.notes)}\n")
        elif fault:
            made.left_out.append((tool.name, fault))
            lines.append(f"# Left out: {_comment(tool.name, fault)}\n")
        else:
            made.tools.append(tool.name)
            lines.append(text)
            accepted += accepts
            for note in tool.read:
                made.read.setdefault(note, []).append(tool.name)
    text = f"{_HEAD}{'' if made.tools else ' []'}\n{''.join(lines)}"
    made = made._replace(manifest=text, governance=f"{_ACCEPTED}{accepted}\n" if accepted else "")
    _load(text, made.governance)
    return made


def _entry(tool: ExposedTool, *classless: str) -> str:
    """Return an entry of a manifest as YAML: JSON in values, so that no text of a tool's ends one."""
    guesses = [each for each in _guesses(tool) if not classless or each[0] not in ("effect_class", "safety")]
    lines = [f"- name: {written_value(tool.name)}  # review: {_comment(tool.where, *tool.notes, *classless)}"]
    lines += [f"description: {written_value(tool.description)}"] if tool.description else []
    lines += [f"{name}: {written_value(value)}  # review: {why}" for name, value, why in guesses]
    lines += [f"schema: {written_value(tool.schema, indent=2)}"] if tool.schema is not None else []
    return "\n".join(lines).replace("\n", "\n  ") + "\n"


def _guesses(tool: ExposedTool) -> Iterator[tuple[str, Any, str]]:
    """Yield fields with their values, and why: what a tool says of itself makes its class a lower guess, no more."""
    effect, stays = EffectClass.COMMIT_HIGH, tool.open_world is False
    if tool.reads and not tool.destroys:
        effect = EffectClass.READ_INTERNAL if stays else EffectClass.READ_EXTERNAL
    elif tool.destroys is False and stays:
        effect = EffectClass.COMMIT_LOW
    is_least = effect is EffectClass.COMMIT_HIGH
    yield "effect_class", effect, "nothing says that it does less" if is_least else "it says so of itself: look"
    if is_least:
        yield "safety", {"side_effects": "external"}, "nothing says that it stays inside"
        yield "destructive", True, "nothing says that it can be taken back"
    if effect not in READ_CLASSES:
        yield "idempotency", {"required": True}, "so that a call runs once; who calls states the key"
    yield "risk_tier", "high", "each call waits for a person"
    yield "approval", {"approvers": ["tools.approver"]}, "a role that nobody has yet"
    yield "scopes", [f"tools.{tool.name}"], "a scope of its own, that nobody has yet"
    yield "purposes", [], "none, so that every call is denied; name those that it serves"
    if tool.schema is None:
        yield "schema", {"type": "object"}, "nothing says what it takes, so that no argument passes"


def _comment(*texts: str) -> str:
    return "; ".join(written_value(text)[1:-1] for text in texts)


def _load(manifest: str, governance: str) -> None:
    rules = (governance or "actions: {}").encode()
    load_both("the draft", "its rules", programs=False, manifest_text=manifest.encode(), governance_text=rules)


def _fault(entry: str, governance: str = "") -> str:
    """Return why no manifest can have an entry, and what to do; empty: one can."""
    try:
        _load(f"{_HEAD}\n{entry}", governance)
    except FileFaultsError as error:
        return "; ".join([*dict.fromkeys(fault.message for fault in error.faults), error.faults[0].hint or ""])
    except PdpError as error:
        return f"{error.message}; {error.hint}"
    return ""
