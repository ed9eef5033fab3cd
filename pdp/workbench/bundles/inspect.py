"""What is in a bundle, for people: read from the file alone, without an engine."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from pdp.json import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.engine.bundle.file import Bundle

_CODE: Final = re.compile(r"^# +code: +([a-z_][a-z0-9_]*\.[a-z0-9_]+)\s*$", re.MULTILINE)
_PACKAGE: Final = re.compile(r"^package +([A-Za-z0-9_.]+)", re.MULTILINE)
_CONCERN: Final = re.compile(r"(?:authz|custom)\.concerns\.([A-Za-z0-9_]+)")


def inspect_bundle(bundle: Bundle) -> dict[str, Any]:
    """Return what `pdp bundle inspect --json` shows of a bundle that `read_bundle` returned, with keys or without.

    What is not stated in the bundle, or is not of its type there, is None or left out.
    """
    manifests = [_manifest(digest, document) for digest, document in bundle.data.get("manifests", {}).items()]
    return {
        "revision": bundle.revision,
        "release": bundle.release,
        "digest": bundle.digest,
        "size": bundle.size,
        "module_size": len(bundle.wasm),
        "modules": len(bundle.modules),
        "signature": None if bundle.signature is None else asdict(bundle.signature),
        "manifests": sorted(manifests, key=lambda manifest: (manifest["version"] or "", manifest["digest"])),
        "concerns": _concerns(bundle),
        "data": {root: len(canonical(value)) for root, value in sorted(bundle.data.items())},
    }


def inspection_lines(name: str, inspection: Mapping[str, Any]) -> Iterator[str]:
    """Yield the same for people, of a bundle with this file name."""
    data = ", ".join(f"{root} ({size} bytes)" for root, size in inspection["data"].items())
    yield f"{name}: release {inspection['release']}, {inspection['size']} bytes"
    yield f"  revision   {inspection['revision']}"
    yield f"  file       {inspection['digest']}"
    yield f"  signature  {_shown(inspection['signature'])}"
    yield f"  policy     {inspection['modules']} Rego modules, WebAssembly of {inspection['module_size']} bytes"
    yield f"  data       {data or 'none'}"
    yield ""
    for concern in inspection["concerns"]:
        notes = ["custom" if concern["custom"] else "baseline", *(["required"] if concern["required"] else [])]
        yield f"concern {concern['name']} ({', '.join(notes)})"
        yield from (f"  {code}" for code in concern["codes"])
    for manifest in inspection["manifests"]:
        yield ""
        yield f"manifest {manifest['version'] or '(no version)'}  {manifest['digest']}"
        for tool in manifest["tools"]:
            version = f" {tool['version']}" if tool["version"] else ""
            effect, risk = tool["effect_class"] or "no effect class", tool["risk_tier"] or "no"
            yield f"  {tool['name']}{version}: {effect}; {risk} risk; {', '.join(tool['scopes']) or 'no scope'}"


def _shown(signature: Mapping[str, Any] | None) -> str:
    if signature is None:
        return "none"
    claim = "verified" if signature["verified"] else "not verified: name a public key with --key"
    return f"{signature['algorithm']}, key {signature['key_id']} ({claim})"


def _manifest(digest: str, document: Any) -> dict[str, Any]:
    fields = document if isinstance(document, dict) else {}
    tools = fields.get("tools")
    entries = tools if isinstance(tools, dict) else {}
    return {
        "digest": digest,
        "version": _text(fields.get("manifest_version")),
        "tools": [_tool(name, entry if isinstance(entry, dict) else {}) for name, entry in sorted(entries.items())],
    }


def _tool(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    scopes = entry.get("scopes")
    return {
        "name": name,
        "version": _text(entry.get("version")),
        "action": _text(entry.get("pdp_action")) or name,
        "risk_tier": _text(entry.get("risk_tier")),
        "effect_class": _text(entry.get("effect_class")),
        "scopes": [scope for scope in scopes if isinstance(scope, str)] if isinstance(scopes, list) else [],
    }


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _concerns(bundle: Bundle) -> list[dict[str, Any]]:
    """The packages that give reasons, sorted by name, the baseline's first, each with its reason codes."""
    required = bundle.data.get("config", {}).get("required_concerns")
    names = set(required) if isinstance(required, list) else set()
    by_concern: defaultdict[tuple[bool, str], set[str]] = defaultdict(set)
    for path, text in bundle.modules.items():
        package = _PACKAGE.search(text)
        concern = _CONCERN.fullmatch(package.group(1)) if package else None
        codes = set(_CODE.findall(text))
        if concern is not None:
            by_concern[path.startswith("custom/"), concern.group(1)] |= codes
        else:
            # The decision itself and planning: a code's first part names who gives it.
            for code in codes:
                by_concern[path.startswith("custom/"), code.split(".")[0]].add(code)
    return [
        {"name": name, "custom": custom, "required": name in names, "codes": sorted(codes)}
        for (custom, name), codes in sorted(by_concern.items())
    ]
