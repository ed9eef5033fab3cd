"""The files that commands are given, by options or by the project file; reading them, each fault with its place."""

import os
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from pydantic import ValidationError

from pdp.audit.chain import MemoryAudit
from pdp.audit.file import FileAudit
from pdp.cli.output import complain
from pdp.documents import faults_of, read_document
from pdp.errors import AuditError, FileFaultsError, UsageError
from pdp.manifest.load import load_effective
from pdp.project.file import PROJECT_FILE, Project, find_project, read_project
from pdp.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.audit.chain import AuditLog
    from pdp.engine.protocol import EngineName
    from pdp.errors import Fault
    from pdp.manifest.effective import EffectiveManifest


PROJECT_VARIABLE: Final = "PDP_PROJECT"
"""Names the project file, instead of looking for one; when it is empty, there is none."""


class ProjectOptions(TypedDict, total=False):
    """The options that are fields of the project file as well; what was not given is None, or empty."""

    manifest: Path | None
    governance: Path | None
    data: "Sequence[Path] | None"
    policies: "Sequence[Path] | None"
    scenarios: "Sequence[Path] | None"
    bundle: Path | None
    session: Path | None
    store: str | None
    engine: "EngineName | None"
    opa_url: str | None


def project_with(**options: Unpack[ProjectOptions]) -> Project:
    """Return the project that a command is run in, if any, with options in the place of its fields.

    Its path is told on standard error. A manifest that is named takes the place of both halves, and of `bundle` and
    `policies` the one that is named: they exclude each other.

    Raises:
        UsageError: options that exclude each other, or a project file that cannot be used.
    """
    given: dict[str, Any] = {name: value for name, value in options.items() if value}
    if "bundle" in given and "policies" in given:
        raise UsageError(
            "--bundle and --policies exclude each other: a bundle holds its policies",
            hint="build them into the bundle: pdp bundle build --policies DIR -o FILE",
        )
    if "opa_url" in given and {"bundle", "policies", "data"} & given.keys():
        raise UsageError(
            "an OPA that runs already decides by its own bundle and data",
            hint="leave --bundle, --policies and --data out, or leave --opa-url out and a local OPA is started",
        )
    if "manifest" in given:
        given.setdefault("governance", None)
    if "bundle" in given:
        given["policies"] = ()
    named = os.environ.get(PROJECT_VARIABLE)
    file = find_project(Path.cwd()) if named is None else Path(named) if named else None
    if file is None:
        return Project().model_copy(update=given)
    project = read_project(file)
    complain(f"project: {file.resolve()}")
    return project.model_copy(update=given)


def needed(file: Path | None, name: str, *, option: str = "") -> Path:
    """Return a file that a command cannot do without.

    Args:
        file: as `project_with` has it.
        name: its field in the project file.
        option: how the command calls it, where that is not by an option of the same name.

    Raises:
        UsageError: neither names it.
    """
    if file is None:
        raise UsageError(
            f"no {name} is named", hint=f"name one with {option or f'--{name}'}, or as `{name}:` in {PROJECT_FILE}"
        )
    return file


def scenario_paths(project: Project) -> "Sequence[Path]":
    """Return the scenario files, and folders with some in them, that a command is about.

    Raises:
        UsageError: there are none.
    """
    if not project.scenarios:
        raise UsageError("no scenarios are named", hint=f"name some on the line, or as `scenarios:` in {PROJECT_FILE}")
    return project.scenarios


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


def effective_manifests(
    manifests: "Sequence[Path]", governances: "Sequence[Path]", project: Project
) -> "list[EffectiveManifest]":
    """Read manifests, each with the governance file at its place, if there are any; without any the project's.

    Raises:
        UsageError: a file is missing or faulty, or there are not as many of both.
    """
    if not manifests and not governances and project.manifest is not None:
        return [load_effective(project.manifest, project.governance)]
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
    """Open the audit file, or a stream in memory when there is none.

    The variable `PDP_AUDIT_KEY` holds its key, and `PDP_AUDIT_HEAD` names its head, where it has them.

    Raises:
        UsageError: the file cannot be opened or continued.
    """
    if path is None:
        return MemoryAudit()
    head = os.environ.get("PDP_AUDIT_HEAD")
    try:
        return FileAudit(path, key=key_of_environment(), head=Path(head) if head else None)
    except AuditError as error:
        raise UsageError(error.message, hint=error.hint) from None


def key_of_environment() -> bytes | None:
    """Return the key of the streams that commands write and verify, which `PDP_AUDIT_KEY` holds, if any."""
    return os.environ.get("PDP_AUDIT_KEY", "").strip().encode() or None
