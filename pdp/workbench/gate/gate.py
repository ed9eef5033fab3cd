"""The checks in their order. Each stands alone: one that fails keeps none of the others from being made.

Sources: tool registry document, "Release gate" (schema validation 100 % on golden tool scenarios, manifest violations
0); tool pattern library, 9.1 (eval-gated); the rest is design.md's.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, StringConstraints, ValidationError

from pdp.audit.chain import MemoryAudit
from pdp.decision import parse_decision
from pdp.documents import faults_of, read_document
from pdp.engine.bundle.file import Bundle, read_bundle
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import EngineError, EngineTimeoutError, FileFaultsError, PdpError, Place, UsageError
from pdp.json import canonical
from pdp.manifest.fields import Text
from pdp.pep import Pep
from pdp.proposal import Trace
from pdp.workbench.coverage import measure
from pdp.workbench.diff.bundle_diff import GENERATED, bundle_diff
from pdp.workbench.engines import ENGINE_TIMEOUT
from pdp.workbench.gate.changed_rego import ChangedRego
from pdp.workbench.gate.packs import pack_faults
from pdp.workbench.neighbours.bases import called_tools, complete_call
from pdp.workbench.neighbours.vocabulary import Vocabulary
from pdp.workbench.scenarios.files.suite import Suite
from pdp.workbench.scenarios.results import RunResult, ScenarioResult, SuiteResult
from pdp.workbench.scenarios.running.runner import Runner

NAMES: Final = (
    "manifest-digest", "scenarios", "golden-schemas", "manifest-violations", "tools-proven", "actions-known",
    "unit-coverage", "mutation", "packs", "loosening", "manifest-version", "audit-pinned",
)  # fmt: skip
"""The checks, in their order."""

_UNKNOWN: Final = frozenset(("manifest.mismatch", "manifest.unknown_action", "effects.unknown",
                             "decision.concern_not_loaded", "decision.request_invalid"))  # fmt: skip


MOST: Final = 10
"""How many reasons of a check are printed; `--json` has all of them."""


class CheckStatus(StrEnum):
    """The outcome of a check."""

    PASSED = "pass"
    FAILED = "fail"
    SKIPPED = "skip"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the gate: what was checked, or why it was not; of a failure the reasons, each with where to look."""

    name: str
    status: CheckStatus
    summary: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleaseCheck:
    """The whole gate."""

    revision: str
    release: int
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed, and the bundle's own scenarios passed: without them nothing shows what it decides."""
        statuses = {check.name: check.status for check in self.checks}
        return statuses["scenarios"] is CheckStatus.PASSED and CheckStatus.FAILED not in statuses.values()

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp release check --json` prints; its form is stable."""
        return {"passed": self.passed, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Gate:
    """What is to be released, and what it is held against.

    Attributes:
        suites: scenarios about the bundle's manifests.
        last: the bundle of the last release; None: this is the first, or `loosening` is left out.
        explanations: where each loosening that a person has explained stands, by its id.
        policies: folders with the sources of concerns and their unit tests, beside those that the suites name.
        skip: names of checks that are not made.
        generate: how many calls the search for loosenings generates.
    """

    bundle: Path
    suites: Sequence[Suite]
    last: Path | None = None
    explanations: Mapping[str, Place] = field(default_factory=dict)
    policies: Sequence[Path] = ()
    skip: Collection[str] = ()
    generate: int = GENERATED
    engine_timeout: float = ENGINE_TIMEOUT


def release_check(gate: Gate, progress: Callable[[Check], None] = lambda _: None) -> ReleaseCheck:
    """Make every check; `progress` is told of each.

    BundleError: a bundle that cannot be used. UsageError: a file that cannot be read, or a last release that is not
    before this one. EngineError: an engine that cannot be opened or is late.
    """
    bundle = read_bundle(gate.bundle)
    last = None if gate.last is None else read_bundle(gate.last)
    if last is not None and last.release >= bundle.release:
        raise UsageError(
            f"{gate.last}: release {last.release} is not before release {bundle.release}, which is to go out",
            hint="name the bundle that engines have now, and build the new one with a higher --release",
        )
    done: list[Check] = []
    with ExitStack() as stack:
        checks = _Checks(gate, bundle, last, stack)
        for name in NAMES:
            done.append(checks.made(name))
            progress(done[-1])
    return ReleaseCheck(bundle.revision, bundle.release, tuple(done))


_Outcome = tuple[str, list[str] | None]
"""A summary, and the reasons why a check fails; None where there is nothing that could be checked."""


class _Checks:
    def __init__(self, gate: Gate, bundle: Bundle, last: Bundle | None, stack: ExitStack) -> None:
        self._gate, self._bundle = gate, bundle
        self._manifests: Mapping[str, Any] = bundle.data.get("manifests", {})
        self._before: Mapping[str, Any] = {} if last is None else last.data.get("manifests", {})
        self._versions = {digest: str(manifest.get("manifest_version")) for digest, manifest in self._manifests.items()}
        # Decided by the bundle itself: neither the files' policies nor a manifest that it does not hold.
        self._suites = [
            replace(suite, bundle=gate.bundle, policies=())
            for suite in gate.suites
            if suite.manifest.digest in self._manifests
        ]
        self._engine = stack.enter_context(EmbeddedEngine(bundle, deadline=gate.engine_timeout))
        self._runs = tuple(self._ran(stack))
        self._run = RunResult(tuple(run for run, _ in self._runs))
        stated = [folder for suite in gate.suites for folder in suite.policies]
        self._changed = ChangedRego(bundle, last, [*gate.policies, *stated], gate.engine_timeout)

    def _ran(self, stack: ExitStack) -> Iterator[tuple[SuiteResult, EmbeddedEngine]]:
        for suite in self._suites:
            data = {root: value for root, value in suite.data.items() if root not in self._bundle.data}
            engine = self._engine
            if data:
                deadline = self._gate.engine_timeout
                engine = stack.enter_context(EmbeddedEngine(self._bundle, data=data, deadline=deadline))
            # Nobody reads how long it took.
            yield SuiteResult(suite, "embedded", tuple(Runner(suite, engine).run_all()), seconds=0), engine

    def made(self, name: str) -> Check:
        if name in self._gate.skip:
            return Check(name, CheckStatus.SKIPPED, "left out, as was asked for")
        try:
            summary, reasons = getattr(self, name.replace("-", "_"))()
        except EngineTimeoutError:
            raise  # that says nothing of the bundle
        except PdpError as error:
            return Check(name, CheckStatus.FAILED, "could not be checked", tuple(str(error).splitlines()))
        if reasons is None:
            return Check(name, CheckStatus.SKIPPED, summary)
        return Check(name, CheckStatus.FAILED if reasons else CheckStatus.PASSED, summary, tuple(reasons))

    def manifest_digest(self) -> _Outcome:
        reasons = [
            f"{suite.file}: about manifest {suite.manifest.version}, {suite.manifest.digest}: "
            "the bundle does not hold it"
            for suite in self._gate.suites
            if suite.manifest.digest not in self._manifests
        ]
        # Several may stand side by side, and scenarios about one of them say nothing about another.
        examined = {suite.manifest.digest for suite in self._gate.suites}
        reasons += [
            f"manifest {document.get('manifest_version')}, {digest}: new in this release, and no scenario file is "
            "about it"
            for digest, document in self._manifests.items()
            if digest not in self._before and digest not in examined
        ]
        return f"{_number(len(self._run.suites), 'scenario file')}, decided by {self._bundle.revision}", reasons

    def scenarios(self) -> _Outcome:
        results = self._run.results
        return _number(len(results), "scenario"), self._failing() if results else ["none was run"]

    def _failing(self) -> list[str]:
        return [_shown(result) for result in self._run.results if not result.passed]

    def golden_schemas(self) -> _Outcome:
        golden = self._run.golden
        reasons = [] if golden.total else ["no scenario is golden: mark calls of a well-behaved agent `golden: true`"]
        reasons += self._golden(
            lambda trace: trace.schema_valid is not True, "its arguments are not valid against the tool's schema"
        )
        return f"{golden.schema_valid} of {golden.total} golden scenarios are valid", reasons

    def manifest_violations(self) -> _Outcome:
        reasons = self._golden(
            lambda trace: trace.in_manifest is not True, "proposes a tool that the manifest does not have"
        )
        reasons += self._golden(lambda trace: bool(trace.idempotency_missing), "has no key for a tool that needs one")
        violations = _number(len(reasons), "violation")
        return f"{violations} in {_number(self._run.golden.total, 'golden scenario')}", reasons

    def _golden(self, is_violation: Callable[[Trace], bool], said: str) -> list[str]:
        return [
            f"{_shown(result)}: {said}"
            for result in self._run.results
            if result.golden
            and any(is_violation(evaluation.trace) for step in result.steps for evaluation in step.evaluations)
        ]

    def tools_proven(self) -> _Outcome:
        changed = self._changed_tools()
        reasons = self._unexamined(changed)
        # Manifest by manifest: what is proven of a tool in one of them says nothing about the same name in another.
        for digest, tools in changed.items():
            reasons += [
                f"{missing.file}: {missing.message}"
                for missing in measure([(run.suite, run.results) for run, _ in self._runs_about(digest)], None).missing
                if missing.kind in ("allow", "refusal") and missing.name in tools
            ]
        return _counted(changed), reasons

    def actions_known(self) -> _Outcome:
        """Each action of the bundle's manifests is known to its policy."""
        reasons, count = [], 0
        for digest, document in self._manifests.items():
            count += len(document.get("tools", {}))
            for tool in called_tools(document, digest):
                request = complete_call(tool, Vocabulary(), [], {})
                try:
                    codes = parse_decision(self._engine.evaluate(canonical(request))).codes
                except EngineTimeoutError:
                    raise
                except EngineError as error:
                    codes = (error.code,)
                wrong = [code for code in codes if code in _UNKNOWN or code.startswith("engine.")]
                if wrong:
                    action = tool.stated[0].get("pdp_action", "no action")
                    reasons.append(f"{tool.name} of manifest {tool.version}: {action} is {', '.join(wrong)}")
        return _number(count, "tool"), reasons if count else ["the bundle has no tool"]

    def unit_coverage(self) -> _Outcome:
        return self._changed.summary, self._changed.untested()

    def mutation(self) -> _Outcome:
        failing = self._failing()
        if failing and self._changed.paths:
            return "no mutant was made: mend what fails without one", failing
        return self._changed.survivors(self._suites)

    def packs(self) -> _Outcome:
        changed = self._changed_tools()
        reasons = self._unexamined(changed)
        for digest, tools in changed.items():
            for run, engine in self._runs_about(digest):
                folder = run.suite.file.parent / "packs"
                for tool in run.suite.manifest.tools.values():
                    if tool.name in tools:
                        reasons += pack_faults(tool, self._manifests_with(digest, tool.name), folder, engine)
        return _counted(changed), list(dict.fromkeys(reasons))

    def loosening(self) -> _Outcome:
        if self._gate.last is None:
            if self._bundle.release > 1:
                reason = "name the last release, --last FILE, or leave the check out by its name, --skip loosening"
                return f"release {self._bundle.release} is not the first, and no last one was named", [reason]
            return "a first release: there is no last one", None
        diff = bundle_diff(
            self._gate.last,
            self._gate.bundle,
            suites=self._gate.suites,
            most=self._gate.generate,
            engine_timeout=self._gate.engine_timeout,
        )
        loosenings = diff.loosenings()
        # What could not be looked at has to be explained as well, or a loosening would pass where nobody looks.
        differences = {**loosenings, **diff.unseen()}
        explained = self._gate.explanations
        reasons = [f"{name} is not explained: {what}" for name, what in differences.items() if name not in explained]
        reasons += [
            f"{place}: explains {name}, which is no loosening of this release: take it out"
            for name, place in explained.items()
            if name not in differences
        ]
        hidden = len(differences) - len(loosenings)
        unseen = f", {hidden} that would not be seen" if hidden else ""
        return (
            f"{_number(len(loosenings), 'loosening')}{unseen}, {len(differences.keys() & explained)} explained",
            reasons,
        )

    def manifest_version(self) -> _Outcome:
        """No manifest has other content than one of the same version."""
        versions = {str(document.get("manifest_version")): digest for digest, document in self._before.items()}
        reasons = []
        for digest, version in self._versions.items():
            known = versions.setdefault(version, digest)
            if known != digest and digest not in self._before:
                reasons.append(
                    f"manifest {version} is {digest}, and {known} has that version already: give it a new one"
                )
        return _number(len(self._manifests), "manifest"), reasons

    def audit_pinned(self) -> _Outcome:
        """Each event of the golden calls, proposed once more, names a manifest of the bundle, and this revision."""
        count, reasons = 0, []
        for run, engine in self._runs:
            suite, audit = run.suite, MemoryAudit()
            pep = Pep(suite.manifest, engine, audit=audit)
            for at, scenario in enumerate(suite.scenarios):
                for step, session in zip(scenario.steps, suite.sessions[at], strict=True):
                    if scenario.golden and step.action == "propose" and session is not None:
                        pep.decide(step.propose, session)
            count += len(audit.events)
            for event in audit.events:
                digest, version = event.get("manifest_digest"), event.get("manifest_version")
                pinned = version is not None and self._versions.get(str(digest)) == version
                if not pinned or event.get("bundle_revision") not in (None, self._bundle.revision):
                    which = f"{suite.file}: event {event.get('seq')} ({event.get('type')})"
                    reasons.append(f"{which} names manifest {version}, {digest}, bundle {event.get('bundle_revision')}")
        return _number(count, "audit event"), reasons if count else ["there is no event: name golden scenarios"]

    def _changed_tools(self) -> dict[str, set[str]]:
        """The tools whose entry no manifest of the last release has just so, by the digest of their manifest."""
        known = [document.get("tools", {}) for document in self._before.values()]
        changed = {
            digest: {
                tool
                for tool, entry in document.get("tools", {}).items()
                if not any(tools.get(tool) == entry for tools in known)
            }
            for digest, document in self._manifests.items()
        }
        return {digest: tools for digest, tools in changed.items() if tools}

    def _runs_about(self, digest: str) -> list[tuple[SuiteResult, EmbeddedEngine]]:
        return [(run, engine) for run, engine in self._runs if run.suite.manifest.digest == digest]

    def _manifests_with(self, digest: str, tool: str) -> set[str]:
        """The manifests of the bundle that have just this entry: who proves it in one has proven it in all."""
        entry = self._manifests[digest]["tools"][tool]
        return {other for other, document in self._manifests.items() if document.get("tools", {}).get(tool) == entry}

    def _unexamined(self, changed: Mapping[str, Collection[str]]) -> list[str]:
        return [
            f"{tool} of manifest {self._versions[digest]}: no scenario file is about that manifest"
            for digest, tools in changed.items()
            if not self._runs_about(digest)
            for tool in sorted(tools)
        ]


def _counted(changed: Mapping[str, Collection[str]]) -> str:
    count = sum(map(len, changed.values()))
    return f"{count} {'tool that is' if count == 1 else 'tools that are'} new or changed"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _shown(result: ScenarioResult) -> str:
    return f"{result.place.file}:{result.place.line}: {result.name}"


def lines(done: Check) -> Iterator[str]:
    """Yield a check's line, and below it why it failed."""
    yield f"{done.status.value:<4}  {done.name:<20}  {done.summary}"
    yield from (f"      {reason}" for reason in done.reasons[:MOST])
    if len(done.reasons) > MOST:
        yield f"      and {len(done.reasons) - MOST} more"


def summary(result: ReleaseCheck) -> str:
    """Return the last line, which names what was not checked."""
    statuses = [check.status for check in result.checks]
    names = ", ".join(check.name for check in result.checks if check.status is CheckStatus.SKIPPED)
    word = "may be released" if result.passed else "must not be released"
    passed, failed, skipped = map(statuses.count, CheckStatus)
    return (
        f"release {result.release} {word}: {passed} passed, {failed} failed, {skipped} skipped{names and f': {names}'}"
    )


class _Explained(BaseModel, extra="forbid", frozen=True):
    difference: Text
    reason: Annotated[Text, StringConstraints(strip_whitespace=True)]


class _Explanations(BaseModel, extra="forbid", frozen=True):
    explained: tuple[_Explained, ...]


def read_explanations(file: Path) -> dict[str, Place]:
    """Return where each loosening that a person has looked at and explained stands in a file, by its id.

    explained:
      - difference: d3f2a9c1d04be    # the id that `pdp bundle diff` shows
        reason: purposes of look-ups are optional since the review of the directory
    """
    document = read_document(file)
    try:
        entries = _Explanations.model_validate(document.value).explained
    except ValidationError as error:
        raise FileFaultsError(faults_of(error, document, _Explanations)) from error
    return {entry.difference: document.place(("explained", at)) for at, entry in enumerate(entries)}
