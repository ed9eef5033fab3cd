"""What cannot work in a project: by its manifest, its scenarios, and what a run of these saw.

A scope that nobody holds in any scenario may be held in production, and then no scenario proves what it opens.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pdp.documents import nearest, read_document
from pdp.errors import Fault, Place, UsageError
from pdp.manifest.fields import EffectClass, RiskTier
from pdp.manifest.load import load_effective
from pdp.manifest.model import Tool
from pdp.manifest.rules.lint import doubts
from pdp.workbench.coverage import measure
from pdp.workbench.neighbours.values import JsonPath, as_dict, texts
from pdp.workbench.scenarios.files.suite import Suite, place_of_field
from pdp.workbench.scenarios.results import SuiteResult


def problems(
    manifest: Path, governance: Path | None, policies: Sequence[Path], runs: Sequence[SuiteResult]
) -> list[Fault]:
    """Return what cannot work in a project, in the order of the places.

    `policies` are its folders with concerns, `runs` its scenario files with their results on one engine.
    """
    effective = load_effective(manifest, governance)
    tools = effective.tools
    stated = read_document(manifest)
    rules = [] if governance is None else [read_document(governance)]

    def amiss(tool: Tool, path: JsonPath, message: str, hint: str | None) -> Fault:
        return Fault(place_of_field(tool, path, stated, rules), message, hint)

    held = _held([run.suite for run in runs])
    found = [amiss(tool, *problem) for tool in tools.values() for problem in _unheld(tool, *held)]
    for tool in tools.values():
        found += (
            amiss(tool, doubt.path, doubt.message, doubt.hint)
            for doubt in doubts(tool, sound=True, labelled=effective.tracks_flow)
        )
    found += _undecided(manifest, policies, [run.suite for run in runs])
    coverage = measure([(run.suite, run.results) for run in runs], None)
    sites = {reached.code: reached.site for reached in coverage.codes}
    for missing in coverage.missing:
        if missing.kind == "code":
            place = Place(sites[missing.name].file, sites[missing.name].line, 1)
            hint = "add a scenario that expects it, or take the rule out"
            found.append(Fault(place, f"no scenario reaches the rule of {missing.name}", hint))
        elif missing.kind == "allow" and missing.name in tools:
            message, hint = f"{missing.name} is ALLOW in no scenario", "add one whose session may call it"
            found.append(amiss(tools[missing.name], ("name",), message, hint))
    failed = (result for run in runs for result in run.results if not result.passed)
    found += (Fault(result.place, f"the scenario `{result.name}` fails", "see: pdp test") for result in failed)
    return sorted(dict.fromkeys(found), key=lambda fault: (fault.place.file, fault.place.line, fault.message))


def _undecided(manifest: Path, policies: Sequence[Path], suites: Sequence[Suite]) -> Iterator[Fault]:
    """Yield each folder of the project's policies that scenarios of its manifest leave out: they stand alone."""
    for suite in suites:
        if suite.bundle is None and manifest.resolve() in [file.resolve() for file in suite.files["manifest"]]:
            for folder in policies:
                if folder.resolve() not in [other.resolve() for other in suite.policies]:
                    hint = "add it to the file's own `policies`; paths are relative to the file"
                    yield Fault(Place(str(suite.file), 1, 1), f"these scenarios decide without {folder}", hint)


def _unheld(tool: Tool, scopes: set[str], limits: set[str], roles: set[str]) -> Iterator[tuple[JsonPath, str, str]]:
    """Yield what a tool asks for and nobody holds: the field, a message and a hint."""
    asked = {limit.limit for limit in tool.limits}
    for kind, names, held in (("scope", {*tool.scopes}, scopes), ("limit", asked, limits)):
        for name in sorted(names - held):
            hint = nearest(name, held) or "give it to a session, or correct its name"
            yield (f"{kind}s",), f"no session holds the {kind} {name} of {tool.name}", hint
    named = tool.approval.approvers
    if named and roles.isdisjoint(named) and "$subject" not in named:
        message = f"no scenario's approver has a role of {tool.name}: {', '.join(named)}"
        yield ("approval",), message, "add a step that approves, with such a role, or correct its name"
    elif named is None and (tool.risk_tier is RiskTier.HIGH or tool.effect_class is EffectClass.COMMIT_HIGH or asked):
        message = f"nobody can approve {tool.name}, which may need it: it states no approvers"
        yield ("approval",), message, "state `approval: {approvers: [ROLE]}`"


def _held(suites: Sequence[Suite]) -> tuple[set[str], set[str], set[str]]:
    scopes, limits, roles = set[str](), set[str](), set[str]()
    for suite in suites:
        for scenario, sessions in zip(suite.scenarios, suite.sessions, strict=True):
            for step, session in zip(scenario.steps, sessions, strict=True):
                if session is None:
                    continue
                if step.action == "approve":
                    roles.update(texts(session.claims.get("roles")))
                    continue
                with suppress(UsageError):  # claims of nobody hold nothing
                    scopes.update(session.subject.properties["scopes"])
                limits.update(as_dict(session.claims.get("limits")))
    return scopes, limits, roles
