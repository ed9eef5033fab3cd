"""`pdp release`: checks whether a bundle may be released."""

from pathlib import Path
from typing import Annotated

import typer

from pdp.cli import Exit
from pdp.cli.files import project_with, required
from pdp.cli.options import AsJson, EngineTimeout, Policies, ScenarioPaths, command_app, file_option
from pdp.cli.output import print_answer, print_line, write_text
from pdp.documents import nearest
from pdp.errors import UsageError
from pdp.json import canonical
from pdp.workbench.engines import ENGINE_TIMEOUT
from pdp.workbench.gate.gate import NAMES, Check, Gate, lines, read_explanations, release_check, summary
from pdp.workbench.scenarios.files.suite import find_suites, load_suites
from pdp.workbench.shown_file import printable

app = command_app("Check whether a bundle may be released.")


@app.callback()
def group() -> None:
    """Check whether a bundle may be released."""


@app.command()
def check(
    paths: ScenarioPaths = None,
    bundle: Annotated[
        Path | None, file_option("--bundle", help="The bundle to release. Default: the project's.")
    ] = None,
    last: Annotated[Path | None, file_option(help="The bundle of the last release.")] = None,
    explanations: Annotated[
        Path | None, file_option(help="A file that explains each intended loosening since the last release.")
    ] = None,
    policies: Policies = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help=f"A check to skip: {', '.join(NAMES)}. May be repeated.")
    ] = None,
    generate: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="NUMBER", help="The maximum number of calls to generate.")
    ] = 50_000,
    engine_timeout: EngineTimeout = ENGINE_TIMEOUT,
    write_to: Annotated[
        Path | None, file_option("--result", help="The file to write the result to, for `pdp bundle publish --gate`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the release checks on a bundle. Prints one line for each check, with the reason if the check fails.

    Exit code: 0 nothing failed, 1 a check failed, 2 bad usage or file, or an engine timed out.
    """
    for name in skip or []:
        if name not in NAMES:
            hint = nearest(name, NAMES) or f"the checks are {', '.join(NAMES)}"
            raise UsageError(f"--skip {printable(name)}: unknown check", hint=hint)
    if explanations is not None and last is None:
        raise UsageError("--explanations has no effect without --last", hint="add --last BUNDLE")
    project = project_with(scenarios=paths, bundle=bundle)
    gate = Gate(
        bundle=required(project.bundle, "bundle", "--bundle"),
        suites=load_suites(find_suites(required(project.scenarios, "scenarios", "PATH")), engine_timeout),
        last=last,
        explanations=read_explanations(explanations) if explanations is not None else {},
        policies=policies or project.policies,
        skip=frozenset(skip or []),
        generate=generate,
        engine_timeout=engine_timeout,
    )
    result = release_check(gate) if as_json else release_check(gate, _show)
    if write_to is not None:
        write_text(write_to, canonical(result.as_json()).decode() + "\n")
    print_answer(result.as_json(), [summary(result)], as_json=as_json)
    raise typer.Exit(Exit.OK if result.passed else Exit.FAILED)


def _show(result: Check) -> None:
    for line in lines(result):
        print_line(printable(line))
