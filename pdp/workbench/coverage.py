"""Measure which lines of Rego, reason codes, and verdicts of each tool the scenarios reach, and report the gaps.

Only scenarios that passed count. Unit tests of Rego do not count, because they reach lines that no call reaches. A
suite covers the custom concerns of its policy. The baseline is covered only by its own suites in `tests/scenarios`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pdp.decision import Verdict
from pdp.installed import packaged
from pdp.json import canonical, digest
from pdp.ledger.summary import GOOD
from pdp.manifest.roles import RoleNames
from pdp.opa.evaluation import Evaluator
from pdp.opa.modules import Module
from pdp.opa.rules import RuleSite, rule_sites, sites_by_code, statements
from pdp.workbench.explain.explain import NO_DECISION
from pdp.workbench.scenarios.files.suite import Suite, policy_modules
from pdp.workbench.scenarios.results import ScenarioResult, StepResult
from pdp.workbench.scenarios.running.engines import whole_data
from pdp.workbench.shown_file import shown_file

_Runs = Sequence[tuple[Suite, Sequence[ScenarioResult]]]

_REJECTED: Final = "rejected"
"""The column that counts calls that were rejected before the policy was asked."""

_KINDS: Final = ("allow", "refusal", "code")

COLUMNS: Final = (*(verdict.value for verdict in (Verdict.ALLOW, Verdict.STEP_UP, Verdict.DENY)), _REJECTED)

# A decision does not evaluate the rule `findings`, but the rule's lines are counted as lines of the policy.
_DOCUMENT: Final = "[data.authz.decision, data.authz.findings]"
_PLAN: Final = "data.authz.plan"


@dataclass(frozen=True, slots=True)
class FileLines:
    """The sorted line numbers of a Rego file: `covered` lines were evaluated completely, `missed` lines were not."""

    file: str
    covered: tuple[int, ...]
    missed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CodeReached:
    """A reason code in METADATA, its first rule, and the first scenario that reaches it, as `FILE: NAME`.

    `file` is the first scenario file that has to cover the code, or None if no file has to. A decision that has an
    obligation reaches the reason code of the obligation's rule.
    """

    code: str
    site: RuleSite
    scenario: str | None
    file: str | None

    @property
    def exempt(self) -> str | None:
        """Why no scenario can reach the code (METADATA `custom.unreached`); None if a scenario reaches the code."""
        return self.site.unreached if self.scenario is None else None


@dataclass(frozen=True, slots=True)
class ToolVerdicts:
    """A tool's number of calls for each of `COLUMNS`. `file` is the first scenario file that uses its manifest."""

    tool: str
    manifest_version: str
    file: str
    counts: Counter[str]


@dataclass(frozen=True, slots=True)
class RoleReached:
    """A tool argument with a role, and the first scenario (`FILE: NAME`) where an untrusted source chose its value."""

    tool: str
    argument: str
    role: str
    scenario: str | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """A gap that the release gate reports, and the scenario file that has to close it.

    `kind` `allow`: no call of a tool is ALLOW; `refusal`: all calls are ALLOW; `code`: no call reaches a reason code.
    """

    kind: Literal["allow", "refusal", "code"]
    name: str
    message: str
    file: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the scenarios of one or more suites cover. `lines` is None without OPA. The release gate ignores `roles`."""

    lines: tuple[FileLines, ...] | None
    codes: tuple[CodeReached, ...]
    matrix: tuple[ToolVerdicts, ...]
    missing: tuple[Missing, ...]
    roles: tuple[RoleReached, ...] = ()

    @property
    def percent(self) -> float | None:
        """The percentage of covered Rego lines; None if the lines were not measured because OPA is missing."""
        if self.lines is None:
            return None
        covered = sum(len(file.covered) for file in self.lines)
        whole = covered + sum(len(file.missed) for file in self.lines)
        return 100.0 * covered / whole if whole else 100.0

    def complaints(self, fail_under: float | None) -> tuple[str, ...]:
        """Return a message for each gap, and a message if less than `fail_under` percent of the lines are covered."""
        messages = [missing.message for missing in self.missing]
        if fail_under is not None and self.percent is None:
            messages.append("lines of Rego: unknown without OPA; run: pdp opa install")
        elif fail_under is not None and self.percent is not None and self.percent < fail_under:
            messages.append(f"lines of Rego: {self.percent:.1f} % are covered, {fail_under:g} % are required")
        return tuple(messages)

    def as_json(self) -> dict[str, Any]:
        """Return the coverage as plain JSON. `percent` is rounded down to one decimal place."""
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
                    "counts": reached.file is not None,
                }
                for reached in self.codes
            ],
            "matrix": [
                {"tool": row.tool, "manifest_version": row.manifest_version, **row.counts}
                for row in self.matrix
            ],
            "missing": [asdict(missing) for missing in self.missing],
            "roles": [asdict(role) for role in self.roles],
        }  # fmt: skip


def measure(runs: _Runs, opa: Path | None) -> Coverage:
    """Measure what the scenarios of all suites reach together. Lines of Rego are measured only if `opa` is given."""
    passed = [(suite, [result for result in results if result.passed]) for suite, results in runs]
    codes, matrix = _codes(passed), _matrix(passed)
    missing = sorted(_missing(matrix, codes), key=lambda item: (_KINDS.index(item.kind), item.name, item.file))
    lines = None if opa is None else _measured_lines(passed, opa)
    return Coverage(lines, codes, matrix, tuple(missing), _roles(passed))


def _codes(runs: _Runs) -> tuple[CodeReached, ...]:
    sites: dict[str, RuleSite] = {}
    files: dict[str, str] = {}
    reached: dict[str, str] = {}
    for suite, results in runs:
        modules = policy_modules(suite)
        counted_modules = _counted_modules(suite, modules)
        of_obligation: defaultdict[str, set[str]] = defaultdict(set)
        for code, sites_here in sites_by_code(rule_sites(modules)).items():
            for site in sites_here:
                # If several rules have the same code, a rule that scenarios can reach is shown for the code.
                if code not in sites or (sites[code].unreached and not site.unreached):
                    sites[code] = site
                if site.module in counted_modules:
                    files.setdefault(code, str(suite.file))
                if site.part == "obligations":
                    of_obligation[site.obligation or code.partition(".")[2]].add(code)
        for result in results:
            named = f"{result.place.file}: {result.name}"
            for answer in (answer for step in result.steps for answer in step.answers):
                given = set(answer.decision.codes)
                given.update(*(of_obligation[obligation.id] for obligation in answer.decision.obligations))
                for code in given:
                    reached.setdefault(code, named)
    return tuple(CodeReached(code, sites[code], reached.get(code), files.get(code)) for code in sorted(sites))


def _matrix(runs: _Runs) -> tuple[ToolVerdicts, ...]:
    # Manifests are compared by their content, because two manifests may have the same version, and suites may share a
    # manifest.
    rows: dict[tuple[str, str], ToolVerdicts] = {}
    for suite, results in runs:
        manifest, version = _manifest_of(suite), suite.manifest.version
        for tool in suite.manifest.tools:
            none = Counter(dict.fromkeys(COLUMNS, 0))
            rows.setdefault((manifest, tool), ToolVerdicts(tool, version, str(suite.file), none))
        for result in results:
            for tool, column in (pair for step in result.steps for pair in _results_of(step)):
                # The model may call a tool that is not in the manifest, so the entry may be missing.
                if tool in suite.manifest.tools:
                    rows[manifest, tool].counts[column] += 1
    return tuple(rows.values())


def _manifest_of(suite: Suite) -> str:
    return digest(suite.files["manifest"][0].read_bytes())


def _roles(runs: _Runs) -> tuple[RoleReached, ...]:
    roles: dict[tuple[str, str, str], RoleReached] = {}
    for suite, results in runs:
        manifest = _manifest_of(suite)
        for tool in suite.manifest.tools.values():
            for argument, role in (tool.roles or {}).items():
                roles.setdefault((manifest, tool.name, argument), RoleReached(tool.name, argument, role))
        for result in results:
            for evaluation in (evaluation for step in result.steps for evaluation in step.evaluations):
                tool_name = evaluation.trace.tool_name or ""
                entry = suite.manifest.tools.get(tool_name)
                names = RoleNames((entry and entry.roles) or ())
                for path in _chosen_by_untrusted(evaluation.flow):
                    key = manifest, tool_name, names.of(path) or ""
                    if key in roles and roles[key].scenario is None:
                        roles[key] = replace(roles[key], scenario=f"{result.place.file}: {result.name}")
    return tuple(roles.values())


def _chosen_by_untrusted(flow: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the paths of the values in a call that no trusted source has chosen, if the run has read untrusted data."""
    for argument in flow["arguments"] if flow is not None and flow["tainted"] else ():
        chosen = argument["links"] if argument["role"] == "body" else [argument]
        if any(GOOD.isdisjoint(item["sources"]) for item in chosen):
            yield argument["path"]


def _results_of(step: StepResult) -> Iterator[tuple[str, str]]:
    for evaluation in step.evaluations:
        name, verdict = evaluation.trace.tool_name, evaluation.verdict or _REJECTED
        # A failed decision does not show whether the tool can be allowed or denied.
        if name is not None and NO_DECISION.isdisjoint(evaluation.codes):
            yield name, verdict
    if not step.evaluations and step.tool is not None:
        for answer in step.answers:
            # An ALLOW does not count, because a raw request may be allowed although no call can produce that request.
            if answer.decision.verdict is not Verdict.ALLOW and NO_DECISION.isdisjoint(answer.decision.codes):
                yield step.tool, answer.decision.verdict


def _missing(matrix: Sequence[ToolVerdicts], codes: Sequence[CodeReached]) -> Iterator[Missing]:
    for row in matrix:
        whose = f"{row.tool} of manifest {row.manifest_version}"
        if not row.counts[Verdict.ALLOW]:
            yield Missing("allow", row.tool, f"no scenario in which {whose} is ALLOW", row.file)
        if row.counts.total() == row.counts[Verdict.ALLOW]:
            yield Missing("refusal", row.tool, f"no scenario in which {whose} is not ALLOW", row.file)
    for code in codes:
        if code.file is not None and code.scenario is None and code.exempt is None:
            message = f"no scenario reaches {code.code} ({shown_file(code.site.file)}:{code.site.line})"
            yield Missing("code", code.code, message, code.file)


class _MeasuredPolicy(NamedTuple):
    """A policy, the requests to evaluate again for each document, and the modules whose lines are counted."""

    modules: Mapping[str, Module]
    data: Mapping[str, Any]
    requests: dict[str, dict[bytes, None]]
    counted: set[str]


def _counted_modules(suite: Suite, modules: Mapping[str, Module]) -> set[str]:
    custom = {path for path, module in modules.items() if module.custom}
    of_baseline = suite.file.resolve().is_relative_to(packaged("tests/scenarios").resolve())
    return custom or (set(modules) if of_baseline else set())


def _measured_lines(runs: _Runs, opa: Path) -> tuple[FileLines, ...]:
    """Evaluate recorded requests with coverage. Lines of exempt rules and of their callers never count as missed."""
    covered: defaultdict[str, set[int]] = defaultdict(set)
    missed: defaultdict[str, set[int]] = defaultdict(set)
    exempt: defaultdict[str, set[int]] = defaultdict(set)
    for policy in _policies(runs):
        if not policy.counted:
            continue
        files = {path: str(module.file) for path, module in policy.modules.items()}
        texts = {path: module.text for path, module in policy.modules.items()}
        with Evaluator(opa, texts, policy.data) as evaluator:
            for document, bodies in policy.requests.items():
                measured = evaluator.evaluate(list(bodies), document=document, coverage=True).lines or {}
                for path, lines in measured.items():
                    covered[files[path]].update(lines.covered)
                    missed[files[path]].update(lines.missed)
        for path in policy.counted:
            exempt[files[path]].update(_exempt_lines(path, policy.modules[path]))
    return tuple(
        FileLines(file, tuple(sorted(covered[file])), tuple(sorted(missed[file] - covered[file] - exempt[file])))
        for file in sorted(exempt)
    )


def _policies(runs: _Runs) -> list[_MeasuredPolicy]:
    policies: dict[str, _MeasuredPolicy] = {}
    for suite, results in runs:
        modules = policy_modules(suite)
        data = whole_data(suite)
        name = digest(canonical([data, {path: module.text for path, module in modules.items()}]))
        policy = policies.setdefault(name, _MeasuredPolicy(modules, data, {_DOCUMENT: {}}, set()))
        policy.counted.update(_counted_modules(suite, modules))
        for step in (step for result in results for step in result.steps):
            for document, answers in ((_DOCUMENT, step.answers), (_PLAN, step.plans)):
                for answer in answers:
                    # Requests whose decision failed are left out, because they would fail or time out again.
                    if not NO_DECISION.issuperset(answer.decision.codes):
                        policy.requests.setdefault(document, {})[answer.body] = None
    return list(policies.values())


def _exempt_lines(path: str, module: Module) -> Iterator[int]:
    for site in rule_sites({path: module}):
        if site.unreached is None:
            continue
        yield from range(site.line, site.last_line + 1)
        # If a helper builds the reason and is exempt, the rules that call the helper are exempt too.
        called = re.compile(rf"(?<!\w){re.escape(site.text.partition('(')[0])}\(")
        for statement in statements(module.text):
            if called.search(statement.text):
                yield from range(statement.line, statement.line + statement.text.count("\n") + 1)
