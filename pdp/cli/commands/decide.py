"""`pdp decide`: decides one proposal."""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated

import typer

from pdp.cli import Exit, options
from pdp.cli.display import print_evaluation
from pdp.cli.files import open_audit, project_with, read_proposal, read_rules, read_session, required
from pdp.cli.output import print_answer
from pdp.decision import Verdict
from pdp.flow.evaluation import Evaluation
from pdp.pep import Pep
from pdp.project.file import engine_of_project

app = options.command_app()


@app.command("decide")
def decide(
    proposal: options.ProposalFile,
    manifest: options.Manifest = None,
    session: options.Session = None,
    governance: options.Governance = None,
    data: options.Data = None,
    policies: options.Policies = None,
    bundle: options.DecidingBundle = None,
    engine: options.DecidingEngine = None,
    opa_url: options.OpaUrl = None,
    audit: Annotated[Path | None, options.file_option(help="Append the audit event to this JSON Lines file.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Decide one proposal, but do not run it or open an approval. Files that no option names come from pdp.yaml.

    Exit code: 0 ALLOW, 3 STEP_UP, 4 DENY or rejected, 2 bad usage or file, 1 anything else.
    """
    project = project_with(
        manifest=manifest, session=session, governance=governance, data=data, policies=policies, bundle=bundle,
        engine=engine, opa_url=opa_url,
    ).unbuilt()  # fmt: skip
    effective = read_rules(required(project.manifest, "manifest", "--manifest"), project.governance)
    caller = read_session(required(project.session, "session", "--session"))
    proposed = read_proposal(proposal)
    with ExitStack() as owned:
        log = owned.enter_context(closing(open_audit(audit)))
        evaluation = Pep(effective, engine_of_project(project, effective, owned), audit=log).decide(proposed, caller)
    print_answer(evaluation.as_json(), lambda: print_evaluation(evaluation), as_json=as_json)
    raise typer.Exit(exit_code(evaluation))


def exit_code(evaluation: Evaluation) -> Exit:
    """Return the exit code for an evaluation: `OK` for ALLOW, `STEP_UP` for STEP_UP, else `DENY`."""
    if evaluation.allowed:
        return Exit.OK
    return Exit.STEP_UP if evaluation.verdict is Verdict.STEP_UP else Exit.DENY
