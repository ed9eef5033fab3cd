"""Releasing bundles: published into a channel, or taken back to an older content. Each change is audited.

A rollback is a release like any other. Engines and enforcement points refuse to go back to a lower release number, and
rightly: so the old content is released anew, under the next number. Its revision, which names the content, stays.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from pdp.audit.file import recordable
from pdp.clock import to_milliseconds, to_seconds
from pdp.engine.bundle.file import pack_bundle, read_bundle
from pdp.engine.bundle.repository_index import Change, Published, record_of
from pdp.errors import BundleError, UsageError
from pdp.json import JsonValueError, canonical, check_json
from pdp.workbench.bundles.repository import changing
from pdp.workbench.bundles.sign import sign_bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pdp.audit.file import AuditLog
    from pdp.engine.bundle.file import Bundle
    from pdp.engine.bundle.keys import VerificationKey
    from pdp.engine.bundle.repository_index import Channel, Index
    from pdp.workbench.bundles.keys import SigningKey
    from pdp.workbench.bundles.repository import Repository

MAX_GATE: Final = 64 * 1024
"""Largest gate results in bytes, as they stand in the history."""

_MAX_TEXT: Final = 1000


def publish(
    folder: Path,
    packed: bytes,
    *,
    channel: Channel,
    by: str,
    why: str,
    audit: AuditLog,
    keys: Sequence[VerificationKey] | None,
    gate: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.time,
) -> Change:
    """Publish a bundle and make it the channel's current one. Once more the same changes nothing.

    Args:
        folder: the repository; it is begun where there is none.
        packed: the bundle's file. A file that is in another channel already goes into this one as it is.
        channel: who follows it gets the bundle.
        by: who publishes.
        why: for people.
        audit: gets an event before the change and one after it, both `bundle.publish`.
        keys: one of them must have signed the bundle; None: it may be unsigned.
        gate: what the release gate found, as of `pdp release check --json`: about this very bundle, by `release` and
            `revision`, with `passed`, which must be true, and its `checks`.
        clock: what time it is, in seconds since 1970.

    Raises:
        UsageError: a text that cannot be used, gate results that are not of this bundle or have not passed, or a
            folder that is no repository.
        BundleError: a bundle that must not be used, or is not newer than what was published.
        AuditError: it cannot be audited; nothing has changed.
        RepositoryError: it cannot be written; nothing has changed.
    """
    _check_texts(by=by, why=why)
    bundle = read_bundle(packed, keys=keys)
    checked = None if gate is None else _checked_gate(dict(gate), bundle)
    published = record_of(bundle)
    with changing(folder, make=True) as repository:
        index = repository.index
        current = index.current(channel)
        if current == published:
            return next(change for change in reversed(index.history) if change.channel == channel)
        _check_news(index, published, current, channel)
        change = Change(
            sequence=len(index.history) + 1,
            time=to_seconds(clock()),
            action="publish",
            channel=channel,
            release=published.release,
            digest=published.digest,
            previous_release=None if current is None else current.release,
            restores=None,
            by=by,
            why=why,
            gate=checked,
        )
        _commit(repository, change, published, packed, audit=audit, clock=clock)
    return change


def rollback(
    folder: Path,
    *,
    channel: Channel,
    by: str,
    why: str,
    audit: AuditLog,
    to: int | None = None,
    signing_key: SigningKey | None = None,
    keys: Sequence[VerificationKey] | None = None,
    clock: Callable[[], float] = time.time,
) -> Change:
    """Release an older content of a channel anew, under the next release number, and make it the current one.

    Args:
        folder: the repository.
        channel: which one goes back.
        by: who does it.
        why: for people.
        audit: gets an event before the change and one after it, both `bundle.rollback`.
        to: the release whose content comes back; None: what the channel had before its current content.
        signing_key: signs the new release; needed where the old one was signed.
        keys: with a signing key: one of them must have signed the old release, as whoever can write into the repository
            must not have a content of theirs signed. None: the public half of the signing key.
        clock: what time it is, in seconds since 1970.

    Raises:
        UsageError: a text that cannot be used, no such release, or no key.
        BundleError: the old bundle is damaged, of another version of this program, or not signed with one of `keys`.
        AuditError, RepositoryError: as of `publish`.
    """
    _check_texts(by=by, why=why)
    with changing(folder) as repository:
        index = repository.index
        current = index.current(channel)
        if current is None:
            raise UsageError(f"{folder}: nothing was published in the channel {channel}", hint="publish there first")
        old = _target(index, channel, current, to)
        if old.key_id is not None and signing_key is None:
            raise UsageError(
                f"release {old.release} is signed, so its content has to be signed anew under the next number",
                hint="name a private key",
            )
        if signing_key is not None and keys is None:
            keys = (signing_key.public,)
        found = read_bundle(repository.read(old), keys=None if signing_key is None else keys)
        packed = pack_bundle(
            release=index.bundles[-1].release + 1, wasm=found.wasm, data=found.data, modules=found.modules
        )
        if signing_key is not None:
            packed = sign_bundle(packed, signing_key)
        bundle = read_bundle(packed)
        if bundle.revision != old.revision:
            raise BundleError(f"release {old.release} cannot be released anew: its content would be another one")
        published = record_of(bundle)
        change = Change(
            sequence=len(index.history) + 1,
            time=to_seconds(clock()),
            action="rollback",
            channel=channel,
            release=published.release,
            digest=published.digest,
            previous_release=current.release,
            restores=old.release,
            by=by,
            why=why,
            gate=None,
        )
        _commit(repository, change, published, packed, audit=audit, clock=clock)
    return change


def _commit(
    repository: Repository,
    change: Change,
    published: Published,
    packed: bytes,
    *,
    audit: AuditLog,
    clock: Callable[[], float],
) -> None:
    index = repository.index
    bundles = {each.release: each for each in (*index.bundles, published)}
    changed = index.model_copy(
        update={
            "channels": {**index.channels, change.channel: change.digest},
            "bundles": tuple(bundles[release] for release in sorted(bundles)),
            "history": (*index.history, change),
        }
    )
    # Before, so that no change goes unrecorded; and after, so that one which failed shows as such.
    _record(audit, change, published, clock, outcome="unknown")
    try:
        repository.commit(changed, published, packed)
    finally:
        # Even where the copy for OPA failed after it, a changed index is a change.
        outcome = "succeeded" if repository.index is changed else "failed"
        _record(audit, change, published, clock, outcome=outcome)


def _record(audit: AuditLog, change: Change, published: Published, clock: Callable[[], float], *, outcome: str) -> None:
    audit.append(
        {
            "time": to_milliseconds(clock()),
            "type": f"bundle.{change.action}",
            "subject": recordable(change.by),
            "arguments_digest": audit.digest(canonical(change.model_dump())),
            "bundle_revision": published.revision,
            "outcome": outcome,
        }
    )


def _check_news(index: Index, published: Published, current: Published | None, channel: Channel) -> None:
    same = next((each for each in index.bundles if each.release == published.release), None)
    if same is not None and same != published:
        what = "another content" if same.revision != published.revision else "another signature"
        raise BundleError(
            f"release {published.release} was published already, with {what}: releases never change",
            hint=f"build it with --release {index.bundles[-1].release + 1}",
        )
    if current is not None and published.release < current.release:
        raise BundleError(
            f"release {published.release} is older than release {current.release} in the channel {channel}",
            hint="to go back, run: pdp bundle rollback",
        )


def _target(index: Index, channel: Channel, current: Published, to: int | None) -> Published:
    by_release = {each.release: each for each in index.bundles}
    changes = {change.release: change for change in index.history if change.channel == channel}
    if to is None:
        # Where the current content first stood: a second rollback goes on from there, not back to what the first left.
        first = changes[current.release]
        while first.restores is not None:
            first = changes[first.restores]
        older = [by_release[release] for release in changes if release < first.release]
        others = [each for each in older if each.revision != current.revision]
        if not others:
            raise UsageError(
                f"the channel {channel} had no other content before this one", hint="there is nothing to go back to"
            )
        return max(others, key=lambda each: each.release)
    found = by_release[to] if to in changes else None
    if found is None:
        raise UsageError(f"the channel {channel} never had a release {to}", hint="see: pdp bundle list")
    if found.revision == current.revision:
        raise UsageError(f"the channel {channel} has the content of release {to} already")
    return found


def _check_texts(**texts: str) -> None:
    for name, text in texts.items():
        if not text.strip() or len(text) > _MAX_TEXT or not all(letter.isprintable() for letter in text):
            raise UsageError(
                f"{name}: not a line of text", hint=f"1 to {_MAX_TEXT} printable characters; it stands in the history"
            )


def _checked_gate(gate: dict[str, Any], bundle: Bundle) -> dict[str, Any]:
    try:
        check_json(gate)
    except JsonValueError as error:
        raise UsageError(f"gate results: {error}") from error
    if len(canonical(gate)) > MAX_GATE:
        raise UsageError(
            f"gate results: larger than {MAX_GATE} bytes", hint="give the summary, and keep the rest with CI"
        )
    if gate.get("passed") is not True:
        raise UsageError("gate results: the release gate has not passed", hint="see its checks; `passed` must be true")
    again = "run `pdp release check --json` on this bundle, and give what it writes"
    for name, own in (("release", bundle.release), ("revision", bundle.revision)):
        found = gate.get(name)
        if type(found) is not type(own):
            raise UsageError(f"gate results: they do not say which {name} they are about", hint=again)
        if found != own:
            raise UsageError(f"gate results: about {name} {found}, and the bundle is {name} {own}", hint=again)
    checks = gate.get("checks")
    if not isinstance(checks, list) or not checks:
        raise UsageError("gate results: no checks", hint=again)
    statuses = [one.get("status") if isinstance(one, dict) else None for one in checks]
    if not {"pass"} <= set(map(str, statuses)) <= {"pass", "skip"}:
        raise UsageError("gate results: not every check passed or was skipped, or all were skipped", hint=again)
    return gate
