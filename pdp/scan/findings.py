"""The differences between the exposed tools and the manifest."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.fields import READ_CLASSES, EffectClass, RiskTier
from pdp.manifest.schema.differences import drift
from pdp.scan.exposed import Exposure

_INSIDE: Final = (EffectClass.PURE, EffectClass.READ_INTERNAL, EffectClass.STAGE, EffectClass.COMMIT_LOW)


class ScanFinding(NamedTuple):
    """A tool's difference from the manifest, or a setting that disables protection (`kind` debug, without `tool`)."""

    kind: str
    where: str
    tool: str
    message: str
    hint: str


def findings(exposure: Exposure, manifest: EffectiveManifest) -> Iterator[ScanFinding]:
    """Yield the differences between exposed tools and manifest. Tools that are only in the manifest come last."""
    tools = [tool for tool in exposure.tools if not tool.denied]
    times = Counter(tool.name for tool in tools)
    for tool in tools:
        at, entry = (tool.where, tool.name), manifest.tools.get(tool.name)
        if entry is None:
            yield ScanFinding(
                "undeclared",
                *at,
                "is not in the manifest",
                "declare the tool in the manifest, or remove it from the source",
            )
            continue
        if tool.fault:
            yield ScanFinding(
                "drift", *at, f"cannot be compared: {tool.fault}", "correct the tool's schema, or remove the tool"
            )
        if times[tool.name] > 1:
            yield ScanFinding("undeclared", *at, "has the name of another tool", "rename all but one")
        for line in drift(entry.schema_, tool.schema) if tool.schema is not None else ():
            yield ScanFinding("drift", *at, line, "correct the manifest's schema, or the tool")
        is_read, inside = entry.effect_class in READ_CLASSES, entry.effect_class in _INSIDE
        says = ["changes something"] * (tool.reads is False and is_read)
        says += ["destroys data"] * (tool.destroys is True and (is_read or entry.risk_tier is not RiskTier.HIGH))
        says += ["reaches outside systems"] * (tool.open_world is True and inside)
        for does in says:
            message = f"says that it {does}; the manifest states {entry.effect_class}, {entry.risk_tier} risk"
            yield ScanFinding("risk", *at, message, "correct the manifest, or the tool's annotations")
    for where, switch in exposure.switches:
        yield ScanFinding("debug", where, "", switch, "turn this setting off")
    for name in sorted(manifest.tools.keys() - times.keys()):
        yield ScanFinding(
            "absent", "manifest", name, "is not in the source", "remove the entry if the tool no longer exists"
        )
