"""The checks of the release gate, in order. If a check fails, the remaining checks still run.

Sources of the checks: tool registry document, "Release gate" (schema validation 100 % on golden tool scenarios,
manifest violations 0); tool pattern library, 9.1 (eval-gated).
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
from pdp.workbench.engines import ENGINE_TIMEOUT, LATE
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
"""The names of the checks, in the order in which they run."""

_UNKNOWN: Final = frozenset(("manifest.mismatch", "manifest.unknown_action", "effects.unknown",
                             "decision.concern_not_loaded", "decision.request_invalid"))  # fmt: skip


MOST: Final = 10
"""The maximum number of reasons that are printed for a check; `--json` prints all of them."""


class CheckStatus(StrEnum):
    """The outcome of a check of the release gate."""

    PASSED = "pass"
    FAILED = "fail"
    SKIPPED = "skip"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check of the release gate: a summary and, if the check failed, the reasons with locations."""

    name: str
    status: CheckStatus
    summary: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleaseCheck:
    """The results of all checks of the release gate for a bundle."""

    revision: str
    release: int
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether the `scenarios` check passed and no other check failed. Other checks may be skipped."""
        statuses = {check.name: check.status for check in self.checks}
        return statuses["scenarios"] is CheckStatus.PASSED and CheckStatus.FAILED not in statuses.values()

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp release check --json` prints, which is a stable interface."""
        return {"passed": self.passed, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Gate:
    """The input of the release gate: a bundle, and scenarios for its manifests.

    `last` is the last release; None for a first release, or if the check `loosening` is skipped. `explanations` has the
    location of each explanation by the id of the loosening. `policies` are folders with concerns and unit tests, in
    addition to the folders of the suites. `generate` is the number of calls to generate to find loosenings.
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
    """Run every check, and call `progress` with each result. Raises `UsageError` if the last release is not older."""
    bundle = read_bundle(gate.bundle)
    last = None if gate.last is None else read_bundle(gate.last)
    if last is not None and last.release >= bundle.release:
        raise UsageError(
            f"{gate.last}: release {last.release} must be lower than release {bundle.release} of the new bundle",
            hint="pass the bundle that engines use now, and build the new one with a higher --release",
        )
    done: list[Check] = []
    with ExitStack() as stack:
        checks = _Checks(gate, bundle, last, stack)
        for name in NAMES:
            done.append(checks.check(name))
            progress(done[-1])
    return ReleaseCheck(bundle.revision, bundle.release, tuple(done))


_Outcome = tuple[str, list[str] | None]
"""The summary of a check, and the reasons why it fails; None if there is nothing to check."""


class _Checks:
    def __init__(self, gate: Gate, bundle: Bundle, last: Bundle | None, stack: ExitStack) -> None:
        self._gate, self._bundle = gate, bundle
        self._manifests: Mapping[str, Any] = bundle.data.get("manifests", {})
        self._before: Mapping[str, Any] = {} if last is None else last.data.get("manifests", {})
        self._versions = {digest: str(manifest.get("manifest_version")) for digest, manifest in self._manifests.items()}
        # The bundle itself decides, without the policies that the scenario files name and without manifests that the
        # bundle lacks.
        self._suites = [
            replace(suite, bundle=gate.bundle, policies=())
            for suite in gate.suites
            if suite.manifest.digest in self._manifests
        ]
        self._engine = stack.enter_context(EmbeddedEngine(bundle, deadline=gate.engine_timeout))
        self._runs = tuple(self._run_suites(stack))
        self._run = RunResult(tuple(run for run, _ in self._runs))
        stated = [folder for suite in gate.suites for folder in suite.policies]
        self._changed = ChangedRego(bundle, last, [*gate.policies, *stated], gate.engine_timeout)

    def _run_suites(self, stack: ExitStack) -> Iterator[tuple[SuiteResult, EmbeddedEngine]]:
        for suite in self._suites:
            data = {root: value for root, value in suite.data.items() if root not in self._bundle.data}
            engine = self._engine
            if data:
                deadline = self._gate.engine_timeout
                engine = stack.enter_context(EmbeddedEngine(self._bundle, data=data, deadline=deadline))
            # The seconds are 0 because the gate's report does not show them.
            yield SuiteResult(suite, "embedded", tuple(Runner(suite, engine).run_all()), seconds=0), engine

    def check(self, name: str) -> Check:
        if name in self._gate.skip:
            return Check(name, CheckStatus.SKIPPED, "skipped by --skip")
        try:
            summary, reasons = getattr(self, name.replace("-", "_"))()
        except EngineTimeoutError:
            raise  # A timeout of the engine says nothing about the bundle, so it does not count as a failed check.
        except PdpError as error:
            return Check(name, CheckStatus.FAILED, "could not be checked", tuple(str(error).splitlines()))
        if reasons is None:
            return Check(name, CheckStatus.SKIPPED, summary)
        return Check(name, CheckStatus.FAILED if reasons else CheckStatus.PASSED, summary, tuple(reasons))

    def manifest_digest(self) -> _Outcome:
        reasons = [
            f"{suite.file}: the bundle does not hold its manifest {suite.manifest.version}, {suite.manifest.digest}"
            for suite in self._gate.suites
            if suite.manifest.digest not in self._manifests
        ]
        # Each manifest of the bundle needs scenarios, because scenarios for one manifest do not test the others.
        examined = {suite.manifest.digest for suite in self._gate.suites}
        reasons += [
            f"manifest {document.get('manifest_version')}, {digest}: new in this release, and no scenario file uses it"
            for digest, document in self._manifests.items()
            if digest not in self._before and digest not in examined
        ]
        return f"{_number(len(self._run.suites), 'scenario file')}, decided by {self._bundle.revision}", reasons

    def scenarios(self) -> _Outcome:
        results = self._run.results
        return _number(len(results), "scenario"), self._failing() if results else ["no scenario was run"]

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
        reasons += self._golden(lambda trace: bool(trace.idempotency_missing), "lacks the required idempotency key")
        violations = _number(len(reasons), "violation")
        return f"{violations} in {_number(self._run.golden.total, 'golden scenario')}", reasons

    def _golden(self, is_violation: Callable[[Trace], bool], message: str) -> list[str]:
        return [
            f"{_shown(result)}: {message}"
            for result in self._run.results
            if result.golden
            and any(is_violation(evaluation.trace) for step in result.steps for evaluation in step.evaluations)
        ]

    def tools_proven(self) -> _Outcome:
        changed = self._changed_tools()
        reasons = self._unexamined(changed)
        # Each manifest is measured separately, because two manifests may have a tool of the same name.
        for digest, tools in changed.items():
            reasons += [
                f"{missing.file}: {missing.message}"
                for missing in measure([(run.suite, run.results) for run, _ in self._runs_about(digest)], None).missing
                if missing.kind in ("allow", "refusal") and missing.name in tools
            ]
        return _tool_count(changed), reasons

    def actions_known(self) -> _Outcome:
        """Check that the bundle's policy knows the action of each tool in the bundle's manifests."""
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
                    reasons.append(f"{tool.name} of manifest {tool.version}: {action} gives {', '.join(wrong)}")
        return _number(count, "tool"), reasons if count else ["the bundle has no tool"]

    def unit_coverage(self) -> _Outcome:
        return self._changed.summary, self._changed.untested()

    def mutation(self) -> _Outcome:
        failing = self._failing()
        if failing and self._changed.paths:
            return "no mutant was tested: fix the failing scenarios first", failing
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
        return _tool_count(changed), list(dict.fromkeys(reasons))

    def loosening(self) -> _Outcome:
        if self._gate.last is None:
            if self._bundle.release > 1:
                reason = "pass the last release with --last FILE, or skip the check with --skip loosening"
                return f"release {self._bundle.release} is not the first, and --last is missing", [reason]
            return "first release: nothing to compare with", None
        diff = bundle_diff(
            self._gate.last,
            self._gate.bundle,
            suites=self._gate.suites,
            most=self._gate.generate,
            engine_timeout=self._gate.engine_timeout,
        )
        loosenings = diff.loosenings()
        # A change whose effect no call shows also needs an explanation, because it may loosen the policy unnoticed.
        differences = {**loosenings, **diff.unseen()}
        explained = self._gate.explanations
        reasons = [f"{name} is not explained: {what}" for name, what in differences.items() if name not in explained]
        reasons += [f"not finished: {part}; {LATE}" for part in diff.unfinished]
        reasons += [
            f"{place}: explains {name}, which is not a loosening of this release: remove it"
            for name, place in explained.items()
            # Without the extra `proof`, a change that is proved here needed its explanation.
            if name not in differences and not diff.structure.proved("equal", "narrower")
        ]
        hidden = len(differences) - len(loosenings)
        unseen = f", {hidden} unseen" if hidden else ""
        return (
            f"{_number(len(loosenings), 'loosening')}{unseen}, {len(differences.keys() & explained)} explained",
            reasons,
        )

    def manifest_version(self) -> _Outcome:
        """Check that manifests with different content have different versions, also compared with the last release."""
        versions = {str(document.get("manifest_version")): digest for digest, document in self._before.items()}
        reasons = []
        for digest, version in self._versions.items():
            known = versions.setdefault(version, digest)
            if known != digest and digest not in self._before:
                reasons.append(f"manifest {version}: {digest} and {known} have this version: change `manifest_version`")
        return _number(len(self._manifests), "manifest"), reasons

    def audit_pinned(self) -> _Outcome:
        """Check that each audit event of the golden calls names the bundle's revision and one of its manifests."""
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
        return _number(count, "audit event"), reasons if count else ["there is no event: add golden scenarios"]

    def _changed_tools(self) -> dict[str, set[str]]:
        """Return, by manifest digest, the tools whose entry is in no manifest of the last release."""
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
        """Return the bundle's manifests with the same entry of a tool. A test pack for one such manifest is enough."""
        entry = self._manifests[digest]["tools"][tool]
        return {other for other, document in self._manifests.items() if document.get("tools", {}).get(tool) == entry}

    def _unexamined(self, changed: Mapping[str, Collection[str]]) -> list[str]:
        return [
            f"{tool} of manifest {self._versions[digest]}: no scenario file uses that manifest"
            for digest, tools in changed.items()
            if not self._runs_about(digest)
            for tool in sorted(tools)
        ]


def _tool_count(changed: Mapping[str, Collection[str]]) -> str:
    count = sum(map(len, changed.values()))
    return f"{count} {'tool that is' if count == 1 else 'tools that are'} new or changed"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _shown(result: ScenarioResult) -> str:
    return f"{result.place.file}:{result.place.line}: {result.name}"


def lines(done: Check) -> Iterator[str]:
    """Yield the result of a check as lines of text: a summary and, if the check failed, the reasons."""
    yield f"{done.status.value:<4}  {done.name:<20}  {done.summary}"
    yield from (f"      {reason}" for reason in done.reasons[:MOST])
    if len(done.reasons) > MOST:
        yield f"      and {len(done.reasons) - MOST} more"


def summary(result: ReleaseCheck) -> str:
    """Return the last line of the report: whether the bundle may be released, and which checks were skipped."""
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
    """Return the location of each explanation in a file, by the id of the explained loosening.

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
