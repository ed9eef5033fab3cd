"""`pdp scan` and `pdp manifest import`: what a server, a document, an application or a client exposes."""

from os.path import lexists
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from pdp.cli.files import needed, project_with, read_rules
from pdp.cli.options import AsJson, Governance, Manifest, command_app, file_option
from pdp.cli.output import complain, print_answer, write_text
from pdp.errors import UsageError
from pdp.scan.configured import configured_tools, toolkit_tools
from pdp.scan.draft import drafted_manifest
from pdp.scan.exposed import Exposure, application_tools, asked_tools, mcp_tools, openapi_tools
from pdp.scan.findings import findings

app = command_app()

_READERS: Final = {
    "agt": toolkit_tools, "app": application_tools, "command": asked_tools, "hooks": configured_tools,
    "mcp": mcp_tools, "openapi": openapi_tools,
}  # fmt: skip
_Kind = Annotated[
    Literal["agt", "app", "command", "hooks", "mcp", "openapi"], typer.Argument(metavar="KIND", help="Of the source.")
]
_WHAT: Final = (
    "agt: a manifest of the Agent Governance Toolkit. app: MODULE:OBJECT; the module is imported, and so run. command: "
    "-- and what starts an MCP server. hooks: a client whose settings count in this folder. mcp: a server's URL, or a "
    "file with its answer to tools/list. openapi: a document."
)
_Source = Annotated[list[str], typer.Argument(metavar="SOURCE...", help=_WHAT)]
_Output = Annotated[Path | None, file_option("--output", "-o", help="Where to write it; stdout if absent.")]


@app.command("scan")
def scan(
    kind: _Kind, source: _Source, manifest: Manifest = None, governance: Governance = None, as_json: AsJson = False
) -> None:
    """Find what a server, a document, an application or a client exposes otherwise than the manifest says.

    That is undeclared tools, drift of schemas, risk that the manifest makes little of, and switches that show all.
    Exit code: 0 nothing found, 1 findings, 2 bad usage, or a source that cannot be read.
    """
    project = project_with(manifest=manifest, governance=governance)
    rules = read_rules(needed(project.manifest, "manifest", "--manifest"), project.governance)
    found = list(findings(exposure := _exposure(kind, source), rules))
    lines = [text for at in found for text in (": ".join(filter(None, at[:-1])), f"    hint: {at.hint}")]
    failing = sum(at.kind != "absent" for at in found)
    answer = {"tools": len(exposure.tools), "findings": [at._asdict() for at in found]}
    print_answer(answer, [*lines, f"tools: {len(exposure.tools)}, findings: {failing}"], as_json=as_json)
    raise typer.Exit(bool(failing))


def draft(kind: _Kind, source: _Source, output: _Output = None, as_json: AsJson = False) -> None:
    """Write a first manifest of what a server, a document, an application or a client exposes; nothing is overwritten.

    Strictest first: each call is denied until somebody has reviewed the lines marked `review`. What governance has to
    accept is written beside it, as NAME.governance.yaml. Exit code: 0 written, 1
    written without tools that no manifest can have, 2 bad usage, or a source that cannot be read.
    """
    rules = None if output is None else output.with_suffix(f".governance{output.suffix}")
    for file in filter(None, (output, rules)):
        if lexists(file):
            raise UsageError(f"{file}: is there already, and nothing is overwritten", hint="name a new file")
    made = drafted_manifest(_exposure(kind, source).tools)
    for note, names in made.read.items():
        complain(f"{note}: {', '.join(names)}")
    for name, why in made.left_out:
        complain(f"left out: {name!r:.200}: {why}")
    if not made.tools and not made.left_out:
        complain(f"{source[0]}: exposes no tool")
    lines, options = made.manifest.splitlines(), ""
    if made.governance and rules is None:
        complain(f"it loads with this governance file:\n{made.governance}")
    if output is not None and rules is not None:
        write_text(output, made.manifest)
        if made.governance:
            write_text(rules, made.governance)
            options = f" --governance {rules}"
        lines = [f"{output}: review it, then: pdp init --from {output}{options}"]
    print_answer(made._asdict(), lines, as_json=as_json)
    raise typer.Exit(bool(made.left_out))


def _exposure(kind: str, source: list[str]) -> Exposure:
    if len(source) > 1 and kind != "command":
        raise UsageError(f"{kind}: {len(source)} sources", hint="name one")
    return _READERS[kind](*source)
