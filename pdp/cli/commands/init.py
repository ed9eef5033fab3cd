"""`pdp init`: creates a project with tests."""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Annotated, Final

from pdp import __version__
from pdp.cli.options import AsJson, Governance, command_app, file_argument, file_option
from pdp.cli.output import print_answer, write_text
from pdp.cli.schemas import KINDS, schema_of
from pdp.errors import UsageError

_TEMPLATE: Final = Path(__file__).parents[1] / "project"
_REQUIREMENT: Final = "@REQUIREMENT@"


app = command_app()


@app.command("init")
def init(
    folder: Annotated[Path, file_argument("[DIR]", help="The folder, created if missing.")] = Path(),
    source: Annotated[
        Path | None, file_option("--from", metavar="MANIFEST", help="Draft a project for this existing manifest.")
    ] = None,
    governance: Governance = None,
    as_json: AsJson = False,
) -> None:
    """Create a project: manifest, governance, a concern of your own with its test, data, scenarios and CI.

    With --from, drafts governance, a session and scenarios for your manifest; review them. The drafts keep the rules of
    --governance. Never overwrites a file. Exit code: 0 created, 2 a file exists or cannot be written.
    """
    if source is None:
        files = project_files(*_workflow(folder))
    else:
        from pdp.workbench.scenarios.draft import drafted_project  # noqa: PLC0415 - loads an engine

        files = drafted_project(source, os.path.relpath(source, folder), governance)
    stated = "".join(files.values())
    kinds = (kind for kind in KINDS if f"$schema=.schemas/{kind}.json\n" in stated)
    schemas = {f".schemas/{kind}.json": f"{json.dumps(schema_of(kind))}\n" for kind in kinds}
    files = dict(sorted((files | schemas).items()))
    existing = [name for name in files if os.path.lexists(folder / name)]
    if existing:
        raise UsageError(
            f"{folder}: already has {', '.join(existing)}, and files are not overwritten",
            hint="give a new folder, or move these files away",
        )
    for name, content in files.items():
        write_text(folder / name, content)
    enter = [] if folder.resolve() == Path.cwd() else [f"  cd {shlex.quote(str(folder))}"]
    lines = [
        f"{folder}: a new project, {len(files)} files", *(f"  {name}" for name in files),
        "Next:", *enter, *(["  pdp opa install"] if source is None else []), "  pdp test", "  pdp decide proposal.json",
    ]  # fmt: skip
    print_answer({"folder": str(folder), "files": list(files)}, lines, as_json=as_json)


def _workflow(folder: Path) -> tuple[str, str]:
    """Return the path of the workflow, relative to a project, and the project's folder in its repository."""
    project = folder.resolve()
    root = next((above for above in (project, *project.parents) if (above / ".git").exists()), project)
    inner = project.relative_to(root)
    name = re.sub(r"[^\w-]+", "-", "-".join(("policy", *inner.parts)))
    file = os.path.relpath(root / ".github" / "workflows" / f"{name}.yml", project)
    return Path(file).as_posix(), inner.as_posix()


def project_files(workflow: str = ".github/workflows/policy.yml", inner: str = ".") -> dict[str, str]:
    """Return the files of a new project, in the folder `inner` of its repository: a sorted map from paths to texts."""
    # The CI workflow installs the extra `proof`, which includes `workbench`. The requirement is quoted because shells
    # interpret brackets.
    requirement = f"'tool-pdp[proof]=={__version__}'"
    files = {}
    for file in _TEMPLATE.rglob("*"):
        first, *rest = file.relative_to(_TEMPLATE).parts
        # Installers compile the templates that end in .py, so __pycache__ is skipped.
        if file.is_file() and "__pycache__" not in (first, *rest):
            text = file.read_text(encoding="utf-8").replace(_REQUIREMENT, requirement)
            if first == "github":
                text = text.replace("@FOLDER@", inner).replace("@WORKFLOW@", workflow.rpartition("/")[2])
            # The template's folder has no leading dot, because packaging may leave out hidden folders.
            files[workflow if first == "github" else "/".join((first, *rest))] = text
    return dict(sorted(files.items()))
