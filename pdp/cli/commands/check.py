"""`pdp check` checks how policies are written. `pdp doctor` finds faults of a project."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from pdp.cli import Exit
from pdp.cli.commands.opa import opa_status
from pdp.cli.files import effective_manifests, project_with, required
from pdp.cli.findings import reported
from pdp.cli.options import (
    AsJson,
    Data,
    Format,
    Governances,
    Manifests,
    Policies,
    Scenarios,
    command_app,
    file_argument,
)  # fmt: skip
from pdp.cli.output import fault_json, print_answer, print_json, print_line
from pdp.documents import read_document
from pdp.engine.data import read_data
from pdp.errors import EngineError, Fault, FileFaultsError
from pdp.opa.admission import staged_policies
from pdp.opa.modules import baseline_policies_path
from pdp.opa.names import KnownNames
from pdp.opa.program import needed_opa
from pdp.project.file import PROJECT_FILE, chosen_project, read_project
from pdp.workbench.doctor import problems
from pdp.workbench.engines import ENGINE_TIMEOUT
from pdp.workbench.scenarios.files.suite import find_suites, load_suites
from pdp.workbench.scenarios.running.runner import run_suite
from pdp.workbench.shown_file import shown_file

app = command_app()


@app.command("check")
def check(
    policies: Policies = None,
    scenarios: Scenarios = None,
    manifest: Manifests = None,
    governance: Governances = None,
    data: Data = None,
    form: Format = "text",
    as_json: AsJson = False,
) -> None:
    """Check the Rego of concerns: METADATA, reason codes, common mistakes, tests and scenarios. Needs OPA.

    Checks the given folders; without folders, the baseline. Every name that a concern reads must exist in a request.
    With manifests and data, the names of arguments, contexts and data are checked as well.
    Exit code: 0 no fault, 2 faults or bad usage.
    """
    with reported("text" if as_json else form):
        opa = needed_opa("checking policies")
        project = project_with(policies=policies, scenarios=scenarios, data=data)
        codes = expected_codes(project.scenarios) if scenarios or (project.policies and project.scenarios) else None
        effective = effective_manifests(manifest or [], governance or [], project)
        names = KnownNames([tool for loaded in effective for tool in loaded.tools.values()], read_data(project.data))
        with staged_policies([baseline_policies_path(), *project.policies], opa, names=names) as staged:
            checked = staged.of(custom=bool(project.policies))
            faults = list(chain.from_iterable(staged.faults(checked, proven=True, scenario_codes=codes)))
        faults = list({(fault.place, fault.hint or fault.message): fault for fault in faults}.values())
        if as_json:
            print_json({"files": len(checked), "faults": [fault_json(fault) for fault in faults]})
            raise typer.Exit(Exit.USAGE if faults else Exit.OK)
        if faults:
            raise FileFaultsError(faults)
        files = f"{len(checked)} {'file' if len(checked) == 1 else 'files'}"
        asked = "" if codes is not None else "; scenarios were not checked: give them with --scenarios"
        if form != "sarif":
            print_line(f"{files}: no fault{asked}")


def expected_codes(paths: Sequence[Path]) -> set[str]:
    """Return the reason codes that scenarios in the given files and folders expect. Raises errors of `load_suites`."""
    return {
        code
        for suite in load_suites(find_suites(paths))
        for scenario in suite.scenarios
        for step in scenario.steps
        for expect in step.expectations
        for code in expect.codes or ()
    }


doctor_app = command_app()


@doctor_app.command("doctor")
def doctor(
    project: Annotated[
        Path | None, file_argument("PROJECT", help="The project file or its folder. Default: the nearest pdp.yaml.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find faults of a project: missing approvers or scopes, schemas that accept nothing, rules that never apply.

    Runs the project's scenarios and asks its OPA. Exit code: 0 no problem, 1 problems, 2 bad usage or a faulty file.
    """
    if project is not None and project.is_dir():
        project /= PROJECT_FILE
    stated = project_with() if project is None else read_project(project)
    manifest = required(stated.manifest, "manifest", "PROJECT")
    suites = load_suites(find_suites(required(stated.scenarios, "scenarios", "PROJECT")), ENGINE_TIMEOUT)
    runs = [run for suite in suites for run in run_suite(suite, ["embedded"])]
    faults = problems(manifest, stated.governance, stated.policies, runs)
    if stated.engine == "sidecar" and stated.opa_url:
        place = read_document(project or chosen_project() or PROJECT_FILE).place(("opa_url",))
        try:
            wrong = opa_status(stated.opa_url, accept_unknown=stated.accept_unknown_opa)["problems"]
        except EngineError as error:
            wrong = [error.message]
        faults += (Fault(place, problem, "see: pdp opa status") for problem in wrong)
    lines = [f"{shown_file(fault.place.file)}:{fault.place.line}: {fault.message}; {fault.hint}" for fault in faults]
    lines.append(f"{len(faults)} {'problem' if len(faults) == 1 else 'problems'}" if faults else "no problems")
    print_answer({"problems": [fault_json(fault) for fault in faults]}, lines, as_json=as_json)
    raise typer.Exit(Exit.FAILED if faults else Exit.OK)
