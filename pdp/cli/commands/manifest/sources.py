"""`pdp scan` and `pdp manifest import`: read the tools of a server, document, application or client."""

from os.path import lexists
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from pdp.cli.files import project_with, read_rules, required
from pdp.cli.options import AsJson, Governance, Manifest, command_app, file_option
from pdp.cli.output import print_answer, print_error, write_text
from pdp.errors import UsageError
from pdp.scan.draft import drafted_manifest
from pdp.scan.exposed import (
    Exposure,
    application_tools,
    asked_tools,
    configured_tools,
    mcp_tools,
    openapi_tools,
    toolkit_tools,
)
from pdp.scan.findings import findings

app = command_app()

_READERS: Final = {
    "agt": toolkit_tools, "app": application_tools, "command": asked_tools, "hooks": configured_tools,
    "mcp": mcp_tools, "openapi": openapi_tools,
}  # fmt: skip
_Kind = Annotated[
    Literal["agt", "app", "command", "hooks", "mcp", "openapi"],
    typer.Argument(metavar="KIND", help="The kind of the source."),
]
_WHAT: Final = (
    "agt: a manifest of the Agent Governance Toolkit. app: MODULE:OBJECT; the module is imported and runs. command: "
    "-- and the command that starts an MCP server. hooks: a client with settings for this folder. mcp: the URL of an "
    "MCP server, or a file with its tools/list answer. openapi: an OpenAPI document."
)
_Source = Annotated[list[str], typer.Argument(metavar="SOURCE...", help=_WHAT)]
_Output = Annotated[Path | None, file_option("--output", "-o", help="The file to write. Default: stdout.")]


@app.command("scan")
def scan(
    kind: _Kind, source: _Source, manifest: Manifest = None, governance: Governance = None, as_json: AsJson = False
) -> None:
    """Compare the tools of a server, document, application or client with the manifest.

    Finds undeclared tools, changed schemas, understated risks, and settings that expose all tools of a server.
    Exit code: 0 nothing found, 1 findings, 2 bad usage, or a source that cannot be read.
    """
    project = project_with(manifest=manifest, governance=governance)
    rules = read_rules(required(project.manifest, "manifest", "--manifest"), project.governance)
    reported = list(findings(exposure := _exposure(kind, source), rules))
    lines = [text for at in reported for text in (": ".join(filter(None, at[:-1])), f"    hint: {at.hint}")]
    failing = sum(at.kind != "absent" for at in reported)
    answer = {"tools": len(exposure.tools), "findings": [at._asdict() for at in reported]}
    print_answer(answer, [*lines, f"tools: {len(exposure.tools)}, findings: {failing}"], as_json=as_json)
    raise typer.Exit(bool(failing))


def draft(kind: _Kind, source: _Source, output: _Output = None, as_json: AsJson = False) -> None:
    """Write a first manifest for the tools of a server, document, application or client. Never overwrites a file.

    The manifest is strict: each call is denied until you have reviewed the lines marked `review`. The settings that
    governance must accept are written to NAME.governance.yaml.
    Exit code: 0 written, 1 written without tools that a manifest cannot describe, 2 bad usage or unreadable source.
    """
    rules = None if output is None else output.with_suffix(f".governance{output.suffix}")
    for file in filter(None, (output, rules)):
        if lexists(file):
            raise UsageError(f"{file}: exists already and is not overwritten", hint="give a new file")
    drafted = drafted_manifest(_exposure(kind, source).tools)
    for note, names in drafted.read.items():
        print_error(f"{note}: {', '.join(names)}")
    for name, why in drafted.left_out:
        print_error(f"left out: {name!r:.200}: {why}")
    if not drafted.tools and not drafted.left_out:
        print_error(f"{source[0]}: exposes no tools")
    lines, options = drafted.manifest.splitlines(), ""
    if drafted.governance and rules is None:
        print_error(f"the manifest needs this governance file:\n{drafted.governance}")
    if output is not None and rules is not None:
        write_text(output, drafted.manifest)
        if drafted.governance:
            write_text(rules, drafted.governance)
            options = f" --governance {rules}"
        lines = [f"{output}: review it, then: pdp init --from {output}{options}"]
    print_answer(drafted._asdict(), lines, as_json=as_json)
    raise typer.Exit(bool(drafted.left_out))


def _exposure(kind: str, source: list[str]) -> Exposure:
    if len(source) > 1 and kind != "command":
        raise UsageError(f"{kind}: {len(source)} sources given, expected one", hint="give one source")
    return _READERS[kind](*source)
