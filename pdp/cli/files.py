"""The files that commands are given, by options or by the project file; reading them, each fault with its place.

What cannot be used is a UsageError, which ends a command with exit code 2.
"""

import os
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from pdp.audit.chain import AuditLog, MemoryAudit
from pdp.audit.file import FileAudit
from pdp.cli.output import complain
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
    """Return the project that a command is run in, if any, with options in the place of its fields of the same names.

    A manifest that is named takes the place of both halves, and of `bundle` and `policies` the one that is named.
    """
    given = {name: value for name, value in options.items() if value}
    file = chosen_project()
    fields: dict[str, Any] = {}
    if file is not None:
        fields = dict(read_project(file))
        complain(f"project: {file.resolve()}")
    if "manifest" in given:
        fields["governance"] = None
    if "bundle" in given:
        fields["policies"] = ()
    project = Project(**{**fields, **given})
    check_choice(project.engine, **{name: given.get(name) for name in ("opa_url", "bundle", "policies", "data")})
    return project


def needed(stated: Stated | None, name: str, option: str) -> Stated:
    """Return what a command cannot do without: files that `option`, or the field `name` of the project, states."""
    if not stated:
        raise UsageError(f"no {name} given", hint=f"name it with {option}, or as `{name}:` in {PROJECT_FILE}")
    return stated


def read_rules(manifest: Path, governance: Path | None) -> "EffectiveManifest":
    """Read both files, and tell on standard error what is likely a mistake in governance: rules for no action, say."""
    warnings: list[Fault] = []
    effective = load_effective(manifest, governance, warnings=warnings)
    for warning in warnings:
        if warning.place.file == str(governance):
            complain(str(warning))
    return effective


def effective_manifests(
    manifests: "Sequence[Path]", governances: "Sequence[Path]", project: Project
) -> "list[EffectiveManifest]":
    """Read manifests, each with the governance file at its place, if there are any; without any the project's."""
    if not manifests and not governances and project.manifest is not None:
        return [load_effective(project.manifest, project.governance)]
    if governances and len(governances) != len(manifests):
        raise UsageError(
            f"{len(manifests)} manifests and {len(governances)} governance files",
            hint="name a governance file for every manifest, in the same order, or none at all",
        )
    return [load_effective(*pair) for pair in zip_longest(manifests, governances)]


def read_session(path: Path) -> Session:
    """Read a session file."""
    return read_record(path, Session)


def read_proposal(file: str) -> bytes:
    """Read a proposal, as it is decided; where it is not JSON is told on standard error, beside what is decided."""
    content = read_bytes(file)
    name = "<stdin>" if file == "-" else file
    try:
        text = decode(content, name)
        if not is_json(text):
            Parser(name, text, json=True, faults=[]).parse()
    except FileFaultsError as error:
        complain(error.message)
    return content


def open_audit(path: Path | None) -> "AuditLog":
    """Open the audit file with key and head of the environment, or a stream in memory when there is none."""
    if path is None:
        return MemoryAudit()
    head = os.environ.get("PDP_AUDIT_HEAD")
    try:
        return FileAudit(path, key=key_of_environment(), head=Path(head) if head else None)
    except AuditError as error:
        raise UsageError(error.message, hint=error.hint) from None


def key_of_environment() -> bytes | None:
    """Return the key of the streams that commands write and verify, if `PDP_AUDIT_KEY` holds one."""
    return os.environ.get("PDP_AUDIT_KEY", "").strip().encode() or None
