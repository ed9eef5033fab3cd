"""Scenarios to be filled in, for what no scenario proves: ready to be pasted under `scenarios:`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from pdp.workbench.neighbours.proposals import example_arguments
from pdp.workbench.reports.shown_file import shown_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdp.workbench.coverage.coverage import Coverage, Missing
    from pdp.workbench.opa.rules import RuleSite
    from pdp.workbench.scenarios.files.suite import Suite

_VERDICTS: Final = {"deny": "DENY", "step_up": "STEP_UP", "allow": "ALLOW"}
_ADVICE: Final = {
    "allow": "change session and arguments until it is allowed",
    "refusal": "take something away that the call needs, such as a scope, and name the codes",
    "code": "change tool, session and arguments until this rule fires",
}


def skeletons(coverage: Coverage, suites: Sequence[Suite]) -> dict[str, str]:
    """Return, by scenario file, YAML for all that is missing in it.

    The text is a list of scenarios, indented by two, that loads as it is; what is in it is a proposal.

    Args:
        coverage: of these suites.
        suites: whose scenarios were measured.
    """
    sites = {reached.code: reached.site for reached in coverage.codes}
    texts: dict[str, list[str]] = {}
    for suite in {suite.file: suite for suite in suites}.values():
        taken = {scenario.name for scenario in suite.scenarios}
        for missing in coverage.missing:
            if missing.file == str(suite.file):
                scenario = _scenario(missing, suite, sites.get(missing.name))
                scenario["name"] = _unused(scenario["name"], taken)
                texts.setdefault(missing.file, []).append(_as_yaml(missing, scenario))
    return {file: "\n".join(parts) for file, parts in texts.items()}


def _scenario(missing: Missing, suite: Suite, site: RuleSite | None) -> dict[str, Any]:
    if missing.kind != "code":
        verdict, outcome = ("ALLOW", "allowed") if missing.kind == "allow" else ("DENY", "refused")
        return {
            "name": f"{missing.name} is {outcome}",
            "why": f"every tool has a call that is {'not ' if verdict == 'DENY' else ''}allowed (release gate)",
            "propose": _proposal(suite, missing.name),
            "expect": {"verdict": verdict},
        }
    if site is None:
        raise AssertionError(missing)
    where = f"{shown_file(site.file)}:{site.line}"
    scenario: dict[str, Any] = {
        "name": f"{missing.name}: {site.title or 'a rule without a title'}",
        "why": f"{site.description} ({where})" if site.description else where,
    }
    # The contract stops most of what the decision itself denies before the policy is asked.
    if site.concern == "decision":
        scenario["request"] = {}
    else:
        scenario["propose"] = _proposal(suite, next(iter(suite.manifest.tools), "tool"))
    if site.part == "obligations":
        scenario["expect"] = {"obligations": [site.obligation or missing.name.partition(".")[2]]}
    else:
        scenario["expect"] = {"verdict": _VERDICTS[site.part], "codes": [missing.name]}
    return scenario


def _proposal(suite: Suite, name: str) -> dict[str, Any]:
    tool = suite.manifest.tools.get(name)
    return {"tool": name, "arguments": example_arguments(tool.schema_) if tool else {}}


def _unused(name: str, taken: set[str]) -> str:
    unused, number = name, 2
    while unused in taken:
        unused, number = f"{name} ({number})", number + 1
    taken.add(unused)
    return unused


def _as_yaml(missing: Missing, scenario: Mapping[str, Any]) -> str:
    text = yaml.safe_dump([dict(scenario)], sort_keys=False, allow_unicode=True, width=120)
    indented = "".join(f"  {line}\n" for line in text.splitlines())
    return f"  # {_ADVICE[missing.kind]}\n{indented}"
