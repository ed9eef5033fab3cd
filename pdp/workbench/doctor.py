"""Find what cannot work in a project, from its manifest, its scenarios and the results of the scenarios.

A scope is reported if no session in the scenarios has the scope, although a session in production may have it.
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
    """Return everything that cannot work in a project, sorted by location. `runs` are results of one engine only."""
    effective = load_effective(manifest, governance)
    tools = effective.tools
    document = read_document(manifest)
    governance_documents = [] if governance is None else [read_document(governance)]

    def fault(tool: Tool, path: JsonPath, message: str, hint: str | None) -> Fault:
        return Fault(place_of_field(tool, path, document, governance_documents), message, hint)

    held = _held([run.suite for run in runs])
    faults = [fault(tool, *missing) for tool in tools.values() for missing in _unheld(tool, *held)]
    for tool in tools.values():
        faults += (
            fault(tool, doubt.path, doubt.message, doubt.hint)
            for doubt in doubts(tool, sound=True, labelled=effective.tracks_flow)
        )
    faults += _unloaded(manifest, policies, [run.suite for run in runs])
    coverage = measure([(run.suite, run.results) for run in runs], None)
    sites = {reached.code: reached.site for reached in coverage.codes}
    for missing in coverage.missing:
        if missing.kind == "code":
            place = Place(sites[missing.name].file, sites[missing.name].line, 1)
            hint = "add a scenario that expects the rule's code, or remove the rule"
            faults.append(Fault(place, f"no scenario reaches the rule of {missing.name}", hint))
        elif missing.kind == "allow" and missing.name in tools:
            message, hint = f"no scenario allows {missing.name}", "add a scenario whose session may call the tool"
            faults.append(fault(tools[missing.name], ("name",), message, hint))
    failed = (result for run in runs for result in run.results if not result.passed)
    faults += (Fault(result.place, f"the scenario `{result.name}` fails", "run: pdp test") for result in failed)
    return sorted(dict.fromkeys(faults), key=lambda each: (each.place.file, each.place.line, each.message))


def _unloaded(manifest: Path, policies: Sequence[Path], suites: Sequence[Suite]) -> Iterator[Fault]:
    """Yield a fault for each policy folder of the project that a scenario file for the same manifest does not load."""
    for suite in suites:
        if suite.bundle is None and manifest.resolve() in [file.resolve() for file in suite.files["manifest"]]:
            for folder in policies:
                if folder.resolve() not in [other.resolve() for other in suite.policies]:
                    hint = "add the folder to `policies` in this file; paths are relative to the file"
                    yield Fault(Place(str(suite.file), 1, 1), f"these scenarios do not load {folder}", hint)


def _unheld(tool: Tool, scopes: set[str], limits: set[str], roles: set[str]) -> Iterator[tuple[JsonPath, str, str]]:
    """Yield field, message and hint for each scope, limit or approver role that a tool needs but no scenario has."""
    used = {limit.limit for limit in tool.limits}
    for kind, names, held in (("scope", {*tool.scopes}, scopes), ("limit", used, limits)):
        for name in sorted(names - held):
            hint = nearest(name, held) or "add the {kind} to a session, or correct its name"
            yield (f"{kind}s",), f"no session holds the {kind} {name}, which {tool.name} requires", hint
    approvers = tool.approval.approvers
    if approvers and roles.isdisjoint(approvers) and "$subject" not in approvers:
        message = f"no approver in the scenarios has a role that may approve {tool.name}: {', '.join(approvers)}"
        yield ("approval",), message, "add an `approve` step with such a role, or correct the role's name"
    elif approvers is None and (
        used or tool.risk_tier is RiskTier.HIGH or tool.effect_class is EffectClass.COMMIT_HIGH
    ):
        message = f"{tool.name} may need an approval but names no approvers"
        yield ("approval",), message, "add `approval: {approvers: [ROLE]}`"


def _held(suites: Sequence[Suite]) -> tuple[set[str], set[str], set[str]]:
    scopes, limits, roles = set[str](), set[str](), set[str]()
    for suite in suites:
        for scenario, sessions in zip(suite.scenarios, suite.sessions, strict=True):
            for step, session in zip(scenario.steps, sessions, strict=True):
                if session is None:
                    continue
                if step.action in ("approve", "grant"):
                    roles.update(texts(session.claims.get("roles")))
                    continue
                with suppress(UsageError):  # Claims without a subject are left out, because they hold no scopes.
                    scopes.update(session.subject.properties["scopes"])
                limits.update(as_dict(session.claims.get("limits")))
    return scopes, limits, roles
