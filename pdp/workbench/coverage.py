"""What scenarios reach: lines of Rego, reason codes, and each tool's verdicts. What none of them proves is missing.

Only scenarios that passed count: unit tests of Rego reach lines that no call takes. A suite answers for the custom
concerns that decide, stated or in its bundle. Only the baseline's own suites, `tests/scenarios`, answer for its lines.

The release gate: every tool has a call that is ALLOW and one that is not, and every reason code that can be given is
given. A code that cannot be given by any call says so in its METADATA (`custom.unreached`, with the reason).
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
"""The column for calls that the policy was not asked about."""

_KINDS: Final = ("allow", "refusal", "code")

COLUMNS: Final = (*(verdict.value for verdict in (Verdict.ALLOW, Verdict.STEP_UP, Verdict.DENY)), _REJECTED)

# What fired is asked by reports, and not for a decision; its lines are no less the policy's.
_DOCUMENT: Final = "[data.authz.decision, data.authz.findings]"
_PLAN: Final = "data.authz.plan"


@dataclass(frozen=True, slots=True)
class FileLines:
    """One Rego file: its lines, from 1 and sorted, of which all was evaluated, and those of which something was not."""

    file: str
    covered: tuple[int, ...]
    missed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CodeReached:
    """One code that METADATA names: its first rule, and the first scenario that reached it, as `FILE: NAME`.

    The code of an obligation is reached by the obligation's id. `file` is the first scenario file that answers for it;
    None: none of these does, and it does not count.
    """

    code: str
    site: RuleSite
    scenario: str | None
    file: str | None

    @property
    def exempt(self) -> str | None:
        """Why no scenario can reach it, if METADATA says so and none did."""
        return self.site.unreached if self.scenario is None else None


@dataclass(frozen=True, slots=True)
class ToolVerdicts:
    """One tool of one manifest file, and how many calls of it have each of `COLUMNS` as their result.

    Suites may lay different governance over one manifest: its tools are the same. `file` is the first of theirs.
    """

    tool: str
    manifest_version: str
    file: str
    counts: Counter[str]


@dataclass(frozen=True, slots=True)
class RoleReached:
    """One argument with a role, and the first scenario, as `FILE: NAME`, in which nobody whose word counts chose it.

    Of a text that goes out, it is a link in it that was chosen so. None: no scenario shows what the label is good for.
    """

    tool: str
    argument: str
    role: str
    scenario: str | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that the gate asks for, and the suite to add it to.

    `allow`: the tool `name` is never allowed; `refusal`: it always is; `code`: nothing reaches that code.
    """

    kind: Literal["allow", "refusal", "code"]
    name: str
    message: str
    file: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the scenarios of some suites reach; `lines` is None without OPA. The gate does not ask for `roles`."""

    lines: tuple[FileLines, ...] | None
    codes: tuple[CodeReached, ...]
    matrix: tuple[ToolVerdicts, ...]
    missing: tuple[Missing, ...]
    roles: tuple[RoleReached, ...] = ()

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
    """Measure what the scenarios of these suites reach, all of them together; without OPA, lines stay unknown."""
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
        answered_for = _counted_modules(suite, modules)
        of_obligation: defaultdict[str, set[str]] = defaultdict(set)
        for code, sites_here in sites_by_code(rule_sites(modules)).items():
            for site in sites_here:
                # Of several rules with one code, one that can be reached speaks for it.
                if code not in sites or (sites[code].unreached and not site.unreached):
                    sites[code] = site
                if site.module in answered_for:
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
    # By the file's text: two manifests may have the same version, and one manifest several governance files.
    rows: dict[tuple[str, str], ToolVerdicts] = {}
    for suite, results in runs:
        manifest, version = _manifest_of(suite), suite.manifest.version
        for tool in suite.manifest.tools:
            none = Counter(dict.fromkeys(COLUMNS, 0))
            rows.setdefault((manifest, tool), ToolVerdicts(tool, version, str(suite.file), none))
        for result in results:
            for tool, column in (pair for step in result.steps for pair in _results_of(step)):
                # A name that no manifest has is the model's, and no tool.
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
                for argument in _chosen_by_nobody(evaluation.flow):
                    key = manifest, evaluation.trace.tool_name or "", argument
                    if key in roles and roles[key].scenario is None:
                        roles[key] = replace(roles[key], scenario=f"{result.place.file}: {result.name}")
    return tuple(roles.values())


def _chosen_by_nobody(flow: Mapping[str, Any] | None) -> Iterator[str]:
    """The labelled arguments of a call of a tainted run that nobody whose word counts has chosen."""
    for argument in flow["arguments"] if flow is not None and flow["tainted"] else ():
        chosen = argument["links"] if argument["role"] == "body" else [argument]
        if any(GOOD.isdisjoint(item["sources"]) for item in chosen):
            yield argument["path"].split("/")[1] if argument["path"] else ""


def _results_of(step: StepResult) -> Iterator[tuple[str, str]]:
    for evaluation in step.evaluations:
        name, verdict = evaluation.trace.tool_name, evaluation.verdict or _REJECTED
        # Where nobody decided, nothing is known of the tool.
        if name is not None and NO_DECISION.isdisjoint(evaluation.codes):
            yield name, verdict
    if not step.evaluations and step.tool is not None:
        for answer in step.answers:
            # What a raw request is allowed, no call may reach.
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


class _Policy(NamedTuple):
    """What decides in one or more suites, what it was asked by document, and the modules that a suite answers for."""

    modules: Mapping[str, Module]
    data: Mapping[str, Any]
    asked: dict[str, dict[bytes, None]]
    counted: set[str]


def _counted_modules(suite: Suite, modules: Mapping[str, Module]) -> set[str]:
    """Return the paths of the modules that a suite answers for: custom ones, or all of them for a baseline's suite."""
    custom = {path for path, module in modules.items() if module.custom}
    of_baseline = suite.file.resolve().is_relative_to(packaged("tests/scenarios").resolve())
    return custom or (set(modules) if of_baseline else set())


def _measured_lines(runs: _Runs, opa: Path) -> tuple[FileLines, ...]:
    """Evaluate again what the results' requests were, and return the lines of the files that count, by file.

    Rules that METADATA exempts (`custom.unreached`) are left out where no scenario reaches them, and so are rules that
    only lead to them.
    """
    covered: defaultdict[str, set[int]] = defaultdict(set)
    missed: defaultdict[str, set[int]] = defaultdict(set)
    exempt: defaultdict[str, set[int]] = defaultdict(set)
    for policy in _policies(runs):
        if not policy.counted:
            continue
        files = {path: str(module.file) for path, module in policy.modules.items()}
        texts = {path: module.text for path, module in policy.modules.items()}
        with Evaluator(opa, texts, policy.data) as evaluator:
            for document, bodies in policy.asked.items():
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


def _policies(runs: _Runs) -> list[_Policy]:
    """Suites that are decided by the same policies and data are evaluated together."""
    policies: dict[str, _Policy] = {}
    for suite, results in runs:
        modules = policy_modules(suite)
        data = whole_data(suite)
        name = digest(canonical([data, {path: module.text for path, module in modules.items()}]))
        policy = policies.setdefault(name, _Policy(modules, data, {_DOCUMENT: {}}, set()))
        policy.counted.update(_counted_modules(suite, modules))
        for step in (step for result in results for step in result.steps):
            for document, answers in ((_DOCUMENT, step.answers), (_PLAN, step.plans)):
                for answer in answers:
                    # What the policy came to no decision on would fail again, or not end again.
                    if not NO_DECISION.issuperset(answer.decision.codes):
                        policy.asked.setdefault(document, {})[answer.body] = None
    return list(policies.values())


def _exempt_lines(path: str, module: Module) -> Iterator[int]:
    for site in rule_sites({path: module}):
        if site.unreached is None:
            continue
        yield from range(site.line, site.last_line + 1)
        # Where a helper makes the reason, the rules that call it exist for it.
        called = re.compile(rf"(?<!\w){re.escape(site.text.partition('(')[0])}\(")
        for statement in statements(module.text):
            if called.search(statement.text):
                yield from range(statement.line, statement.line + statement.text.count("\n") + 1)
