"""Which lines of Rego the scenarios evaluate: every request that the engine was asked, evaluated again by OPA."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.json import canonical, digest
from pdp.workbench.explain.explain import NO_DECISION
from pdp.workbench.opa.evaluation import Evaluator
from pdp.workbench.opa.rules import rule_sites, statements
from pdp.workbench.scenarios.files.suite import policy_modules
from pdp.workbench.scenarios.running.engines import whole_data

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pdp.workbench.opa.modules import Module
    from pdp.workbench.scenarios.files.suite import Suite
    from pdp.workbench.scenarios.results import ScenarioResult


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
class _Policy:
    """What decides in one or more suites, and every request that it was asked."""

    modules: Mapping[str, Module]
    data: Mapping[str, Any]
    bodies: dict[bytes, None]
    plans: dict[bytes, None]


def counted_modules(modules: Mapping[str, Module]) -> dict[str, Module]:
    """Return the modules that a suite answers for: the custom ones among those that decide, or else all."""
    custom = {path: module for path, module in modules.items() if module.custom}
    return custom or dict(modules)


def measured_lines(runs: Sequence[tuple[Suite, Sequence[ScenarioResult]]], opa: Path) -> tuple[FileLines, ...]:
    """Evaluate again what the results' requests were, and return the lines of the files that count, by file.

    Rules that METADATA exempts (`custom.unreached`) are left out where no scenario reaches them, and so are rules that
    only lead to them.

    Raises:
        UsageError, BundleError, EngineTimeoutError: policies that cannot be read, or not be evaluated.
    """
    covered: defaultdict[str, set[int]] = defaultdict(set)
    missed: defaultdict[str, set[int]] = defaultdict(set)
    exempt: defaultdict[str, set[int]] = defaultdict(set)
    counted: set[str] = set()
    for policy in _policies(runs):
        texts = {path: module.text for path, module in policy.modules.items()}
        with Evaluator(opa, texts, policy.data) as evaluator:
            asked = [(policy.bodies, _DOCUMENT), *([(policy.plans, _PLAN)] if policy.plans else [])]
            for bodies, document in asked:
                measured = evaluator.evaluate(list(bodies), document=document, coverage=True).lines or {}
                for path, lines in measured.items():
                    covered[str(policy.modules[path].file)].update(lines.covered)
                    missed[str(policy.modules[path].file)].update(lines.missed)
        for path, rows in _exempt_lines(policy.modules).items():
            exempt[str(policy.modules[path].file)].update(rows)
        counted.update(str(module.file) for module in counted_modules(policy.modules).values())
    return tuple(
        FileLines(file, tuple(sorted(covered[file])), tuple(sorted(missed[file] - covered[file] - exempt[file])))
        for file in sorted(counted)
    )


def _policies(runs: Sequence[tuple[Suite, Sequence[ScenarioResult]]]) -> list[_Policy]:
    """Suites that are decided by the same policies and data are evaluated together."""
    policies: dict[str, _Policy] = {}
    for suite, results in runs:
        modules = policy_modules(suite)
        data = whole_data(suite)
        name = digest(canonical([data, {path: module.text for path, module in modules.items()}]))
        policy = policies.setdefault(name, _Policy(modules, data, {}, {}))
        policy.bodies.update(
            (answer.body, None)
            for result in results
            for step in result.steps
            for answer in step.answers
            # What the policy came to no decision on would fail again, or not end again.
            if not NO_DECISION.issuperset(answer.decision.codes)
        )
        plans = (plan for result in results for step in result.steps for plan in step.plans)
        policy.plans.update((plan.body, None) for plan in plans if not NO_DECISION.issuperset(plan.decision.codes))
    return list(policies.values())


def _exempt_lines(modules: Mapping[str, Module]) -> dict[str, set[int]]:
    exempt: defaultdict[str, set[int]] = defaultdict(set)
    for site in rule_sites(modules):
        if site.unreached is None:
            continue
        rows = exempt[site.module]
        rows.update(range(site.line, site.last_line + 1))
        # Where a helper makes the reason, the rules that call it exist for it.
        name = site.text.partition("(")[0]
        called = re.compile(rf"(?<!\w){re.escape(name)}\(")
        for statement in statements(modules[site.module].text):
            if called.search(statement.text):
                rows.update(range(statement.line, statement.line + statement.text.count("\n") + 1))
    return exempt
