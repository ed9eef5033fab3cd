"""`pdp doctor`: what cannot work in a project."""

from pathlib import Path
from typing import Annotated

import typer

from pdp.cli import Exit
from pdp.cli.commands.opa import opa_status
from pdp.cli.files import needed, project_with
from pdp.cli.options import AsJson, command_app, file_argument
from pdp.cli.output import fault_json, print_answer
from pdp.documents import read_document
from pdp.errors import EngineError, Fault
from pdp.project.file import PROJECT_FILE, chosen_project, read_project
from pdp.workbench.doctor import problems
from pdp.workbench.engines import ENGINE_TIMEOUT
from pdp.workbench.scenarios.files.suite import find_suites, load_suites
from pdp.workbench.scenarios.running.runner import run_suite
from pdp.workbench.shown_file import shown_file

app = command_app()


@app.command("doctor")
def doctor(
    project: Annotated[
        Path | None, file_argument("PROJECT", help="The project file, or its folder; looked for when absent.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what cannot work in a project: what nobody holds or approves, impossible schemas, rules that are not reached.

    Its scenarios are run, and its OPA is asked. Exit code: 0 nothing found, 1 something, 2 bad usage or a faulty file.
    """
    if project is not None and project.is_dir():
        project /= PROJECT_FILE
    stated = project_with() if project is None else read_project(project)
    manifest = needed(stated.manifest, "manifest", "PROJECT")
    suites = load_suites(find_suites(needed(stated.scenarios, "scenarios", "PROJECT")), ENGINE_TIMEOUT)
    runs = [run for suite in suites for run in run_suite(suite, ["embedded"])]
    found = problems(manifest, stated.governance, stated.policies, runs)
    if stated.engine == "sidecar" and stated.opa_url:
        place = read_document(project or chosen_project() or PROJECT_FILE).place(("opa_url",))
        try:
            wrong = opa_status(stated.opa_url, accept_unknown=stated.accept_unknown_opa)["problems"]
        except EngineError as error:
            wrong = [error.message]
        found += (Fault(place, problem, "see: pdp opa status") for problem in wrong)
    lines = [f"{shown_file(fault.place.file)}:{fault.place.line}: {fault.message}; {fault.hint}" for fault in found]
    lines.append(f"{len(found)} {'problem' if len(found) == 1 else 'problems'}" if found else "nothing found")
    print_answer({"problems": [fault_json(fault) for fault in found]}, lines, as_json=as_json)
    raise typer.Exit(Exit.FAILED if found else Exit.OK)
