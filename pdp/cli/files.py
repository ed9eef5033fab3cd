"""Reading the files that commands are given, each fault with its place."""

import os
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from pdp.audit.chain import MemoryAudit
from pdp.audit.file import FileAudit
from pdp.cli.output import complain
from pdp.documents import faults_of, read_document
from pdp.errors import AuditError, FileFaultsError, UsageError
from pdp.manifest.load import load_effective
from pdp.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.audit.chain import AuditLog
    from pdp.errors import Fault
    from pdp.manifest.effective import EffectiveManifest


def read_rules(manifest: Path, governance: Path | None) -> "EffectiveManifest":
    """Read both files, and tell on standard error what is likely a mistake in the governance file.

    Such a mistake decides, in silence: rules for a misspelt action are rules for none. What the manifest could say
    better is for `pdp manifest lint`.

    Raises:
        UsageError: a file is missing or faulty.
    """
    warnings: list[Fault] = []
    effective = load_effective(manifest, governance, warnings=warnings)
    for warning in warnings:
        if warning.place.file == str(governance):
            complain(str(warning))
    return effective


def effective_manifests(manifests: "Sequence[Path]", governances: "Sequence[Path]") -> "list[EffectiveManifest]":
    """Read manifests, each with the governance file at its place, if there are any.

    Raises:
        UsageError: a file is missing or faulty, or there are not as many of both.
    """
    if governances and len(governances) != len(manifests):
        raise UsageError(
            f"{len(manifests)} manifests and {len(governances)} governance files",
            hint="name a governance file for every manifest, in the same order, or none at all",
        )
    return [load_effective(*pair) for pair in zip_longest(manifests, governances)]


def read_session(path: Path) -> Session:
    """Read a session file.

    Raises:
        UsageError: the file is missing or faulty.
    """
    document = read_document(path)
    try:
        return Session.model_validate(document.value)
    except ValidationError as error:
        raise FileFaultsError(faults_of(error, document, Session)) from None


def open_audit(path: Path | None) -> "AuditLog":
    """Open the audit file, keyed by the variable `PDP_AUDIT_KEY`, or a stream in memory when there is none.

    Raises:
        UsageError: the file cannot be opened or continued.
    """
    if path is None:
        return MemoryAudit()
    try:
        return FileAudit(path, key=key_of_environment())
    except AuditError as error:
        raise UsageError(error.message, hint=error.hint) from None


def key_of_environment() -> bytes | None:
    """Return the key of the streams that commands write and verify, which `PDP_AUDIT_KEY` holds, if any."""
    return os.environ.get("PDP_AUDIT_KEY", "").strip().encode() or None
