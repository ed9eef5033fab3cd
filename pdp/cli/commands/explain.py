"""`pdp explain`: one proposal, and why it is decided as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from rich.text import Text

from pdp.cli.commands.decide import exit_code
from pdp.cli.display import STYLES, console
from pdp.cli.engines import check_policy_source, open_engine
from pdp.cli.files import check_standard_input, read_rules, read_session
from pdp.cli.options import (
    AsJson,
    Data,
    DecidingBundle,
    DecidingEngine,
    Governance,
    Manifest,
    Policies,
    ProposalFile,
    Session,
    command_app,
)
from pdp.cli.output import print_json
from pdp.documents import read_bytes
from pdp.engine.bundle.file import baseline_bundle_path, read_bundle
from pdp.engine.data import merged_data, read_data
from pdp.errors import BundleError, EngineError
from pdp.pep import Pep
from pdp.workbench.engines import policy_bundle
from pdp.workbench.explain.explain import FAILED, PASSED, Explanation, explain
from pdp.workbench.explain.wording import readable
from pdp.workbench.opa.modules import Module, baseline_policies_path, collect
from pdp.workbench.opa.program import find_opa
from pdp.workbench.reports.shown_file import printable, shown_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdp.decision import Findings
    from pdp.engine.bundle.file import Bundle
    from pdp.engine.protocol import Engine
    from pdp.evaluation import Evaluation
    from pdp.manifest.effective import EffectiveManifest
    from pdp.workbench.explain.trace import Condition, RuleRun

_MANY_TOOLS: Final = 100


app = command_app()


@app.command("explain")
def run(
    proposal: ProposalFile,
    manifest: Manifest,
    session: Session,
    governance: Governance = None,
    data: Data = None,
    policies: Policies = None,
    bundle: DecidingBundle = None,
    engine: DecidingEngine = "embedded",
    as_json: AsJson = False,
) -> None:
    """Say why a proposal is decided as it is: checks, rules that fired, and where the others stopped.

    Exit code: 0 ALLOW, 3 STEP_UP, 4 DENY or rejected, 2 bad usage or file, 1 anything else.
    """
    check_standard_input(proposal, manifest, session, governance)
    policies, data = policies or [], data or []
    check_policy_source(bundle, policies)
    effective = read_rules(manifest, governance)
    who = read_session(session)
    proposed = read_bytes(proposal)
    manifests = {effective.digest: effective.document}
    file = bundle or baseline_bundle_path()
    chosen = policy_bundle(policies) if policies else read_bundle(file)
    with open_engine(engine, manifests, bundle=bundle, policies=policies, data=data) as opened:
        evaluation = Pep(effective, opened).decide(proposed, who)
        findings = _findings(opened, evaluation)
    explanation = explain(
        evaluation,
        proposed,
        tool=effective.tools.get(evaluation.trace.tool_name or ""),
        modules=_modules(chosen, file, policies),
        data=merged_data({**chosen.data, "manifests": _needed(chosen, effective, evaluation)}, data=read_data(data)),
        opa=find_opa(),
        findings=findings,
    )
    if as_json:
        print_json(explanation.as_json())
    else:
        _print(explanation, evaluation)
    raise typer.Exit(exit_code(evaluation))


def _modules(bundle: Bundle, file: Path, policies: Sequence[Path]) -> dict[str, Module]:
    """The bundle's modules, with the author's file where that has the same text."""
    baseline = baseline_policies_path()
    sources = collect(baseline, [baseline, *policies])
    found = {}
    for path, text in bundle.modules.items():
        source = sources.get(path)
        same = source is not None and source.text == text
        found[path] = source if same and source else Module(Path(f"{file}!{path}"), text, path.startswith("custom/"))
    return found


def _needed(bundle: Bundle, effective: EffectiveManifest, evaluation: Evaluation) -> Mapping[str, object]:
    """The manifests for OPA's trace, which repeats what rules read: of a large manifest the proposed tool alone."""
    document = effective.document
    if len(effective.tools) > _MANY_TOOLS:
        name = evaluation.trace.tool_name
        document = {**document, "tools": {key: tool for key, tool in document["tools"].items() if key == name}}
        return {effective.digest: document}
    return {**bundle.data.get("manifests", {}), effective.digest: document}


def _findings(engine: Engine, evaluation: Evaluation) -> Findings | None:
    if evaluation.request is None:
        return None
    from pdp.json import canonical  # noqa: PLC0415

    try:
        return engine.findings(canonical(evaluation.request))
    except (EngineError, BundleError):
        # Whatever kept the engine from telling has kept it from deciding as well, or its bundle is an old one.
        return None


def _print(explanation: Explanation, evaluation: Evaluation) -> None:
    verdict = evaluation.verdict or "REJECTED"
    text = Text.assemble((verdict, STYLES[verdict]))
    text.append(f"{printable(explanation.line.removeprefix(verdict))}\n\n")
    for check in explanation.checks:
        style = {PASSED: "green", FAILED: "bold red"}.get(check.result, "dim")
        text.append(f"  {check.name:<12} ")
        text.append(check.result, style=style)
        text.append(f"{'':<{12 - len(check.result)}} {printable(check.text)}\n" if check.text else "\n")
    for run_ in explanation.rules:
        _append_rule(text, run_)
    if explanation.unknown is not None:
        rules = "rules that did not fire" if explanation.rules else "rules"
        text.append(f"\n  {rules}: not known{printable(explanation.unknown)}\n", style="dim")
    text.rstrip()
    console().print(text)


def _append_rule(text: Text, run_: RuleRun) -> None:
    site = run_.site
    text.append(f"  {printable(site.concern):<12} ")
    text.append(f"{'fired' if run_.fired else 'did not fire':<12}", style="bold yellow" if run_.fired else "dim")
    text.append(f" {printable(site.code or site.part)}", style="bold" if run_.fired else "")
    text.append(f"  {printable(f'{shown_file(site.file)}:{site.line}')}\n", style="dim")
    if run_.stopped is not None:
        _append_condition(text, run_.stopped, 0)
    elif not run_.fired and not run_.asked:
        text.append(f"{'':>28}because it was not asked\n")


def _append_condition(text: Text, condition: Condition, depth: int) -> None:
    seen = "; ".join(f"{one.name} is {readable(one.value) if one.defined else 'undefined'}" for one in condition.seen)
    place = f"{Path(condition.file).name}:{condition.line}"
    text.append(f"{'':>28}{'  ' * depth}because {printable(condition.text)} ({printable(place)})")
    text.append(f"  {printable(seen)}\n" if seen else "\n", style="dim")
    for one in condition.because:
        _append_condition(text, one, depth + 1)
