"""What is in a bundle, for people: read from the file alone, without an engine."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.json import canonical

if TYPE_CHECKING:
    from pdp.engine.bundle.file import Bundle
    from pdp.engine.bundle.signature import Signature

_CODE: Final = re.compile(r"^# +code: +([a-z_][a-z0-9_]*\.[a-z0-9_]+)\s*$", re.MULTILINE)
_PACKAGE: Final = re.compile(r"^package +([A-Za-z0-9_.]+)", re.MULTILINE)
_CONCERN: Final = re.compile(r"(?:authz|custom)\.concerns\.([A-Za-z0-9_]+)")


@dataclass(frozen=True, slots=True)
class ToolSummary:
    """A tool as a manifest in the bundle governs it; None: not stated."""

    name: str
    version: str | None
    action: str
    risk_tier: str | None
    effect_class: str | None
    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ManifestSummary:
    """An effective manifest in the bundle, its tools sorted by name."""

    digest: str
    version: str | None
    tools: tuple[ToolSummary, ...]


@dataclass(frozen=True, slots=True)
class ConcernSummary:
    """A package that gives reasons.

    Attributes:
        name: of the concern, or of a part of the baseline beside them, such as `decision`.
        custom: whether it is the user's.
        required: whether the decision is a DENY without it.
        codes: its reason codes, sorted.
    """

    name: str
    custom: bool
    required: bool
    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is in a bundle.

    Attributes:
        revision: digest of the content.
        release: number of the release.
        digest: of the file.
        size: of the file, in bytes.
        module_size: of the WebAssembly in it, in bytes.
        modules: how many Rego modules there are.
        signature: who signed it, or says so; None: nobody.
        manifests: sorted by version and digest.
        concerns: sorted by name, the baseline's first.
        data: how many bytes of JSON each root has.
    """

    revision: str
    release: int
    digest: str
    size: int
    module_size: int
    modules: int
    signature: Signature | None
    manifests: tuple[ManifestSummary, ...]
    concerns: tuple[ConcernSummary, ...]
    data: dict[str, int]


def inspect_bundle(bundle: Bundle) -> Inspection:
    """Return what is in a bundle that was read by `read_bundle`, with keys or without."""
    manifests = [_manifest(digest, document) for digest, document in bundle.data.get("manifests", {}).items()]
    return Inspection(
        revision=bundle.revision,
        release=bundle.release,
        digest=bundle.digest,
        size=bundle.size,
        module_size=len(bundle.wasm),
        modules=len(bundle.modules),
        signature=bundle.signature,
        manifests=tuple(sorted(manifests, key=lambda each: (each.version or "", each.digest))),
        concerns=_concerns(bundle),
        data={root: len(canonical(value)) for root, value in sorted(bundle.data.items())},
    )


# A bundle of a later build, or a stranger's, may state anything here: whatever is not of its type is not shown.
def _manifest(digest: str, document: Any) -> ManifestSummary:
    fields = document if isinstance(document, dict) else {}
    tools = fields.get("tools")
    entries = tools if isinstance(tools, dict) else {}
    summaries = [_tool(name, entry if isinstance(entry, dict) else {}) for name, entry in sorted(entries.items())]
    return ManifestSummary(digest, _text(fields.get("manifest_version")), tuple(summaries))


def _tool(name: str, entry: dict[str, Any]) -> ToolSummary:
    scopes = entry.get("scopes")
    return ToolSummary(
        name=name,
        version=_text(entry.get("version")),
        action=_text(entry.get("pdp_action")) or name,
        risk_tier=_text(entry.get("risk_tier")),
        effect_class=_text(entry.get("effect_class")),
        scopes=tuple(each for each in scopes if isinstance(each, str)) if isinstance(scopes, list) else (),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _concerns(bundle: Bundle) -> tuple[ConcernSummary, ...]:
    required = bundle.data.get("config", {}).get("required_concerns")
    names = set(required) if isinstance(required, list) else set()
    codes: defaultdict[tuple[bool, str], set[str]] = defaultdict(set)
    for path, text in bundle.modules.items():
        package = _PACKAGE.search(text)
        concern = _CONCERN.fullmatch(package.group(1)) if package else None
        found = set(_CODE.findall(text))
        if concern is not None:
            codes[path.startswith("custom/"), concern.group(1)] |= found
        elif found:
            # The decision itself and planning: a code's first part names who gives it.
            for code in found:
                codes[path.startswith("custom/"), code.split(".")[0]].add(code)
    return tuple(
        ConcernSummary(name, custom=custom, required=name in names, codes=tuple(sorted(found)))
        for (custom, name), found in sorted(codes.items())
    )
