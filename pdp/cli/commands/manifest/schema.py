"""`pdp schema` prints the JSON Schema of a file, for editors and for checks in CI."""

from typing import Annotated

import typer

from pdp.cli.options import AsJson, command_app
from pdp.cli.output import print_json
from pdp.cli.schemas import Kind, schema_of

app = command_app()


@app.command("schema")
def schema(
    kind: Annotated[
        Kind,
        typer.Argument(metavar="KIND", help="manifest, governance, project, scenarios, session or service."),
    ],
    as_json: AsJson = False,  # noqa: ARG001 - every command has this option; here the output is JSON anyway
) -> None:
    """Print the JSON Schema of a kind of file, for editors and for checks in CI.

    Exit code: 0 printed, 2 unknown kind, or `service` without its extra.
    """
    print_json(schema_of(kind))
