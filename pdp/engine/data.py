"""Data for a policy that is not part of its bundle: reading, checking and merging such data (design, "Session").

Only some top-level keys are allowed, because other keys could replace the policy, or weaken settings of the bundle.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pdp.documents import nearest, read_bytes, read_document, shown_name
from pdp.errors import FileFaultsError, UsageError
from pdp.json import JsonValueError, canonical, check_json, digest, parse_json

RUN_TIME_ROOTS: Final = ("directory", "settings")
"""The top-level keys of data at run time: entitlements (`directory`) and settings of custom concerns (`settings`)."""


def read_data(paths: Sequence[Path]) -> dict[str, Any]:
    """Read JSON or YAML data files, and merge them. Later files override earlier files.

    Raises `UsageError` with the location of each fault: the file's format, a top-level key that is not allowed, or a
    number that some engine cannot represent.
    """
    merged: dict[str, Any] = {}
    for path in paths:
        merged = _merge(merged, _read(path))
    return merged


def _read(path: Path) -> dict[str, Any]:
    content = read_bytes(path)
    try:
        # Locations are parsed only if there are faults, because parsing them takes ten times as long for large
        # directories.
        value: Any = parse_json(content)
    except JsonValueError:
        value = None
    if type(value) is dict and not _faults(value):
        return value
    document = read_document(path, text=content)
    faults = [document.fault(path, message, hint, key=bool(path)) for path, message, hint in _faults(document.value)]
    if faults:
        raise FileFaultsError(faults)
    return dict(document.value)


def _faults(value: Any) -> list[tuple[tuple[str, ...], str, str | None]]:
    admitted = " and ".join(RUN_TIME_ROOTS)
    if type(value) is not dict:
        return [((), "must be a mapping", f"write the keys {admitted}")]
    faults: list[tuple[tuple[str, ...], str, str | None]] = []
    for root, item in value.items():
        if root not in RUN_TIME_ROOTS:
            faults.append(((root,), f"the root {shown_name(root)} is not allowed", f"use only {admitted}"))
        elif type(item) is not dict:
            faults.append(((root,), f"{root} must be a mapping", None))
    faults += directory_faults(value.get("directory"))
    try:
        check_json(value)
    except JsonValueError as error:
        faults.append(((), str(error), None))
    return faults


def merged_data(
    base: Mapping[str, Any], *, manifests: Mapping[str, Any] | None = None, data: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a bundle's data with manifests and other data merged into it.

    Objects are merged key by key; other values are replaced. `manifests` are effective manifest documents by digest.
    Raises `UsageError` for data that is not allowed, and for a manifest that is not JSON or has another digest.
    """
    merged = dict(base)
    if data:
        for _, message, hint in _faults(data):
            raise UsageError(f"data: {message}", hint=hint)
        merged = _merge(merged, data)
    for _, message, hint in directory_faults(merged.get("directory")):
        raise UsageError(f"data: {message}", hint=hint)
    if manifests:
        known = dict(merged.get("manifests", {}))
        for name, document in manifests.items():
            if not isinstance(document, dict):
                raise UsageError(f"manifest {name}: must be a JSON object")
            try:
                check_json(document)
            except JsonValueError as error:
                raise UsageError(f"manifest {name}: {error}") from error
            if name != digest(canonical(document)):
                raise UsageError(
                    f"manifest {name}: the document does not have this digest",
                    hint="pass `digest` and `document` of the same effective manifest",
                )
            known[name] = document
        merged["manifests"] = known
        _check_planning(
            merged.get("directory"), {tool for document in known.values() for tool in document.get("tools", ())}
        )
    return merged


def directory_faults(directory: Any) -> Iterator[tuple[tuple[str, ...], str, str | None]]:
    """Yield faults of `subjects` and `resources` (`{type: {id: {property: value}}}`) as path, message and hint."""
    stated = directory if type(directory) is dict else {}
    places: list[tuple[tuple[str, ...], Any]] = [
        ((kind,), stated[kind]) for kind in ("subjects", "resources") if kind in stated
    ]
    for steps, value in places:
        if type(value) is not dict:
            place = shown_name(".".join(("directory", *steps)))
            yield ("directory", *steps), f"{place} must be a mapping", "write {TYPE: {ID: {PROPERTY: VALUE}}}"
        elif len(steps) <= 2:  # noqa: PLR2004 - kind, type and id; deeper levels are properties
            places += [((*steps, name), item) for name, item in value.items()]


def _check_planning(directory: Any, tools: set[str]) -> None:
    """Raise `UsageError` for planning rules that name unknown tools. The policy itself rejects malformed rules."""
    planning = directory.get("planning") if type(directory) is dict else None
    rules = planning if type(planning) is dict else {}
    for name, key in itertools.product(rules, ("tool", "requires", "only_after")):
        stated = rules[name].get(key, []) if type(rules[name]) is dict else []
        for tool in stated if type(stated) is list else [stated]:
            if type(tool) is str and tool not in tools:
                raise UsageError(
                    f"data: planning rule {shown_name(name)}: {key}: {shown_name(tool)} is not a tool of the manifests",
                    hint=nearest(tool, tools) or "add its manifest, or remove the rule",
                )


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merge(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged
