"""`pdp prove`: proves properties of a project's policy, or shows calls that violate them."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from pdp.cli import Exit
from pdp.cli.files import project_with, required
from pdp.cli.options import AsJson, command_app, file_argument
from pdp.cli.output import print_answer, print_line
from pdp.engine.data import read_data
from pdp.errors import UsageError
from pdp.opa.names import KnownNames
from pdp.opa.program import needed_opa
from pdp.project.file import PROJECT_FILE, chosen_project
from pdp.workbench.properties.file import PROPERTIES_FILE, read_properties
from pdp.workbench.properties.prove import prove
from pdp.workbench.scenarios.files.suite import find_suites, load_suites, policy_modules, project_suite
from pdp.workbench.scenarios.running.runner import run_suite
from pdp.workbench.shown_file import markdown_text

app = command_app()


@app.command("prove")
def prove_properties(
    properties: Annotated[
        Path | None,
        file_argument(
            "[PROPERTIES]", help=f"The file. Default: the project's `properties`, or {PROPERTIES_FILE} beside it."
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown for a pull request.")] = False,
    as_json: AsJson = False,
) -> None:
    """Prove that properties hold for all requests under the project's manifest, policies and data.

    Needs OPA and the extra `proof`. Exit code: 0 all are proved, 1 one is violated or not proved, 2 bad usage or file.
    """
    opa = needed_opa("reading properties")
    project, file = project_with(properties=properties), chosen_project()
    if file is None:
        raise UsageError("no project", hint=f"run the command in a folder with {PROJECT_FILE}; pdp init creates one")
    suite = project_suite(file)
    beside = file.parent / PROPERTIES_FILE
    path = required(project.properties or (beside if beside.exists() else None), "properties", "PROPERTIES")
    suites = load_suites(find_suites(project.scenarios)) if project.scenarios else []
    results = [result for each in suites for run in run_suite(each, ["embedded"]) for result in run.results]
    known = [answer.body for result in results for step in result.steps for answer in step.answers]
    names = KnownNames([*suite.manifest.tools.values()], read_data(project.data))
    stated = read_properties(path, policy_modules(suite), names, opa)
    answers = list(prove(suite, stated, list(dict.fromkeys(known)), opa))
    counts = Counter("not proved" if answer.word == "bounded" else answer.word for answer in answers)
    summary = ", ".join(f"{count} {word}" for word, count in counts.items())
    if markdown:
        print_line("\n".join((f"## Properties: {summary}", "", *(f"- {markdown_text(each.line)}" for each in answers))))
    else:
        lines = (*(answer.line for answer in answers), summary)
        print_answer({"properties": [answer.as_json() for answer in answers]}, lines, as_json=as_json)
    raise typer.Exit(Exit.OK if counts["proved"] == len(answers) else Exit.FAILED)
