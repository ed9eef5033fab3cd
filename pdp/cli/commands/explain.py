"""`pdp explain`: one proposal, and why it is decided as it is."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from pdp.cli.commands.decide import exit_code
from pdp.cli.display import STYLES, console, word
from pdp.cli.files import needed, project_with, read_proposal, read_rules, read_session
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
from pdp.engine.bundle.file import baseline_bundle_path, read_bundle
from pdp.engine.data import merged_data, read_data
from pdp.json import canonical
from pdp.pep import Pep
from pdp.project.resources import open_engine
from pdp.workbench.engines import policy_bundle
from pdp.workbench.explain.explain import Explanation, explain
from pdp.workbench.opa.modules import baseline_policies_path, collect, modules_of_bundle
from pdp.workbench.opa.program import find_opa
from pdp.workbench.reports.shown_file import printable, shown_file

if TYPE_CHECKING:
    from pdp.workbench.explain.trace import Condition, Seen

_LONGEST: Final = 200

app = command_app()


@app.command("explain")
def run(
    proposal: ProposalFile,
    manifest: Manifest = None,
    session: Session = None,
    governance: Governance = None,
    data: Data = None,
    policies: Policies = None,
    bundle: DecidingBundle = None,
    engine: DecidingEngine = None,
    whole: Annotated[
        bool,
        typer.Option("--all", help="Show every check and every rule too: which fired, and where the others stopped."),
    ] = False,
    as_json: AsJson = False,
    show_sensitive: Annotated[bool, typer.Option(help="Show the values of sensitive arguments.")] = False,
) -> None:
    """Say in one paragraph why a proposal is decided as it is: verdict, reasons, and what would change it.

    The rules that did not fire, for --all and --json, need OPA.

    Exit code: 0 ALLOW, 3 STEP_UP, 4 DENY or rejected, 2 bad usage or file, 1 anything else.
    """
    project = project_with(
        manifest=manifest, session=session, governance=governance, data=data, policies=policies, bundle=bundle,
        engine=engine,
    ).unbuilt()  # fmt: skip
    effective = read_rules(needed(project.manifest, "manifest", "--manifest"), project.governance)
    caller = read_session(needed(project.session, "session", "--session"))
    proposed = read_proposal(proposal)
    manifests = {effective.digest: effective.document}
    file = project.bundle or baseline_bundle_path()
    chosen = policy_bundle(project.policies) if project.policies else read_bundle(file)
    baseline = baseline_policies_path()
    written = collect(baseline, [baseline, *project.policies])
    # Where the author's file has the same text, places are those of that.
    modules = modules_of_bundle(str(file), chosen.modules) | {
        path: module for path, module in written.items() if chosen.modules.get(path) == module.text
    }
    given = read_data(project.data)
    known = merged_data(chosen.data, manifests=manifests, data=given)
    with ExitStack() as owned:
        opened = open_engine(project.engine, chosen, owned, manifests=manifests, data=given)
        evaluation = Pep(effective, opened).decide(proposed, caller)
        tool = effective.tools.get(evaluation.trace.tool_name or "")
        sensitive = tool.sensitive if tool is not None and not show_sensitive else ()
        opa = find_opa() if whole or as_json else None
        explanation = explain(evaluation, modules, known, opa, sensitive=sensitive)
    if as_json:
        print_json(explanation.as_json())
    else:
        _print(explanation, whole=whole)
    raise typer.Exit(exit_code(explanation.evaluation))


def _print(explanation: Explanation, *, whole: bool) -> None:
    word_ = word(explanation.evaluation)
    text = Text.assemble((word_, STYLES[word_]))
    text.append(printable(explanation.line.removeprefix(word_)))
    if whole:
        _append_rules(text, explanation)
    console().print(text)


def _append_rules(text: Text, explanation: Explanation) -> None:
    text.append("\n\n")
    for name, result in explanation.checks.items():
        text.append(f"  {name:<12} ")
        text.append(f"{result}\n", style={"passed": "green", "failed": "bold red"}.get(result, "dim"))
    for rule in explanation.rules:
        site, fired = rule.site, rule.fired
        text.append(f"  {printable(site.concern):<12} ")
        text.append(f"{'fired' if fired else 'did not fire':<12}", style="bold yellow" if fired else "dim")
        text.append(f" {printable(site.code or site.part)}", style="bold" if fired else "")
        text.append(f"  {printable(f'{shown_file(site.file)}:{site.line}')}\n", style="dim")
        if rule.stopped is not None:
            _append_condition(text, rule.stopped, 0)
        elif not rule.asked:
            text.append(f"{'':>28}because it was not asked\n")
    if explanation.unknown is not None:
        text.append(f"\n  rules: not known{printable(explanation.unknown)}\n", style="dim")
    text.rstrip()


def _append_condition(text: Text, condition: Condition, depth: int) -> None:
    place = f"{Path(condition.file).name}:{condition.line}"
    text.append(f"{'':>28}{'  ' * depth}because {printable(condition.text)} ({printable(place)})")
    text.append("".join(f"  {printable(_shown(value))}" for value in condition.seen) + "\n", style="dim")
    for inner in condition.because:
        _append_condition(text, inner, depth + 1)


def _shown(seen: Seen) -> str:
    value = canonical(seen.value).decode() if seen.defined else "(undefined)"
    return f"{seen.name} = {value if len(value) <= _LONGEST else f'{value[:_LONGEST]}...'}"
