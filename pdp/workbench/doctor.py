"""What cannot work in a project: by its manifest, its scenarios, and what a run of these saw.

A scope that nobody holds in any scenario may be held in production, and then no scenario proves what it opens.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pdp.documents import nearest, read_document
from pdp.errors import Fault, Place, UsageError
from pdp.manifest.fields import EffectClass, RiskTier
from pdp.manifest.load import load_effective
from pdp.manifest.rules.doubts import doubts
from pdp.workbench.coverage.coverage import measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pdp.documents.document import Path as DocumentPath
    from pdp.manifest.model import Tool
    from pdp.workbench.scenarios.files.suite import Suite
    from pdp.workbench.scenarios.results import SuiteResult


def problems(manifest: Path, governance: Path | None, runs: Sequence[SuiteResult]) -> list[Fault]:
    """Return what cannot work, in the order of the places.

    Args:
        manifest: the manifest file of the project.
        governance: its other half.
        runs: its scenario files, each with its results, on one engine.

    Raises:
        UsageError, BundleError: a file cannot be read.
    """
    tools = load_effective(manifest, governance).tools
    files = _Files(manifest, governance, list(tools))
    holders = _Holders([run.suite for run in runs])
    found = [files.fault(tool, *amiss) for tool in tools.values() for amiss in _unheld(tool, holders)]
    for tool, finding in doubts(list(tools.values())):
        found.append(files.fault(tool, finding.message, finding.hint, path=finding.path))
    coverage = measure([(run.suite, run.results) for run in runs], None)
    sites = {reached.code: reached.site for reached in coverage.codes}
    for missing in coverage.missing:
        if missing.kind == "code":
            place = Place(sites[missing.name].file, sites[missing.name].line, 1)
            hint = "add a scenario that expects it, or take the rule out"
            found.append(Fault(place, f"no scenario reaches the rule of {missing.name}", hint))
        elif missing.kind == "allow" and missing.name in tools:
            message, hint = f"{missing.name} is ALLOW in no scenario", "add one whose session may call it"
            found.append(files.fault(tools[missing.name], message, hint))
    failed = (result for run in runs for result in run.results if not result.passed)
    found += (Fault(result.place, f"the scenario `{result.name}` fails", "see: pdp test") for result in failed)
    return sorted(dict.fromkeys(found), key=lambda fault: (fault.place.file, fault.place.line, fault.message))


class _Holders:
    """What the sessions of some scenarios hold: scopes, names of limits, and roles of those who approve."""

    def __init__(self, suites: Sequence[Suite]) -> None:
        self.scopes: set[str] = set()
        self.limits: set[str] = set()
        self.roles: set[str] = set()
        for suite in suites:
            for scenario, sessions in zip(suite.scenarios, suite.sessions, strict=True):
                for step, session in zip(scenario.steps, sessions, strict=True):
                    if session is None:
                        continue
                    roles, limits = session.claims.get("roles"), session.claims.get("limits")
                    if step.action == "approve":
                        self.roles |= {
                            role for role in (roles if isinstance(roles, list) else ()) if isinstance(role, str)
                        }
                        continue
                    with suppress(UsageError):  # claims of nobody hold nothing
                        self.scopes |= {*session.subject.properties["scopes"]}
                    self.limits |= {*limits} if isinstance(limits, dict) else set()


def _unheld(tool: Tool, holders: _Holders) -> Iterator[tuple[str, str, str | None]]:
    """Yield what a tool asks for and nobody holds: message, hint, and the name that it is about."""
    limits = {limit.limit for limit in tool.limits}
    for kind, names, held in (("scope", {*tool.scopes}, holders.scopes), ("limit", limits, holders.limits)):
        for name in sorted(names - held):
            hint = nearest(name, held) or "give it to a session, or correct its name"
            yield f"no session holds the {kind} {name} of {tool.name}", hint, name
    approvers = tool.approval.approvers or ()
    if approvers and holders.roles.isdisjoint(approvers) and "$subject" not in approvers:
        message = f"no scenario's approver has a role of {tool.name}: {', '.join(approvers)}"
        yield message, "add a step that approves, with such a role, or correct its name", approvers[0]
    elif not approvers and (tool.risk_tier is RiskTier.HIGH or tool.effect_class is EffectClass.COMMIT_HIGH or limits):
        message = f"nobody can approve {tool.name}, which may need it: it states no approvers"
        yield message, "state `approval: {approvers: [ROLE]}`", None


class _Files:
    """Both halves of a manifest, for the places of what is wrong with an entry."""

    def __init__(self, manifest: Path, governance: Path | None, names: list[str]) -> None:
        self._manifest = read_document(manifest)
        self._governance = None if governance is None else read_document(governance)
        self._names = names

    def fault(
        self, tool: Tool, message: str, hint: str | None, name: str | None = None, *, path: DocumentPath = ()
    ) -> Fault:
        """Return a fault of an entry: at a text in it, wherever that stands, or at a path in the manifest."""
        base: DocumentPath = ("tools", self._names.index(tool.name)) if "tools" in self._manifest.value else ()
        for document, entry in ((self._manifest, base), (self._governance, ("actions", tool.pdp_action))):
            at = None if document is None or name is None else _path_of(name, document.value, entry)
            if document is not None and at is not None:
                return document.fault(at, message, hint)
        return self._manifest.fault((*base, *path), message, hint)


def _path_of(text: str, value: Any, base: DocumentPath) -> DocumentPath | None:
    """Return the path of a text below a path of a document; None where it is not there."""
    pending: list[tuple[DocumentPath, Any]] = [((), value)]
    for path, part in pending:
        if part == text and path[: len(base)] == base:
            return path
        if isinstance(part, dict | list):
            inner = part.items() if isinstance(part, dict) else enumerate(part)
            pending += (((*path, key), item) for key, item in inner)
    return None
