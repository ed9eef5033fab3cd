"""`pdp check`: policies held to their conventions, with their unit tests and scenarios."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import typer

from pdp.cli import Exit
from pdp.cli.files import effective_manifests, project_with
from pdp.cli.options import AsJson, Data, Governances, Manifests, Policies, Scenarios, command_app
from pdp.cli.output import fault_json, print_json, tell
from pdp.engine.data import read_data
from pdp.errors import FileFaultsError
from pdp.workbench.bundles.admission import staged_policies
from pdp.workbench.bundles.names import KnownNames
from pdp.workbench.opa.modules import baseline_policies_path
from pdp.workbench.opa.program import needed_opa
from pdp.workbench.scenarios.files.suite import find_suites, load_suites

app = command_app()


@app.command("check")
def check(
    policies: Policies = None,
    scenarios: Scenarios = None,
    manifest: Manifests = None,
    governance: Governances = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Check how concerns are written: METADATA, codes, the traps of Rego, tests and scenarios. Needs OPA.

    Of the folders that are named, or without any of the baseline. What a concern reads has to be in a request; with
    manifests and data, also in their contexts, arguments and data. Exit code: 0 no fault, 2 faults or bad usage.
    """
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
    asked = "" if codes is not None else "; not asked for scenarios: name them with --scenarios"
    tell(f"{files}: no fault{asked}")


def expected_codes(paths: Sequence[Path]) -> set[str]:
    """Return the reason codes that scenarios in these files and folders expect; raises as `load_suites`."""
    return {
        code
        for suite in load_suites(find_suites(paths))
        for scenario in suite.scenarios
        for step in scenario.steps
        for expect in step.expectations
        for code in expect.codes or ()
    }
