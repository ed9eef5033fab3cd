"""The checks in their order. Each stands alone: one that fails keeps none of the others from being made.

Sources: tool registry document, "Release gate" (schema validation 100 % on golden tool scenarios, manifest violations
0); tool pattern library, 9.1 (eval-gated); the rest is design.md's.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pdp.audit.chain import MemoryAudit, verify_chain
from pdp.decision import parse_decision
from pdp.documents import read_bytes
from pdp.engine.bundle.file import read_bundle
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import AuditError, EngineError, PdpError
from pdp.json import canonical, parse_json
from pdp.pep import Pep
from pdp.workbench.coverage.coverage import measure
from pdp.workbench.diff.bundle_diff import GENERATED, bundle_diff
from pdp.workbench.gate.packs import pack_faults
from pdp.workbench.gate.result import Check, ReleaseCheck, check, skipped
from pdp.workbench.mutation.equivalents import beside, read_equivalents
from pdp.workbench.mutation.run import MutationRun, mutate
from pdp.workbench.neighbours.bases import called_tools, complete_call
from pdp.workbench.neighbours.vocabulary import Vocabulary
from pdp.workbench.opa.program import find_opa
from pdp.workbench.scenarios.results import RunResult, SuiteResult
from pdp.workbench.scenarios.running.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.engine.bundle.file import Bundle
    from pdp.workbench.gate.explanations import ExplainedLoosening
    from pdp.workbench.scenarios.files.suite import Suite

NAMES: Final = (
    "manifest-digest", "scenarios", "golden-schemas", "manifest-violations", "tools-proven", "actions-known",
    "coverage", "mutation", "packs", "loosening", "manifest-version", "audit-pinned",
)  # fmt: skip
"""The checks, in their order."""

_UNKNOWN: Final = frozenset(("manifest.mismatch", "manifest.unknown_action", "effects.unknown",
                             "decision.concern_not_loaded", "decision.request_invalid"))  # fmt: skip
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Gate:
    """What is to be released, and what it is held against.

    Attributes:
        bundle: the file.
        suites: scenarios about its manifests.
        last: the bundle of the last release; None: this is the first.
        explanations: of loosenings.
        coverage: how many of a hundred lines of Rego scenarios have to reach; None: only tools and codes are asked for.
        mutation: how many of a hundred mutants scenarios have to notice; None: not checked.
        packs: folders with contract test packs; those called `packs` beside the scenario files are looked in as well.
        audit: audit files of a run with this bundle.
        skip: names of checks that are not made.
        generate: how many calls the search for loosenings generates.
    """

    bundle: Path
    suites: Sequence[Suite]
    last: Path | None = None
    explanations: Sequence[ExplainedLoosening] = ()
    coverage: float | None = None
    mutation: float | None = None
    packs: Sequence[Path] = ()
    audit: Sequence[Path] = ()
    skip: Collection[str] = ()
    generate: int = GENERATED


def release_check(gate: Gate, progress: Callable[[Check], None] | None = None) -> ReleaseCheck:
    """Make every check.

    Args:
        gate: what is to be released.
        progress: is told of each check that was made.

    Raises:
        BundleError: a bundle that cannot be used.
        UsageError, EngineError: a file that cannot be read, or an engine that cannot be opened.
    """
    bundle = read_bundle(gate.bundle)
    last = None if gate.last is None else read_bundle(gate.last)
    done: list[Check] = []
    with ExitStack() as stack:
        checks = _Checks(gate, bundle, last, stack)
        for name in NAMES:
            if name in gate.skip:
                made = skipped(name, "left out, as was asked for")
            else:
                try:
                    made = checks.made(name)
                except PdpError as error:
                    made = check(name, "could not be checked", error.message.splitlines())
            done.append(made)
            if progress is not None:
                progress(made)
    return ReleaseCheck(bundle.revision, bundle.release, tuple(done))


class _Checks:
    def __init__(self, gate: Gate, bundle: Bundle, last: Bundle | None, stack: ExitStack) -> None:
        self._gate, self._bundle, self._last = gate, bundle, last
        held = bundle.data.get("manifests", {})
        # Decided by the bundle itself: neither the files' policies nor a manifest that it does not hold.
        self._suites = [
            replace(suite, bundle=gate.bundle, policies=()) for suite in gate.suites if suite.manifest.digest in held
        ]
        self._engine = stack.enter_context(EmbeddedEngine(bundle))
        self._runs = tuple(self._ran(stack))
        self._run = RunResult(tuple(run for run, _ in self._runs))

    def made(self, name: str) -> Check:
        """Make one check."""
        made: Check = getattr(self, f"_{name.replace('-', '_')}")(name)
        return made

    def _ran(self, stack: ExitStack) -> Iterator[tuple[SuiteResult, EmbeddedEngine]]:
        for suite in self._suites:
            data = {root: value for root, value in suite.data.items() if root not in self._bundle.data}
            engine = stack.enter_context(EmbeddedEngine(self._bundle, data=data)) if data else self._engine
            started = time.perf_counter()
            results = tuple(Runner(suite, engine).run_all())
            yield SuiteResult(suite, "embedded", results, {}, time.perf_counter() - started), engine

    def _manifest_digest(self, name: str) -> Check:
        reasons = _absent_manifests(self._bundle, self._gate.suites)
        reasons += _unexamined_manifests(self._bundle, self._last, self._gate.suites)
        for run in self._run.suites:
            if run.bundle_revision not in (None, self._bundle.revision):
                reasons.append(f"{run.suite.file}: decided by {run.bundle_revision}")
        if not self._gate.suites:
            reasons.append("no scenario file was named")
        return check(name, f"{len(self._run.suites)} scenario files, decided by {self._bundle.revision}", reasons)

    def _scenarios(self, name: str) -> Check:
        failed = [f"{one.place.file}:{one.place.line}: {one.name}" for one in self._run.results if not one.passed]
        if not self._run.results:
            failed = ["none was run"]
        return check(name, f"{len(self._run.results)} scenarios", failed)

    def _golden_schemas(self, name: str) -> Check:
        golden = self._run.golden
        reasons = [] if golden.total else ["no scenario is golden: mark calls of a well-behaved agent `golden: true`"]
        if golden.schema_valid < golden.total:
            reasons += self._golden("schema_valid", "its arguments are not valid against the tool's schema")
        return check(name, f"{golden.schema_valid} of {golden.total} golden scenarios are valid", reasons)

    def _manifest_violations(self, name: str) -> Check:
        golden = self._run.golden
        reasons = self._golden("in_manifest", "proposes a tool that the manifest does not have")
        return check(
            name, f"{golden.total - golden.in_manifest} violations in {golden.total} golden scenarios", reasons
        )

    def _golden(self, field: str, what: str) -> list[str]:
        return [
            f"{one.place.file}:{one.place.line}: {one.name}: {what}"
            for one in self._run.results
            if one.golden
            and any(
                getattr(evaluation.trace, field) is not True for step in one.steps for evaluation in step.evaluations
            )
        ]

    def _tools_proven(self, name: str) -> Check:
        changed = self._changed_tools()
        reasons = []
        # Manifest by manifest: what is proven of a tool in one of them says nothing about the same name in another.
        for digest, tools in changed.items():
            runs = [(run.suite, run.results) for run, _ in self._runs_about(digest)]
            if not runs:
                reasons += [f"{each}: no scenario file is about that manifest" for each in self._named(digest, tools)]
                continue
            reasons += [
                f"{one.file}: {one.message}"
                for one in measure(runs, None).missing
                if one.kind in ("allow", "refusal") and one.name in tools
            ]
        return check(name, _counted(changed), reasons)

    def _actions_known(self, name: str) -> Check:
        count = sum(len(each.get("tools", {})) for each in self._bundle.data.get("manifests", {}).values())
        reasons = _unknown_actions(self._bundle, self._engine)
        return check(name, f"{count} tools", reasons if count else ["the bundle has no tool"])

    def _coverage(self, name: str) -> Check:
        if self._gate.coverage is None:
            return skipped(name, "no threshold was named: --coverage PERCENT")
        coverage = measure([(run.suite, run.results) for run in self._run.suites], find_opa())
        percent = "unknown" if coverage.percent is None else f"{coverage.percent:.1f} %"
        return check(name, f"{percent} of the lines of Rego", coverage.complaints(self._gate.coverage))

    def _mutation(self, name: str) -> Check:
        threshold = self._gate.mutation
        if threshold is None:
            return skipped(name, "no threshold was named: --mutation PERCENT")
        run = MutationRun()
        marked = read_equivalents(beside([suite.file for suite in self._gate.suites]))
        mutate(self._gate.suites, opa=find_opa(), baseline=False, only=None, marked=marked, run=run)
        score = run.score
        reasons = [str(fault) for fault in run.faults]
        if score is None or score < threshold:
            reasons.append(f"{threshold:g} % are asked for; see: pdp mutate")
        shown = "no mutant to judge" if score is None else f"{score:.1f} % of {run.total} mutants are noticed"
        return check(name, shown, reasons)

    def _packs(self, name: str) -> Check:
        changed = self._changed_tools()
        reasons = []
        for digest, tools in changed.items():
            runs = self._runs_about(digest)
            if not runs:
                reasons += [
                    f"{each}: no scenario file is about that manifest, so its pack was not run"
                    for each in self._named(digest, tools)
                ]
            for run, engine in runs:
                folders = [*self._gate.packs, run.suite.file.parent / "packs"]
                for tool in run.suite.manifest.tools.values():
                    if tool.name in tools:
                        reasons += pack_faults(tool, self._manifests_with(digest, tool.name), folders, engine)
        return check(name, _counted(changed), list(dict.fromkeys(reasons)))

    def _loosening(self, name: str) -> Check:
        if self._gate.last is None:
            return skipped(name, "no last release was named: --last FILE")
        diff = bundle_diff(self._gate.last, self._gate.bundle, suites=self._gate.suites, most=self._gate.generate)
        loosenings = diff.loosenings()
        # What could not be looked at has to be explained as well, or a loosening would pass where nobody looks.
        found = {**loosenings, **diff.unseen()}
        explained = {one.difference: one for one in self._gate.explanations}
        reasons = [f"{what} is not explained: {each}" for what, each in found.items() if what not in explained]
        reasons += [
            f"{one.place}: explains {one.difference}, which is no loosening of this release: take it out"
            for what, one in explained.items()
            if what not in found
        ]
        unseen = f", {len(found) - len(loosenings)} that would not be seen" if len(found) > len(loosenings) else ""
        return check(name, f"{len(loosenings)} loosenings{unseen}, {len(found.keys() & explained)} explained", reasons)

    def _manifest_version(self, name: str) -> Check:
        last = {} if self._last is None else self._last.data.get("manifests", {})
        new = self._bundle.data.get("manifests", {})
        return check(name, f"{len(new)} manifests", _reused_versions(new, last))

    def _audit_pinned(self, name: str) -> Check:
        events, reasons = _unpinned_golden_events(self._bundle, [(run.suite, engine) for run, engine in self._runs])
        for file in self._gate.audit:
            count, wrong = _unpinned_events(file, self._bundle)
            events += count
            reasons += wrong
        if not events:
            reasons = ["there is no event: name golden scenarios, or --audit FILE"]
        return check(name, f"{events} audit events", reasons)

    def _changed_tools(self) -> dict[str, set[str]]:
        """The tools whose entry no manifest of the last release has just so, by the digest of their manifest."""
        before = {} if self._last is None else self._last.data.get("manifests", {})
        known = [document.get("tools", {}) for document in before.values()]
        changed = {
            digest: {
                tool
                for tool, entry in document.get("tools", {}).items()
                if not any(tools.get(tool) == entry for tools in known)
            }
            for digest, document in self._bundle.data.get("manifests", {}).items()
        }
        return {digest: tools for digest, tools in changed.items() if tools}

    def _runs_about(self, digest: str) -> list[tuple[SuiteResult, EmbeddedEngine]]:
        return [(run, engine) for run, engine in self._runs if run.suite.manifest.digest == digest]

    def _manifests_with(self, digest: str, tool: str) -> set[str]:
        """The manifests of the bundle that have just this entry: who proves it in one has proven it in all."""
        held = self._bundle.data["manifests"]
        entry = held[digest]["tools"][tool]
        return {each for each, document in held.items() if document.get("tools", {}).get(tool) == entry}

    def _named(self, digest: str, tools: Collection[str]) -> list[str]:
        version = self._bundle.data["manifests"][digest].get("manifest_version")
        return [f"{tool} of manifest {version}" for tool in sorted(tools)]


def _counted(changed: Mapping[str, Collection[str]]) -> str:
    return f"{sum(map(len, changed.values()))} tools that are new or changed"


def _unknown_actions(bundle: Bundle, engine: EmbeddedEngine) -> list[str]:
    """Return the actions of the bundle's manifests that its policy does not know, each with its tool."""
    found = []
    for digest, document in bundle.data.get("manifests", {}).items():
        for tool in called_tools(document, digest):
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


def _reused_versions(new: Mapping[str, Any], last: Mapping[str, Any]) -> list[str]:
    """Return the manifests that have other content than one of the same version; documents by digest."""
    versions: dict[str, str] = {str(document.get("manifest_version")): digest for digest, document in last.items()}
    found = []
    for digest, document in new.items():
        version = str(document.get("manifest_version"))
        known = versions.setdefault(version, digest)
        if known != digest and digest not in last:
            found.append(f"manifest {version} is {digest}, and {known} has that version already: give it a new one")
    return found


def _absent_manifests(bundle: Bundle, suites: Sequence[Suite]) -> list[str]:
    """Return the scenario files whose manifest the bundle does not hold, by digest."""
    held = bundle.data.get("manifests", {})
    return [
        f"{suite.file}: about manifest {suite.manifest.version}, {suite.manifest.digest}: the bundle does not hold it"
        for suite in suites
        if suite.manifest.digest not in held
    ]


def _unexamined_manifests(bundle: Bundle, last: Bundle | None, suites: Sequence[Suite]) -> list[str]:
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


def _unpinned_golden_events(bundle: Bundle, runs: Sequence[tuple[Suite, EmbeddedEngine]]) -> tuple[int, list[str]]:
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


def _unpinned_events(file: Path, bundle: Bundle) -> tuple[int, list[str]]:
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
