"""Draft a manifest of exposed tools. Each guessed field is as strict as possible and marked with `# review:`."""

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
    "# Draft: review each line marked `review`. Until then every call is denied, also of tools not listed here.\n"
    'manifest_version: "1"\ntools:'
)


_ACCEPTED: Final = (
    "# Draft: review each line. It accepts that a tool breaks a rule: docs/how-to/add-a-tool.md.\nactions:"
)
_RULE: Final = re.compile(r"\((not_a_tool\.\w+)\)")


class DraftManifest(NamedTuple):
    """A drafted manifest. `left_out` lists tools that a manifest cannot describe, each with the reason and a hint.

    `governance` may be empty. `read` maps notes on translated or dropped schema keywords to the names of the tools.
    """

    manifest: str
    tools: list[str]
    left_out: list[tuple[str, str]]
    governance: str
    read: dict[str, list[str]]


def drafted_manifest(tools: Sequence[ExposedTool]) -> DraftManifest:
    """Draft a manifest that loads, but denies every call until a reviewer edits it."""
    times, made, lines, accepted = Counter(tool.name for tool in tools), DraftManifest("", [], [], "", {}), [], ""
    for tool in tools:
        text, accepts = _entry(tool), ""
        fault = tool.fault or ("several tools have this name; rename all but one" if times[tool.name] > 1 else "")
        fault = fault or _fault(text)
        if "not_a_tool" in fault:
            # Without an effect class the entry still loads, and each call needs approval.
            classless = _entry(tool, f"no effect class, because the entry would not load with it: {fault}")
            if not (refused := _fault(classless)):
                text, fault = classless, ""
            elif rules := _RULE.findall(refused):
                reasons = written_value(
                    dict.fromkeys([*_RULE.findall(fault), *rules], "the source gives no further information")
                )
                accepts = f"\n  {written_value(tool.name)}: {{accepts: {reasons}}}"
                fault = _fault(text, _ACCEPTED + accepts)
        if tool.denied:
            lines.append(f"# Not listed, and so denied: {_comment(tool.name, *tool.notes)}\n")
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
    """Return a manifest entry as YAML. Values are written as JSON, so that a tool's text cannot add fields."""
    guesses = [guess for guess in _guesses(tool) if not classless or guess[0] not in ("effect_class", "safety")]
    lines = [f"- name: {written_value(tool.name)}  # review: {_comment(tool.where, *tool.notes, *classless)}"]
    lines += [f"description: {written_value(tool.description)}"] if tool.description else []
    lines += [f"{name}: {written_value(value)}  # review: {why}" for name, value, why in guesses]
    lines += [f"schema: {written_value(tool.schema, indent=2)}"] if tool.schema is not None else []
    return "\n".join(lines).replace("\n", "\n  ") + "\n"


def _guesses(tool: ExposedTool) -> Iterator[tuple[str, Any, str]]:
    """Yield guessed fields, each with value and reason. A tool's own hints decide only the fields about effects."""
    effect, stays = EffectClass.COMMIT_HIGH, tool.open_world is False
    if tool.reads and not tool.destroys:
        effect = EffectClass.READ_INTERNAL if stays else EffectClass.READ_EXTERNAL
    elif tool.destroys is False and stays:
        effect = EffectClass.COMMIT_LOW
    is_least = effect is EffectClass.COMMIT_HIGH
    yield (
        "effect_class",
        effect,
        "assumed, because the source does not claim a smaller effect" if is_least else "claimed by the tool; verify it",
    )
    if is_least:
        yield "safety", {"side_effects": "external"}, "assumed; the source does not limit it to internal systems"
        yield "destructive", True, "assumed; the source does not state that it can be undone"
    if effect not in READ_CLASSES:
        yield "idempotency", {"required": True}, "a call runs once; the caller sends the key"
    yield "risk_tier", "high", "each call needs approval"
    yield "approval", {"approvers": ["tools.approver"]}, "a new role; give it to approvers"
    yield "scopes", [f"tools.{tool.name}"], "a new scope; grant it to callers"
    yield "purposes", [], "none, so every call is denied; list the allowed purposes"
    if tool.schema is None:
        yield "schema", {"type": "object"}, "the source declares no arguments, so every argument is rejected"


def _comment(*texts: str) -> str:
    return "; ".join(written_value(text)[1:-1] for text in texts)


def _load(manifest: str, governance: str) -> None:
    rules = (governance or "actions: {}").encode()
    load_both("the draft", "its rules", programs=False, manifest_text=manifest.encode(), governance_text=rules)


def _fault(entry: str, governance: str = "") -> str:
    try:
        _load(f"{_HEAD}\n{entry}", governance)
    except FileFaultsError as error:
        return "; ".join([*dict.fromkeys(fault.message for fault in error.faults), error.faults[0].hint or ""])
    except PdpError as error:
        return f"{error.message}; {error.hint}"
    return ""
