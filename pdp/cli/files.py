"""Reads the files that options or the project file name. Faults have locations, and end a command with exit code 2."""

import os
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from pdp.audit.chain import AuditLog, MemoryAudit
from pdp.audit.file import FileAudit
from pdp.cli.output import print_error
from pdp.documents import decode, read_bytes, read_record
from pdp.documents.parse import Parser, is_json
from pdp.errors import AuditError, Fault, FileFaultsError, UsageError
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.load import load_effective
from pdp.project.file import PROJECT_FILE, Project, chosen_project, read_project
from pdp.project.resources import check_choice
from pdp.session import Session

Stated = TypeVar("Stated")


def project_with(**options: Any) -> Project:
    """Return the current project, if any, with `options` replacing its fields of the same names.

    A manifest in `options` also replaces the project's governance; a bundle also replaces the project's policies.
    """
    given = {name: value for name, value in options.items() if value}
    file = chosen_project()
    fields: dict[str, Any] = {}
    if file is not None:
        fields = dict(read_project(file))
        print_error(f"project: {file.resolve()}")
    if "manifest" in given:
        fields["governance"] = None
    if "bundle" in given:
        fields["policies"] = ()
    project = Project(**{**fields, **given})
    check_choice(project.engine, **{name: given.get(name) for name in ("opa_url", "bundle", "policies", "data")})
    return project


def required(stated: Stated | None, name: str, option: str) -> Stated:
    """Return a required value. Raises `UsageError` if `option` and the project's field `name` are missing."""
    if not stated:
        raise UsageError(f"no {name} given", hint=f"give it with {option}, or as `{name}:` in {PROJECT_FILE}")
    return stated


def read_rules(manifest: Path, governance: Path | None) -> "EffectiveManifest":
    """Read manifest and governance; print likely mistakes in governance, such as unused rules, on standard error."""
    warnings: list[Fault] = []
    effective = load_effective(manifest, governance, warnings=warnings)
    for warning in warnings:
        if warning.place.file == str(governance):
            print_error(str(warning))
    return effective


def effective_manifests(
    manifests: "Sequence[Path]", governances: "Sequence[Path]", project: Project
) -> "list[EffectiveManifest]":
    """Read manifests, each with the governance file at the same position. Without any, read the project's files."""
    if not manifests and not governances and project.manifest is not None:
        return [load_effective(project.manifest, project.governance)]
    if governances and len(governances) != len(manifests):
        raise UsageError(
            f"{len(manifests)} manifests and {len(governances)} governance files",
            hint="give a governance file for every manifest, in the same order, or for no manifest",
        )
    return [load_effective(*pair) for pair in zip_longest(manifests, governances)]


def read_session(path: Path) -> Session:
    """Read a session file."""
    return read_record(path, Session)


def read_proposal(file: str) -> bytes:
    """Read a proposal unchanged. If it is not JSON, print the fault on standard error, but raise no error."""
    content = read_bytes(file)
    name = "<stdin>" if file == "-" else file
    try:
        text = decode(content, name)
        if not is_json(text):
            Parser(name, text, json=True, faults=[]).parse()
    except FileFaultsError as error:
        print_error(error.message)
    return content


def open_audit(path: Path | None) -> "AuditLog":
    """Open the audit file, with PDP_AUDIT_KEY and PDP_AUDIT_HEAD. Without a path, return a log in memory."""
    if path is None:
        return MemoryAudit()
    head = os.environ.get("PDP_AUDIT_HEAD")
    try:
        return FileAudit(path, key=key_of_environment(), head=Path(head) if head else None)
    except AuditError as error:
        raise UsageError(error.message, hint=error.hint) from None


def key_of_environment() -> bytes | None:
    """Return the key of audit streams from `PDP_AUDIT_KEY`, or None without a key."""
    return os.environ.get("PDP_AUDIT_KEY", "").strip().encode() or None
