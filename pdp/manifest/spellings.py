"""Convert other layouts of a manifest to the layout of the models. `written_path` maps a path back to the file.

A tool registry record (tool pattern library, 9.5) has `markings: [allowed: a, b]`, a `signature` with both schemas or a
file name, and an `id` that ends with the tool's name. The tool registry document has `idempotency_required`.
"""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic.alias_generators import to_camel

from pdp.documents import read_document
from pdp.documents.document import Path
from pdp.documents.validation import Finding

# Alternative keys of a field in the file. The first key that exists counts.
_SHORT_FORMS: Final[dict[str | int, tuple[tuple[str, ...], ...]]] = {
    "idempotency": (("idempotency_required",), ("idempotencyRequired",)),
    "manifest_version": (("version",),),
    "name": (("id",),),
    "result_schema": (("signature", "response"), ("signature",)),
    "schema": (("signature", "request"), ("signature",)),
}
_SIGNATURE_HINT: Final = (
    "write {request: SCHEMA, response: SCHEMA}, '#/$defs/NAME', or the name of a file that has them, in the "
    "manifest's folder"
)


def written_path(record: Any, base: Path, path: Path) -> Path:
    """Map a path in a model to the path in the file, where `record` is at `base`. Unknown steps stay unchanged."""
    written: Path = ()
    for at, step in enumerate(path):
        forms: tuple[Path, ...] = ((step,), (to_camel(str(step)),), *(_SHORT_FORMS.get(step, ()) if at == 0 else ()))
        candidates = ((*written, *form) for form in forms)
        written = next((candidate for candidate in candidates if _has(record, candidate)), (*written, step))
    return (*base, *written)


def _has(value: Any, path: Path) -> bool:
    try:
        for step in path:
            value = value[step]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def manifest_root(root: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a manifest file. A single tool registry record becomes a manifest with that tool."""
    if "tools" in root or not {"id", "name"} & set(root):
        return root
    beside = ("$defs", "agents", "manifest_version", "ontology")
    around: dict[str, Any] = {name: root[name] for name in beside if name in root}
    version = {"manifest_version": root["version"]} if "version" in root else {}
    return {**version, **around, "tools": [{name: value for name, value in root.items() if name not in around}]}


def entry_name(record: Any) -> str | None:
    """Return the name of a tool entry as written in a manifest file, or None if it has no name."""
    entry, _ = expanded_entry(record, {}, None)
    name = entry.get("name") if isinstance(entry, dict) else None
    return name if isinstance(name, str) else None


def expanded_rules(rules: Any) -> tuple[Any, list[Finding]]:
    """Expand the short forms of fields that entries and governance rules share. Return the result and findings."""
    if not isinstance(rules, dict):
        return rules, []
    expanded, findings = dict(rules), []
    if isinstance(expanded.get("markings"), list):
        expanded["markings"] = [
            item["allowed"] if isinstance(item, dict) and set(item) == {"allowed"} else item
            for item in expanded["markings"]
        ]
    block = expanded.get("idempotency", {})
    for short in ("idempotency_required", "idempotencyRequired"):
        if short not in expanded or not isinstance(block, dict):
            continue
        required = expanded.pop(short)
        if block.get("required", required) != required:
            message = "`idempotency_required` contradicts `idempotency.required`"
            findings.append(Finding((short,), message, "state it once", key=True))
        block = expanded["idempotency"] = {"required": required, **block}
    return expanded, findings


def expanded_entry(
    record: Any, definitions: Mapping[str, Any], folder: pathlib.Path | None
) -> tuple[Any, list[Finding]]:
    """Expand the short forms in a tool entry. Return the result and findings.

    Raise `UsageError` or `FileFaultsError` if the file that `signature` names cannot be read.
    """
    entry, findings = expanded_rules(record)
    if isinstance(entry, dict):
        if "signature" in entry:
            findings += _expand_signature(entry, definitions, folder)
        if "name" not in entry and isinstance(entry.get("id"), str):
            entry["name"] = entry["id"].rpartition(".")[2]
    return entry, findings


def path_beside(folder: pathlib.Path | None, name: str) -> pathlib.Path | None:
    """Return the path of a file in the manifest's folder or a subfolder, or None if there is no such file."""
    if folder is None:
        return None
    try:
        path = (folder / name).resolve()
        return path if path.is_relative_to(folder.resolve()) and path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # The text cannot be a file name, or the links form a cycle.
        return None


def _expand_signature(
    entry: dict[str, Any], definitions: Mapping[str, Any], folder: pathlib.Path | None
) -> Iterator[Finding]:
    signature = entry.pop("signature")
    reference = signature
    if isinstance(signature, dict) and set(signature) == {"$ref"}:
        reference = signature["$ref"]
    if isinstance(reference, str):
        if reference.startswith("#/"):
            signature = definitions.get(reference.removeprefix("#/$defs/"))
        else:
            path = path_beside(folder, reference)
            signature = None if path is None else read_document(path).value
    if not isinstance(signature, dict) or not {"request"} <= set(signature) <= {"request", "response"}:
        message = "`signature` must have the schemas `request` and `response`"
        if signature is None:
            message = f"`signature` not found: {reference!s:.80}"
        yield Finding(("signature",), message, _SIGNATURE_HINT)
        entry.setdefault("schema", {"type": "object"})
        return
    for part, schema in signature.items():
        field = "schema" if part == "request" else "result_schema"
        if field in entry or to_camel(field) in entry:
            yield Finding((field,), f"`{field}` is set twice, here and in `signature`", "state it once", key=True)
        entry[field] = {"$ref": schema} if isinstance(schema, str) else schema
