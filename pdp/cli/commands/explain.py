"""`pdp explain`: explains the decision on one proposal, or a code."""

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from pdp.cli import Exit, options
from pdp.cli.commands.decide import exit_code
from pdp.cli.display import STYLES, print_more, show, word
from pdp.cli.files import project_with, read_proposal, read_rules, read_session, required
from pdp.cli.output import print_answer, print_json
from pdp.documents import nearest
from pdp.engine.data import read_data
from pdp.errors import UsageError
from pdp.installed import code_url
from pdp.json import canonical
from pdp.ledger.words import origins
from pdp.opa.program import find_opa
from pdp.pep import Pep
from pdp.project.file import Project
from pdp.workbench.codes import Code, codes
from pdp.workbench.explain.explain import Explanation, explain
from pdp.workbench.explain.trace import Condition, Seen
from pdp.workbench.scenarios.files.suite import Suite, policy_modules
from pdp.workbench.scenarios.running.engines import open_suite_engine, whole_data
from pdp.workbench.shown_file import shown_file

_LONGEST: Final = 200
_CODE: Final = re.compile(r"(?!.*\.json$)[A-Za-z_]+(\.[a-z_]+)?|[0-4]")

app = options.command_app()


@app.command("explain")
def run(
    proposal: Annotated[
        str, typer.Argument(metavar="PROPOSAL", help="The proposal, a JSON file; - for stdin. Or a code to explain.")
    ],
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
    """Explain how a proposal is decided, or what a code means.

    The paragraph about a proposal names the reasons, and changes that would alter the verdict. --all and --json also
    show the rules that did not fire, which needs OPA. For a code, such as purposes.missing, prints its meaning, its
    remedy, the rule behind it, and a scenario of the project that shows it.

    Exit code: 0 ALLOW, 3 STEP_UP, 4 DENY or rejected, 2 bad usage or file, 1 anything else.
    """
    project = project_with(
        manifest=manifest, session=session, governance=governance, data=data, policies=policies, bundle=bundle,
        engine=engine,
    ).unbuilt()  # fmt: skip
    if _CODE.fullmatch(proposal) and not Path(proposal).exists():
        _explain_code(_code_named(proposal, project), as_json=as_json)
        return
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
        print_more(evaluation)
    raise typer.Exit(exit_code(evaluation))


def _code_named(name: str, project: Project) -> Code:
    """Return the code with this name. Exit codes have their number, or the end of their name, as other names."""
    known = {code.code: code for code in codes(project.policies, project.scenarios)}
    exits = {other: f"exit.{one.name.lower()}" for one in Exit for other in (one.name, str(int(one)))}
    name = name if name in known else exits.get(name, name)
    if name not in known:
        hint = nearest(name, known) or "`pdp explain PROPOSAL` needs the path of a file"
        raise UsageError(f"{name}: no such file, and no code has this name", hint=hint)
    return known[name]


def _explain_code(code: Code, *, as_json: bool) -> None:
    own = bool(code.file) and shown_file(code.file) == code.file
    place = f"{shown_file(code.file)}:{code.line}" if code.file else ""
    facts = {
        "remedy": code.remedy, "rule": place, "raised as": code.raised, "scenario": code.scenario,
        "more": "" if own else code_url(code.code),
    }  # fmt: skip
    lines = [f"  {name:<10}{text}" for name, text in facts.items() if text]
    answer = {**code._asdict(), "file": shown_file(code.file) if code.file else "", "link": facts["more"]}
    print_answer(answer, [f"{code.code}  {code.title}", f"  {code.meaning}", *lines], as_json=as_json)


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
