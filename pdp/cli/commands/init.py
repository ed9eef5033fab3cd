"""`pdp init`: a new project that tests itself."""

import os
import shlex
from pathlib import Path
from typing import Annotated, Final

from pdp import __version__
from pdp.cli.options import AsJson, Governance, command_app, file_argument, file_option
from pdp.cli.output import print_answer, write_text
from pdp.errors import UsageError

_TEMPLATE: Final = Path(__file__).parents[1] / "project"
_REQUIREMENT: Final = "@REQUIREMENT@"


app = command_app()


@app.command("init")
def init(
    folder: Annotated[Path, file_argument("[DIR]", help="The folder; made when not there.")] = Path(),
    source: Annotated[
        Path | None, file_option("--from", metavar="MANIFEST", help="A manifest that exists: draft a project for it.")
    ] = None,
    governance: Governance = None,
    as_json: AsJson = False,
) -> None:
    """Start a project: manifest, governance, a concern of your own with its test, data, scenarios, CI.

    With --from, governance, a session and scenarios are drafted for a manifest of yours, to be reviewed; what a
    --governance file states is taken over. Nothing is overwritten. Exit code: 0 made, 2 a file is there already, or
    cannot be written.
    """
    if source is None:
        files = project_files()
    else:
        from pdp.workbench.scenarios.draft import drafted_project  # noqa: PLC0415 - it decides, with an engine

        files = drafted_project(source, os.path.relpath(source, folder), governance)
    there = [name for name in files if os.path.lexists(folder / name)]
    if there:
        raise UsageError(
            f"{folder}: has {', '.join(there)} already, and nothing is overwritten",
            hint="name a new folder, or move these files away",
        )
    for name, content in files.items():
        write_text(folder / name, content)
    enter = [] if folder.resolve() == Path.cwd() else [f"  cd {shlex.quote(str(folder))}"]
    lines = [
        f"{folder}: a new project, {len(files)} files", *(f"  {name}" for name in files),
        "Next:", *enter, *(["  pdp opa install"] if source is None else []), "  pdp test", "  pdp decide proposal.json",
    ]  # fmt: skip
    print_answer({"folder": str(folder), "files": list(files)}, lines, as_json=as_json)


def project_files() -> dict[str, str]:
    """Return the files of a new project by their path in it, sorted."""
    # Its workflow measures coverage and builds a bundle; quoted, as a shell may read the brackets.
    requirement = f"'tool-pdp[workbench]=={__version__}'"
    files = {}
    for file in _TEMPLATE.rglob("*"):
        first, *rest = file.relative_to(_TEMPLATE).parts
        # Installers compile whatever ends in .py.
        if file.is_file() and "__pycache__" not in (first, *rest):
            text = file.read_text(encoding="utf-8").replace(_REQUIREMENT, requirement)
            # A folder with a dot first is easily lost on the way into a wheel.
            files["/".join((".github" if first == "github" else first, *rest))] = text
    return dict(sorted(files.items()))
