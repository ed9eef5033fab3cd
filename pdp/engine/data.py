"""Data that a policy is given beside its bundle: where it may stand, how it is read and merged.

Only `directory` and `settings` (design, "Session"): data under another root could pose as policy, or loosen what the
build has fixed.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pdp.documents import nearest, read_bytes, read_document, shown_name
from pdp.errors import FileFaultsError, UsageError
from pdp.json import JsonValueError, canonical, check_json, digest, parse_json

RUN_TIME_ROOTS: Final = ("directory", "settings")
"""Ours and the user's: who is entitled to what, and whatever custom concerns ask for."""


def read_data(paths: Sequence[Path]) -> dict[str, Any]:
    """Read data files, JSON or YAML, each laid over those before it.

    Raises:
        UsageError: a file cannot be read, or is faulty: its format, other roots than `RUN_TIME_ROOTS`, a number that
            not every engine can hold. Faults have their places.
    """
    merged: dict[str, Any] = {}
    for path in paths:
        merged = _laid_over(merged, _read(path))
    return merged


def _read(path: Path) -> dict[str, Any]:
    content = read_bytes(path)
    try:
        # Without places, which take ten times as long, and only faults need them. Directories may be large.
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
        return [((), "must be a mapping", f"with the roots {admitted}")]
    faults: list[tuple[tuple[str, ...], str, str | None]] = []
    for root, item in value.items():
        if root not in RUN_TIME_ROOTS:
            faults.append(((root,), f"the root {shown_name(root)} is not admitted", f"only {admitted} are"))
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
    """Return a bundle's data with manifests added to it and other data laid over it.

    Objects are merged key by key, anything else replaces what was there. The manifests are the documents of effective
    ones, by their digests. UsageError: data that is not admitted; a manifest that is not JSON, or has another digest.
    """
    merged = dict(base)
    if data:
        for _, message, hint in _faults(data):
            raise UsageError(f"data: {message}", hint=hint)
        merged = _laid_over(merged, data)
    for _, message, hint in directory_faults(merged.get("directory")):
        raise UsageError(f"data: {message}", hint=hint)
    if manifests:
        known = dict(merged.get("manifests", {}))
        for name, document in manifests.items():
            if not isinstance(document, dict):
                raise UsageError(f"manifest {name}: not an object")
            try:
                check_json(document)
            except JsonValueError as error:
                raise UsageError(f"manifest {name}: {error}") from error
            if name != digest(canonical(document)):
                raise UsageError(
                    f"manifest {name}: the document does not have this digest",
                    hint="give what `effective_manifest` made: its `digest` and its `document`",
                )
            known[name] = document
        merged["manifests"] = known
        _check_planning(
            merged.get("directory"), {tool for document in known.values() for tool in document.get("tools", ())}
        )
    return merged


def directory_faults(directory: Any) -> Iterator[tuple[tuple[str, ...], str, str | None]]:
    """Yield the faults of `subjects` and `resources` (`{type: {id: {property: value}}}`): path, message, hint."""
    stated = directory if type(directory) is dict else {}
    places: list[tuple[tuple[str, ...], Any]] = [
        ((kind,), stated[kind]) for kind in ("subjects", "resources") if kind in stated
    ]
    for steps, value in places:
        if type(value) is not dict:
            place = shown_name(".".join(("directory", *steps)))
            yield ("directory", *steps), f"{place} must be a mapping", "write {TYPE: {ID: {PROPERTY: VALUE}}}"
        elif len(steps) <= 2:  # noqa: PLR2004 - kind, type, id: what is below are properties
            places += [((*steps, name), item) for name, item in value.items()]


def _check_planning(directory: Any, tools: set[str]) -> None:
    """Refuse planning rules for tools that are not there: they hold for nothing. Mistyped ones the policy refuses."""
    planning = directory.get("planning") if type(directory) is dict else None
    rules = planning if type(planning) is dict else {}
    for name, key in itertools.product(rules, ("tool", "requires", "only_after")):
        stated = rules[name].get(key, []) if type(rules[name]) is dict else []
        for tool in stated if type(stated) is list else [stated]:
            if type(tool) is str and tool not in tools:
                raise UsageError(
                    f"data: planning rule {shown_name(name)}: {key}: {shown_name(tool)} is not a tool of the manifests",
                    hint=nearest(tool, tools) or "give its manifest as well, or remove the rule",
                )


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _laid_over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged
