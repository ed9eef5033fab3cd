"""What a source exposes otherwise than the manifest says."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.fields import READ_CLASSES, EffectClass, RiskTier
from pdp.manifest.schema.differences import drift
from pdp.scan.exposed import Exposure

_INSIDE: Final = (EffectClass.PURE, EffectClass.READ_INTERNAL, EffectClass.STAGE, EffectClass.COMMIT_LOW)


class ScanFinding(NamedTuple):
    """One thing, and what to do. `kind`: undeclared, drift, risk, debug; absent is a note. `tool`: empty where none."""

    kind: str
    where: str
    tool: str
    message: str
    hint: str


def findings(exposure: Exposure, manifest: EffectiveManifest) -> Iterator[ScanFinding]:
    """Yield what is not as the manifest, with its governance, says; notes last.

    Of risk, only what a tool says of itself in so many words counts.
    """
    tools = [tool for tool in exposure.tools if not tool.denied]
    times = Counter(tool.name for tool in tools)
    for tool in tools:
        at, entry = (tool.where, tool.name), manifest.tools.get(tool.name)
        if entry is None:
            yield ScanFinding("undeclared", *at, "is not in the manifest", "declare it, or take it out")
            continue
        if tool.fault:
            yield ScanFinding("drift", *at, f"cannot be compared: {tool.fault}", "correct the tool, or take it out")
        if times[tool.name] > 1:
            yield ScanFinding("undeclared", *at, "is there more than once", "rename all but one")
        for line in drift(entry.schema_, tool.schema) if tool.schema is not None else ():
            yield ScanFinding("drift", *at, line, "correct the manifest's schema, or the tool")
        is_read, inside = entry.effect_class in READ_CLASSES, entry.effect_class in _INSIDE
        says = ["changes something"] * (tool.reads is False and is_read)
        says += ["destroys"] * (tool.destroys is True and (is_read or entry.risk_tier is not RiskTier.HIGH))
        says += ["reaches strangers"] * (tool.open_world is True and inside)
        for does in says:
            message = f"says that it {does}; the manifest says {entry.effect_class}, {entry.risk_tier} risk"
            yield ScanFinding("risk", *at, message, "correct the manifest, or what the tool says")
    for where, switch in exposure.switches:
        yield ScanFinding("debug", where, "", switch, "take it out")
    for name in sorted(manifest.tools.keys() - times.keys()):
        yield ScanFinding("absent", "manifest", name, "the source does not have it", "remove it if it is gone for good")
