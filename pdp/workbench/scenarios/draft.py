"""Draft a project for an existing manifest: governance, a session, and scenarios that expect today's decisions.

The draft is strict, so a person has to review it: each tool gets its own scope, and calls that may need approval name
an approver role that no person has yet.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from pdp.decision import Verdict
from pdp.documents import read_document
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import UsageError
from pdp.manifest.effective import EffectiveManifest, effective_tool
from pdp.manifest.fields import EffectClass, RiskTier
from pdp.manifest.load import load_both, load_effective
from pdp.manifest.model import DeclaredTool, Tool
from pdp.pep import Pep
from pdp.project.file import PROJECT_FILE
from pdp.workbench.neighbours.proposals import sourced_arguments
from pdp.workbench.scenarios.files.suite import laid_over

LIMIT: Final = 100
"""The limit that the session has for every kind of limit."""


def drafted_project(manifest: Path, named: str, governance_file: Path | None = None) -> dict[str, str]:
    """Return the files of a drafted project by file name. The project file names the manifest as `named`.

    The drafted governance keeps the rules of `governance_file` for the actions of the manifest's tools.
    """
    declared, _ = load_both(manifest, governance_file, programs=False)
    if not declared.tools:
        raise UsageError(f"{manifest}: declares no tools", hint="add a tool")
    given = {} if governance_file is None else read_document(governance_file).value.get("actions", {})
    extra = {tool.action: rules for tool in declared.tools if (rules := {**_rules(tool), **given.get(tool.action, {})})}
    governance = _yaml(
        {"actions": extra}, "governance", "Drafted: review each line. Who may call each tool, and who approves it"
    )
    effective = load_effective(manifest, "governance.yaml", governance_text=governance.encode())
    session = _session(effective)
    scenarios = list(_scenarios(effective, session))
    files = {"manifest": named, "governance": "governance.yaml"}
    return {
        "governance.yaml": governance,
        PROJECT_FILE: _yaml(
            {**files, "scenarios": ["scenarios.yaml"], "session": "session.yaml"},
            "project",
            "The settings of every `pdp` command in this folder; an option overrides them",
        ),
        "proposal.json": json.dumps(scenarios[0]["propose"], indent=2) + "\n",
        "scenarios.yaml": _yaml(
            {**files, "session": session, "scenarios": scenarios},
            "scenarios",
            "Drafted: today's decisions. Review each scenario, and add those that matter",
        ),
        "session.yaml": _yaml(
            session, "session", "Drafted: a user who may call every tool, as your application would send it"
        ),
    }


def _rules(tool: DeclaredTool) -> dict[str, Any]:
    alone = effective_tool(tool, None)
    rules: dict[str, Any] = {} if alone.scopes else {"scopes": [f"tools.{tool.name}"]}
    may_ask = alone.risk_tier is RiskTier.HIGH or alone.effect_class is EffectClass.COMMIT_HIGH or alone.limits
    if may_ask and not alone.approval.approvers:
        rules["approval"] = {"approvers": ["tools.approver"], "quorum": 1, "expires": "PT1H"}
    return rules


def _session(manifest: EffectiveManifest) -> dict[str, Any]:
    tools = manifest.tools.values()
    claims: dict[str, Any] = {
        "sub": "somebody",
        "emts": dict.fromkeys(sorted({scope for tool in tools for scope in tool.scopes}), True),
        "limits": dict.fromkeys(sorted({limit.limit for tool in tools for limit in tool.limits}), LIMIT),
        "clearances": sorted({marking for tool in tools for marking in tool.markings or ()}),
    }
    extra = {name: value for name, value in claims.items() if value}
    purpose = next((tool.purposes[0] for tool in tools if tool.purposes), "review")
    agents = manifest.document.get("agents")
    agent = {"agent": next(iter(agents))} if agents else {}
    run = {"run_id": "first-run"} if manifest.tracks_flow else {}
    return {"claims": extra, **agent, "purpose": purpose, "idempotency_key": "first-call", **run}


def _scenarios(manifest: EffectiveManifest, session: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield scenarios that expect today's decisions: per tool a call with its scopes, and a call without scopes."""
    with EmbeddedEngine.baseline(manifests={manifest.digest: manifest.document}) as engine:
        pep = Pep(manifest, engine)
        for tool in manifest.tools.values():
            limited = {limit.argument: LIMIT // 2 for limit in tool.limits if limit.argument}
            arguments = sourced_arguments(tool.schema_, tool.provenance.required) | limited
            propose = {"tool": tool.name, "arguments": arguments}
            purpose = {"purpose": tool.purposes[0]} if tool.purposes else {}
            callers: dict[str, dict[str, Any]] = {
                "called with its scopes": purpose,
                "called without a scope": {**purpose, "claims": {"emts": None}},
            }
            for caller, own in callers.items():
                evaluation = pep.decide(propose, laid_over(session, own))
                rejection, extra = evaluation.outcome.rejection, {"session": own} if own else {}
                if evaluation.decision is None and rejection is not None:
                    name = f"{tool.name}: its example is rejected; write valid arguments"
                    expect: dict[str, Any] = {"rejection": rejection.code.value}
                    yield {"name": name, "why": rejection.reason, "propose": propose, "expect": expect}
                    break
                expect = {"verdict": str(evaluation.verdict), "codes": list(evaluation.codes)}
                name = f"{tool.name}, {caller}"
                yield {"name": name, **extra, "propose": propose, "expect": expect}
                steps = _approved(tool, propose) if evaluation.verdict is Verdict.STEP_UP else []
                if steps:
                    yield {"name": f"{tool.name}, once it is approved", **extra, "steps": steps}


def _approved(tool: Tool, propose: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return steps that make a call, approve it, and repeat it; an empty list if the tool names no approver role."""
    roles = [role for role in tool.approval.approvers or () if not role.startswith("$")]
    people = [{"sub": f"approver-{number}", "roles": roles[:1]} for number in range(1, tool.approval.quorum + 1)]
    states = ["pending"] * (len(people) - 1) + ["granted"]
    approvals = [
        {"approve": {"claims": person}, "expect": {"approval": state}}
        for person, state in zip(people, states, strict=True)
    ]
    first, again = ({"propose": propose, "expect": {"verdict": verdict}} for verdict in ("STEP_UP", "ALLOW"))
    return [first, *approvals, again] if roles else []


def _yaml(value: Any, kind: str, comment: str) -> str:
    # The value is copied through JSON, because YAML writes an object that occurs twice as an alias.
    written = json.loads(json.dumps(value))
    text = yaml.safe_dump(written, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)
    return f"# yaml-language-server: $schema=.schemas/{kind}.json\n# {comment}.\n{text}"
