"""What scenarios reach: lines of Rego, reason codes, and each tool's verdicts. What none of them proves is missing.

Only scenarios that passed count, and only what they did: unit tests of Rego reach lines that no call ever takes. A
suite that states `policies` answers for these: the baseline has scenarios of its own. One that states none answers for
the baseline, and one with a bundle for the custom concerns in it, or for all of it when it has none.

The release gate: every tool has a call that is ALLOW and one that is not, and every reason code that can be given is
given. A code that cannot be given by any call says so in its METADATA (`custom.unreached`, with the reason).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pdp.decision import Verdict
from pdp.workbench.coverage.line_coverage import FileLines, counted_modules, measured_lines
from pdp.workbench.explain.explain import NO_DECISION
from pdp.workbench.opa.rules import RuleSite, rule_sites
from pdp.workbench.reports.shown_file import shown_file
from pdp.workbench.scenarios.files.suite import policy_modules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.workbench.opa.modules import Module
    from pdp.workbench.scenarios.files.suite import Suite
    from pdp.workbench.scenarios.results import ScenarioResult, StepResult

REJECTED: Final = "rejected"
"""The column for calls that the policy was not asked about."""

_KINDS: Final = ("allow", "refusal", "code")

COLUMNS: Final = (*(verdict.value for verdict in (Verdict.ALLOW, Verdict.STEP_UP, Verdict.DENY)), REJECTED)


@dataclass(frozen=True, slots=True)
class CodeReached:
    """One code that METADATA names, and who reached it.

    Attributes:
        site: its first rule; a code of an obligation is reached by the obligation's id.
        scenario: the first scenario that reached it, as `FILE: NAME`; None when none did.
        counts: whether these suites answer for it.
    """

    code: str
    site: RuleSite
    scenario: str | None
    counts: bool

    @property
    def exempt(self) -> str | None:
        """Why no scenario can reach it, if METADATA says so and none did."""
        return self.site.unreached if self.scenario is None else None


@dataclass(frozen=True, slots=True)
class ToolVerdicts:
    """One tool of one manifest file, and how many calls of it have each of `COLUMNS` as their result.

    Suites may lay different governance over one manifest: its tools are the same.
    """

    tool: str
    manifest_version: str
    manifest_text: str
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that the gate asks for.

    Attributes:
        kind: `allow`: the tool `name` is never allowed; `refusal`: it always is; `code`: nothing reaches that code.
        message: in words, with the place of the rule.
        file: the suite to add it to.
    """

    kind: Literal["allow", "refusal", "code"]
    name: str
    message: str
    file: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the scenarios of some suites reach; `lines` is None without OPA."""

    lines: tuple[FileLines, ...] | None
    codes: tuple[CodeReached, ...]
    matrix: tuple[ToolVerdicts, ...]
    missing: tuple[Missing, ...]

    @property
    def percent(self) -> float | None:
        """How many of a hundred lines are covered, in the files that count; None when it is not known."""
        if self.lines is None:
            return None
        covered = sum(len(file.covered) for file in self.lines)
        whole = covered + sum(len(file.missed) for file in self.lines)
        return 100.0 * covered / whole if whole else 100.0

    def complaints(self, fail_under: float | None) -> tuple[str, ...]:
        """Return what keeps this from being enough: all that is missing, and too few lines. Empty: it is enough.

        Args:
            fail_under: how many of a hundred lines have to be covered; None: lines are not looked at.
        """
        complaints = [missing.message for missing in self.missing]
        if fail_under is not None and self.percent is None:
            complaints.append("lines of Rego: not known without OPA; run: pdp opa install")
        elif fail_under is not None and self.percent is not None and self.percent < fail_under:
            complaints.append(f"lines of Rego: {self.percent:.1f} % are covered, {fail_under:g} % are asked for")
        return tuple(complaints)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON; `percent` with one digit, rounded down."""
        percent = self.percent
        return {
            "percent": None if percent is None else int(percent * 10) / 10,
            "lines": None
            if self.lines is None
            else [
                {"file": shown_file(file.file), "covered": len(file.covered), "missed": list(file.missed)}
                for file in self.lines
            ],
            "codes": [
                {
                    "code": reached.code, "part": reached.site.part, "file": shown_file(reached.site.file),
                    "line": reached.site.line, "scenario": reached.scenario, "exempt": reached.exempt,
                    "counts": reached.counts,
                }
                for reached in self.codes
            ],
            "matrix": [
                {"tool": row.tool, "manifest_version": row.manifest_version, **row.counts}
                for row in self.matrix
            ],
            "missing": [asdict(missing) for missing in self.missing],
        }  # fmt: skip


def measure(runs: Sequence[tuple[Suite, Sequence[ScenarioResult]]], opa: Path | None) -> Coverage:
    """Measure what the scenarios of these suites reach, all of them together.

    Args:
        runs: each suite with its results, of one engine or of both.
        opa: the OPA program, for the lines; None: lines stay unknown.

    Raises:
        UsageError, BundleError, EngineTimeoutError: the suites' policies cannot be read, or not be evaluated again.
    """
    modules = [policy_modules(suite) for suite, _ in runs]
    lines = None if opa is None else measured_lines([(suite, passed(results)) for suite, results in runs], opa)
    codes = _codes(runs, modules)
    matrix = _matrix(runs)
    return Coverage(
        lines=lines,
        codes=codes,
        matrix=matrix,
        missing=tuple(
            sorted(
                {*_missing_tools(matrix, runs), *_missing_codes(codes, runs, modules)},
                key=lambda missing: (_KINDS.index(missing.kind), missing.name, missing.file),
            )
        ),
    )


def passed(results: Iterable[ScenarioResult]) -> list[ScenarioResult]:
    """Return the results of the scenarios that passed."""
    return [result for result in results if result.passed]


def _codes(
    runs: Sequence[tuple[Suite, Sequence[ScenarioResult]]], modules: Sequence[Mapping[str, Module]]
) -> tuple[CodeReached, ...]:
    sites: dict[str, RuleSite] = {}
    counted: set[str] = set()
    reached: dict[str, str] = {}
    for (_, results), policy in zip(runs, modules, strict=True):
        answered_for = counted_modules(policy)
        sites_here = [site for site in rule_sites(policy) if site.code is not None]
        for site in sites_here:
            # Of several rules with one code, one that can be reached speaks for it.
            if site.code and (site.code not in sites or (sites[site.code].unreached and not site.unreached)):
                sites[site.code] = site
        counted |= {site.code for site in sites_here if site.code and site.module in answered_for}
        of_obligation: dict[str, set[str]] = {}
        for site in sites_here:
            if site.part == "obligations" and site.code:
                name = site.obligation or site.code.partition(".")[2]
                of_obligation.setdefault(name, set()).add(site.code)
        for result in passed(results):
            named = f"{result.file}: {result.name}"
            for answer in (answer for step in result.steps for answer in step.answers):
                given = set(answer.decision.codes)
                given.update(*(of_obligation.get(obligation.id, ()) for obligation in answer.decision.obligations))
                for code in given:
                    reached.setdefault(code, named)
    return tuple(CodeReached(code, sites[code], reached.get(code), code in counted) for code in sorted(sites))


def _matrix(runs: Sequence[tuple[Suite, Sequence[ScenarioResult]]]) -> tuple[ToolVerdicts, ...]:
    # By the file's text: two manifests may have the same version, and one manifest several governance files.
    rows: dict[tuple[str, str], Counter[str]] = {}
    versions: dict[str, str] = {}
    for suite, results in runs:
        manifest = suite.manifest_text
        versions[manifest] = suite.manifest.version
        for tool in suite.manifest.tools:
            rows.setdefault((manifest, tool), Counter())
        for result in passed(results):
            for tool, column in (pair for step in result.steps for pair in _results_of(step)):
                # A name that no manifest has is the model's, and no tool.
                if tool in suite.manifest.tools:
                    rows[manifest, tool][column] += 1
    return tuple(
        ToolVerdicts(tool, versions[manifest], manifest, {column: counts[column] for column in COLUMNS})
        for (manifest, tool), counts in rows.items()
    )


def _results_of(step: StepResult) -> Iterator[tuple[str, str]]:
    """The tools that a step called, each with the column of its result."""
    for evaluation in step.evaluations:
        name, verdict = evaluation.trace.tool_name, evaluation.verdict or REJECTED
        # Where nobody decided, nothing is known of the tool.
        if name is not None and NO_DECISION.isdisjoint(evaluation.codes):
            yield name, verdict
    if not step.evaluations and step.tool is not None:
        for answer in step.answers:
            # What a raw request is allowed, no call may reach.
            if answer.decision.verdict is not Verdict.ALLOW and NO_DECISION.isdisjoint(answer.decision.codes):
                yield step.tool, answer.decision.verdict


def _missing_tools(
    matrix: Sequence[ToolVerdicts], runs: Sequence[tuple[Suite, Sequence[ScenarioResult]]]
) -> Iterator[Missing]:
    for row in matrix:
        file = next(
            str(suite.file)
            for suite, _ in runs
            if suite.manifest_text == row.manifest_text and row.tool in suite.manifest.tools
        )
        whose = f"{row.tool} of manifest {row.manifest_version}"
        if not row.counts[Verdict.ALLOW]:
            yield Missing("allow", row.tool, f"no scenario in which {whose} is ALLOW", file)
        if not any(row.counts[column] for column in COLUMNS if column != Verdict.ALLOW):
            yield Missing("refusal", row.tool, f"no scenario in which {whose} is not ALLOW", file)


def _missing_codes(
    codes: Sequence[CodeReached],
    runs: Sequence[tuple[Suite, Sequence[ScenarioResult]]],
    modules: Sequence[Mapping[str, Module]],
) -> Iterator[Missing]:
    for reached in codes:
        if not reached.counts or reached.scenario is not None or reached.exempt is not None:
            continue
        code, site = reached.code, reached.site
        answering = (
            str(suite.file)
            for (suite, _), policy in zip(runs, modules, strict=True)
            if site.module in counted_modules(policy)
        )
        message = f"no scenario reaches {code} ({shown_file(site.file)}:{site.line})"
        yield Missing("code", code, message, next(answering, ""))
