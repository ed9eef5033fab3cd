"""Other shapes of a manifest, read as the one that the models have.

The shapes of the tool registry record (tool pattern library, 9.5): `markings: [allowed: a, b]`, `signature` for the two
schemas or a file that holds them, a name that is the end of the id; and of the tool registry document:
`idempotency_required`. Keys in camelCase are aliases of the models' fields (`Record` in model.py). `written_path` finds
in the file what a model has.
"""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic.alias_generators import to_camel

from pdp.documents import read_document
from pdp.documents.document import Path
from pdp.documents.validation import Finding

# Where a file may state a field of an entry instead; the first that is there.
_SHORT_FORMS: Final[dict[str | int, tuple[tuple[str, ...], ...]]] = {
    "idempotency": (("idempotency_required",), ("idempotencyRequired",)),
    "manifest_version": (("version",),),
    "name": (("id",),),
    "result_schema": (("signature", "response"), ("signature",)),
    "schema": (("signature", "request"), ("signature",)),
}
_SIGNATURE_HINT: Final = (
    "write {request: SCHEMA, response: SCHEMA}, '#/$defs/NAME', or the name of a file that holds them, in the "
    "manifest's folder"
)


def written_path(record: Any, base: Path, path: Path) -> Path:
    """Return the path in the file, where `record` stands at `base`, of what its model has at `path`.

    What is not in the file stays as it is.
    """
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
    """Return the mapping of a manifest file; of a file that is one registry record a manifest of that tool alone.

    Such a file has `id` or `name`, and no `tools`; its `manifest_version` is the record's `version`, unless it states
    one. It may state `agents` and `ontology` beside the record.
    """
    if "tools" in root or not {"id", "name"} & set(root):
        return root
    beside = ("$defs", "agents", "manifest_version", "ontology")
    around: dict[str, Any] = {name: root[name] for name in beside if name in root}
    version = {"manifest_version": root["version"]} if "version" in root else {}
    return {**version, **around, "tools": [{name: value for name, value in root.items() if name not in around}]}


def expanded_rules(rules: Any) -> tuple[Any, list[Finding]]:
    """Return the fields that tool entries and the governance file share without their short forms; what is wrong."""
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
    """Return one tool entry without short forms, and what is wrong with those.

    A `signature` may be one of the file's `definitions`, or another file in its `folder`.

    UsageError, FileFaultsError: a file that the `signature` names cannot be read.
    """
    entry, findings = expanded_rules(record)
    if isinstance(entry, dict):
        if "signature" in entry:
            findings += _expand_signature(entry, definitions, folder)
        if "name" not in entry and isinstance(entry.get("id"), str):
            entry["name"] = entry["id"].rpartition(".")[2]
    return entry, findings


def path_beside(folder: pathlib.Path | None, name: str) -> pathlib.Path | None:
    """Return the path of a file in the manifest's folder, or below it; None: there is no such file."""
    if folder is None:
        return None
    try:
        path = (folder / name).resolve()
        return path if path.is_relative_to(folder.resolve()) and path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # no name of a file, or links in a circle
        return None


def _expand_signature(
    entry: dict[str, Any], definitions: Mapping[str, Any], folder: pathlib.Path | None
) -> Iterator[Finding]:
    """Replace `signature` by the two schemas: `{request, response}`, or a definition or a file of that form."""
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
        message = "`signature` must hold the schemas `request` and `response`"
        if signature is None:
            message = f"`signature` leads nowhere: {reference!s:.80}"
        yield Finding(("signature",), message, _SIGNATURE_HINT)
        entry.setdefault("schema", {"type": "object"})
        return
    for part, schema in signature.items():
        field = "schema" if part == "request" else "result_schema"
        if field in entry or to_camel(field) in entry:
            yield Finding((field,), f"`{field}` is stated twice, here and in `signature`", "state it once", key=True)
        entry[field] = {"$ref": schema} if isinstance(schema, str) else schema
