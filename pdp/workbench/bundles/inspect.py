"""Show the content of a bundle. The bundle file is only read: no engine runs its policy."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pdp.engine.bundle.file import Bundle
from pdp.json import canonical
from pdp.workbench.neighbours.values import as_dict, texts


def inspect_bundle(bundle: Bundle) -> dict[str, Any]:
    """Return the JSON of `pdp bundle inspect --json`. Missing values and values of a wrong type are None or omitted."""
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
        "concerns": texts(bundle.data.get("config", {}).get("required_concerns")),
        "data": {root: len(canonical(value)) for root, value in sorted(bundle.data.items())},
    }


def inspection_lines(name: str, inspection: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of text that show the result of `inspect_bundle`; `name` is the bundle's file name."""
    data = ", ".join(f"{root} ({size} bytes)" for root, size in inspection["data"].items())
    yield f"{name}: release {inspection['release']}, {inspection['size']} bytes"
    yield f"  revision   {inspection['revision']}"
    yield f"  file       {inspection['digest']}"
    yield f"  signature  {_shown(inspection['signature'])}"
    yield f"  policy     {inspection['modules']} Rego modules, WebAssembly of {inspection['module_size']} bytes"
    yield f"  data       {data or 'none'}"
    yield f"  concerns   {', '.join(inspection['concerns']) or 'none'}"
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
    claim = "verified" if signature["verified"] else "not verified: name a public key with --public-key"
    return f"{signature['algorithm']}, key {signature['key_id']} ({claim})"


def _manifest(digest: str, document: Any) -> dict[str, Any]:
    tools = as_dict(as_dict(document).get("tools"))
    return {
        "digest": digest,
        "version": _text(as_dict(document).get("manifest_version")),
        "tools": [_tool(name, as_dict(entry)) for name, entry in sorted(tools.items())],
    }


def _tool(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    stated = {field: _text(entry.get(field)) for field in ("version", "risk_tier", "effect_class")}
    action = _text(entry.get("pdp_action")) or name
    return {"name": name, **stated, "action": action, "scopes": texts(entry.get("scopes"))}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
