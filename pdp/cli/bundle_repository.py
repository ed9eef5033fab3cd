"""`pdp bundle publish`, `rollback` and `list`."""

from __future__ import annotations

import getpass
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pdp.audit.file import FileAudit
from pdp.cli import Exit
from pdp.cli.bundle_keys import given_public_keys, given_signing_key, needed_public_keys
from pdp.cli.output import print_json, printable, tell
from pdp.documents import read_document
from pdp.engine.bundle.file import read_packed
from pdp.engine.bundle.repository_index import CHANNELS
from pdp.engine.bundle.repository_reader import open_repository
from pdp.errors import AuditError, BundleError, EngineError, UsageError
from pdp.workbench.bundles.publish import publish as publish_bundle
from pdp.workbench.bundles.publish import rollback as roll_back

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pdp.engine.bundle.repository_index import Change, Channel

AUDIT_SUFFIX = ".audit.jsonl"
"""Added to a repository's name for its audit stream, which lies beside it: not in it, where it would be served."""


def publish(
    file: Path,
    repository: Path,
    *,
    channel: Channel,
    why: str,
    by: str | None,
    keys: Sequence[Path],
    unsigned: bool,
    gate: Path | None,
    audit: Path | None,
    as_json: bool,
) -> int:
    """Publish a bundle into a channel.

    Raises:
        UsageError, BundleError, AuditError, RepositoryError: as of `pdp.workbench.bundles.publish.publish`.
    """
    if unsigned and keys:
        raise UsageError("--unsigned and --key exclude each other", hint="leave one of them out")
    trusted = None if unsigned else needed_public_keys(keys)
    results: Any = None if gate is None else read_document(gate).value
    if gate is not None and not isinstance(results, dict):
        raise UsageError(f"{gate}: gate results are an object", hint="such as pdp release check writes")
    packed = read_packed(file)
    with closing(_audit(repository, audit)) as stream:
        try:
            change = publish_bundle(
                repository, packed, channel=channel, by=by or _who(), why=why, audit=stream, keys=trusted, gate=results
            )
        except BundleError as error:
            raise type(error)(f"{file}: {error.message.removeprefix('bundle: ')}", hint=error.hint) from error
    _tell_change(repository, change, as_json=as_json)
    return Exit.OK


def rollback(
    repository: Path,
    *,
    channel: Channel,
    why: str,
    by: str | None,
    to: int | None,
    key: Path | None,
    verify_keys: Sequence[Path],
    audit: Path | None,
    as_json: bool,
) -> int:
    """Release an older content anew.

    Raises:
        UsageError, BundleError, AuditError, RepositoryError: as of `pdp.workbench.bundles.publish.rollback`.
    """
    signing_key = given_signing_key(key)
    with closing(_audit(repository, audit)) as stream:
        change = roll_back(
            repository, channel=channel, by=by or _who(), why=why, audit=stream, to=to, signing_key=signing_key,
            keys=given_public_keys(verify_keys),
        )  # fmt: skip
    _tell_change(repository, change, as_json=as_json)
    return Exit.OK


def listing(repository: str, *, as_json: bool) -> int:
    """Show channels, releases and history of a repository, a folder or a URL.

    Raises:
        UsageError: it cannot be read.
        BundleError: what is there is no repository.
    """
    reader = open_repository(repository)
    try:
        index = reader.index()
    except EngineError as error:
        raise UsageError(error.message, hint=error.hint) from error
    following = index.bundles[-1].release + 1 if index.bundles else 1
    if as_json:
        print_json({**index.model_dump(), "next_release": following})
        return Exit.OK
    for channel in CHANNELS:
        current = index.current(channel)
        shown = "nothing" if current is None else f"release {current.release}  {current.revision}"
        tell(f"{channel}: {shown}")
    tell(f"next release: {following}")
    for change in reversed(index.history):
        tell(printable(f"{change.sequence:5}  {change.time}  {_said(change)}  by {change.by}: {change.why}"))
    return Exit.OK


def _tell_change(repository: Path, change: Change, *, as_json: bool) -> None:
    if as_json:
        print_json(change.model_dump())
        return
    tell(printable(f"{os.fsencode(repository).decode(errors='replace')}: {_said(change)}"))
    tell(f"  file  {change.digest}")


def _said(change: Change) -> str:
    before = "" if change.previous_release is None else f", was {change.previous_release}"
    restored = "" if change.restores is None else f" with the content of release {change.restores}"
    return f"{change.action} {change.channel}: release {change.release}{restored}{before}"


def _audit(repository: Path, path: Path | None) -> FileAudit:
    try:
        return FileAudit(path or repository.with_name(repository.name + AUDIT_SUFFIX))
    except AuditError as error:
        raise UsageError(error.message, hint="name another file with --audit") from error


def _who() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        raise UsageError("nobody knows who you are", hint="say it with --by") from None
