"""`pdp explain`: explains the decision on one proposal."""

from pathlib import Path
from typing import Annotated, Final

import typer

from pdp.cli import options
from pdp.cli.commands.decide import exit_code
from pdp.cli.display import STYLES, show, word
from pdp.cli.files import project_with, read_proposal, read_rules, read_session, required
from pdp.cli.output import print_json
from pdp.engine.data import read_data
from pdp.json import canonical
from pdp.ledger.words import origins
from pdp.opa.program import find_opa
from pdp.pep import Pep
from pdp.workbench.explain.explain import Explanation, explain
from pdp.workbench.explain.trace import Condition, Seen
from pdp.workbench.scenarios.files.suite import Suite, policy_modules
from pdp.workbench.scenarios.running.engines import open_suite_engine, whole_data
from pdp.workbench.shown_file import shown_file

_LONGEST: Final = 200

app = options.command_app()


@app.command("explain")
def run(
    proposal: options.ProposalFile,
    manifest: options.Manifest = None,
    session: options.Session = None,
    governance: options.Governance = None,
    data: options.Data = None,
    policies: options.Policies = None,
    bundle: options.DecidingBundle = None,
    engine: options.DecidingEngine = None,
    whole: Annotated[
        bool,
        typer.Option("--all", help="Show all checks and all rules too: which rules fired, and where others stopped."),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Explain in one paragraph how a proposal is decided: verdict, reasons, and changes that would alter the verdict.

    --all and --json also show the rules that did not fire, which needs OPA.

    Exit code: 0 ALLOW, 3 STEP_UP, 4 DENY or rejected, 2 bad usage or file, 1 anything else.
    """
    project = project_with(
        manifest=manifest, session=session, governance=governance, data=data, policies=policies, bundle=bundle,
        engine=engine,
    ).unbuilt()  # fmt: skip
    effective = read_rules(required(project.manifest, "manifest", "--manifest"), project.governance)
    caller = read_session(required(project.session, "session", "--session"))
    proposed = read_proposal(proposal)
    # A suite without scenarios, because the engine is opened and traced in the same way as for scenarios.
    suite = Suite(
        file=Path(proposal), manifest=effective, policies=project.policies, bundle=project.bundle,
        data=read_data(project.data),
    )  # fmt: skip
    with open_suite_engine(suite, project.engine) as opened:
        evaluation = Pep(effective, opened).decide(proposed, caller)
    tool = effective.tools.get(evaluation.trace.tool_name or "")
    opa = find_opa() if whole or as_json else None
    sensitive = () if tool is None else tool.sensitive
    explanation = explain(evaluation, policy_modules(suite), whole_data(suite), opa, sensitive=sensitive)
    if as_json:
        print_json(explanation.as_json())
    else:
        verdict = word(evaluation)
        show((verdict, STYLES[verdict]), explanation.line.removeprefix(verdict))
        for line in origins(evaluation.flow):
            show(f"  {line}")
        if whole:
            _print_rules(explanation)
    raise typer.Exit(exit_code(evaluation))


def _print_rules(explanation: Explanation) -> None:
    show()
    for name, result in explanation.checks.items():
        show(f"  {name:<12} ", (result, {"passed": "green", "failed": "bold red"}.get(result, "dim")))
    for rule in explanation.rules:
        site = rule.site
        fired = ("fired       ", "bold yellow") if rule.fired else ("did not fire", "dim")
        place = (f"  {shown_file(site.file)}:{site.line}", "dim")
        show(f"  {site.concern:<12} ", fired, f" {site.code or site.part}", place)
        if rule.stopped is not None:
            _print_condition(rule.stopped, 0)
        elif not rule.asked:
            show(f"{'':>28}because it was not evaluated")
    if explanation.unknown is not None:
        show()
        show((f"  rules: not known{explanation.unknown}", "dim"))


def _print_condition(condition: Condition, depth: int) -> None:
    where = f"{'':>28}{'  ' * depth}because {condition.text} ({Path(condition.file).name}:{condition.line})"
    show(where, ("".join(f"  {_shown(value)}" for value in condition.seen), "dim"))
    for inner in condition.because:
        _print_condition(inner, depth + 1)


def _shown(seen: Seen) -> str:
    value = canonical(seen.value).decode() if seen.defined else "(undefined)"
    return f"{seen.name} = {value if len(value) <= _LONGEST else f'{value[:_LONGEST]}...'}"
