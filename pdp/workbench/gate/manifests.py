"""Checks of the manifests in a bundle, and of the events that name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.audit.chain import MemoryAudit, verify_chain
from pdp.decision import parse_decision
from pdp.documents import read_bytes
from pdp.errors import AuditError, EngineError
from pdp.json import canonical, parse_json
from pdp.pep import Pep
from pdp.workbench.neighbours.bases import called_tools, complete_call
from pdp.workbench.neighbours.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.engine.bundle.file import Bundle
    from pdp.engine.wasm.engine import EmbeddedEngine
    from pdp.workbench.scenarios.files.suite import Suite

_UNKNOWN: Final = frozenset(("manifest.mismatch", "manifest.unknown_action", "effects.unknown",
                             "decision.concern_not_loaded", "decision.request_invalid"))  # fmt: skip
_SHOWN: Final = 20


def unknown_actions(bundle: Bundle, engine: EmbeddedEngine) -> list[str]:
    """Return the actions of the bundle's manifests that its policy does not know, each with its tool."""
    found = []
    for digest, document in bundle.data.get("manifests", {}).items():
        for tool in called_tools(document, digest, {}):
            request = complete_call(tool, Vocabulary((), (), ()), [], {})
            try:
                codes = parse_decision(engine.evaluate(canonical(request))).codes
            except EngineError as error:
                codes = (error.code,)
            wrong = [code for code in codes if code in _UNKNOWN or code.startswith("engine.")]
            if wrong:
                action = tool.stated[0].get("pdp_action", "no action")
                found.append(f"{tool.name} of manifest {tool.version}: {action} is {', '.join(wrong)}")
    return found


def reused_versions(new: Mapping[str, Any], last: Mapping[str, Any]) -> list[str]:
    """Return the manifests that have other content than one of the same version; documents by digest."""
    versions: dict[str, str] = {str(document.get("manifest_version")): digest for digest, document in last.items()}
    found = []
    for digest, document in new.items():
        version = str(document.get("manifest_version"))
        known = versions.setdefault(version, digest)
        if known != digest and digest not in last:
            found.append(f"manifest {version} is {digest}, and {known} has that version already: give it a new one")
    return found


def absent_manifests(bundle: Bundle, suites: Sequence[Suite]) -> list[str]:
    """Return the scenario files whose manifest the bundle does not hold, by digest."""
    held = bundle.data.get("manifests", {})
    return [
        f"{suite.file}: about manifest {suite.manifest.version}, {suite.manifest.digest}: the bundle does not hold it"
        for suite in suites
        if suite.manifest.digest not in held
    ]


def unexamined_manifests(bundle: Bundle, last: Bundle | None, suites: Sequence[Suite]) -> list[str]:
    """Return the manifests of the bundle that the last release does not have and no scenario file is about.

    Several may stand side by side, and scenarios about one of them say nothing about another.
    """
    known = {} if last is None else last.data.get("manifests", {})
    examined = {suite.manifest.digest for suite in suites}
    return [
        f"manifest {document.get('manifest_version')}, {digest}: new in this release, and no scenario file is about it"
        for digest, document in bundle.data.get("manifests", {}).items()
        if digest not in known and digest not in examined
    ]


def unpinned_golden_events(bundle: Bundle, runs: Sequence[tuple[Suite, EmbeddedEngine]]) -> tuple[int, list[str]]:
    """Propose the golden calls once more, and return how many events that made, and what is wrong with them.

    Every event has to name version and digest of the suite's manifest, and, where a policy decided, this revision.
    """
    events, wrong = 0, []
    for suite, engine in runs:
        audit = MemoryAudit()
        pep = Pep(suite.manifest, engine, audit=audit)
        for at, scenario in enumerate(suite.scenarios):
            for step, session in zip(scenario.steps, suite.sessions[at], strict=True):
                if scenario.golden and step.action == "propose" and session is not None:
                    pep.decide(step.propose, session)
        pinned = {suite.manifest.digest: suite.manifest.version}
        events += len(audit.events)
        wrong += [f"{suite.file}: {each}" for each in _unpinned(audit.events, pinned, bundle.revision)]
    return events, wrong[:_SHOWN]


def unpinned_events(file: Path, bundle: Bundle) -> tuple[int, list[str]]:
    """Return how many events an audit file has, and which of them are not pinned to a manifest of this bundle.

    Raises:
        UsageError: the file cannot be read.
    """
    lines = read_bytes(file).splitlines()
    try:
        verify_chain(lines)
    except AuditError as error:
        return len(lines), [f"{file}: {error.message}"]
    pinned = {
        digest: str(document.get("manifest_version")) for digest, document in bundle.data.get("manifests", {}).items()
    }
    wrong = [f"{file}: {each}" for each in _unpinned([parse_json(line) for line in lines], pinned, bundle.revision)]
    return len(lines), wrong[:_SHOWN]


def _unpinned(events: Sequence[Mapping[str, Any]], pinned: Mapping[str, str], revision: str) -> Iterator[str]:
    for event in events:
        # What happens to a bundle is about no call, and names no manifest.
        if str(event.get("type")).startswith("bundle."):
            continue
        which = f"event {event.get('seq')} ({event.get('type')})"
        digest, version = event.get("manifest_digest"), event.get("manifest_version")
        if version is None or pinned.get(str(digest)) != version:
            yield f"{which} names manifest {version}, {digest}"
        elif event.get("bundle_revision") not in (None, revision):
            yield f"{which} was decided by the bundle {event.get('bundle_revision')}"
